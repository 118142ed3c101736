#include "pass/launch/merge_products.h"

#include <algorithm>
#include <span>

#include "kernel/conv/packed_conv.h"
#include "kernel/matmul/block_matmul.h"
#include "kernel/matmul/packed_pairs.h"

namespace graft {
namespace {

// Launches in between that are looked at: layers of a block lie close together.
constexpr std::size_t kReach = 32;

// How products of one kernel become one launch.
struct Kind {
  std::size_t most;
  bool (*fits)(const Launch&, const Launch&);  // besides what all products have in common
  void (*merge)(Launch&, std::span<Launch* const>);
};

template <typename Attrs>
void set(Launch& launch, const Kernel& kernel, const Attrs& attrs) {
  launch.kernel = &kernel;
  launch.attrs.resize(sizeof(attrs));
  set_attrs(launch, attrs);
}

bool same_blocks(const Launch& a, const Launch& b) {
  return attrs_of<BlockMatmulAttrs>(a).type == attrs_of<BlockMatmulAttrs>(b).type;
}
void merge_blocks(Launch& leader, std::span<Launch* const> members) {
  BlockMatmulsAttrs attrs;
  attrs.type = attrs_of<BlockMatmulAttrs>(leader).type;
  for (const Launch* member : members)
    attrs.products[static_cast<std::size_t>(attrs.count++)] = attrs_of<BlockMatmulAttrs>(*member).product;
  set(leader, kBlockMatmuls, attrs);
}

bool same_size(const Launch& a, const Launch& b) { return a.outputs[0].shape() == b.outputs[0].shape(); }
void merge_linears(Launch& leader, std::span<Launch* const> members) {
  PackedLinearsAttrs attrs;
  for (const Launch* member : members)
    attrs.layers[static_cast<std::size_t>(attrs.count++)] = attrs_of<PackedConvAttrs>(*member);
  set(leader, leader.kernel == &kPackedPairs ? kPackedPairLinears : kPackedLinears, attrs);
}

constexpr Kind kBlocks = {kMostBlockProducts, same_blocks, merge_blocks};
constexpr Kind kLinears = {kMostPackedLinears, same_size, merge_linears};

const Kind* kind_of(const Launch& launch) {
  if (launch.on_device || launch.outputs.empty()) return nullptr;
  if (launch.kernel == &kBlockMatmul) return attrs_of<BlockMatmulAttrs>(launch).panels != 0 ? &kBlocks : nullptr;
  if (launch.kernel != &kPackedLinear && launch.kernel != &kPackedPairs) return nullptr;
  return attrs_of<PackedConvAttrs>(launch).has_residual == 0 ? &kLinears : nullptr;
}

class Merger {
 public:
  explicit Merger(LaunchSequence& sequence) : sequence_(sequence) {}

  void run() {
    for (std::size_t first = 0; first < sequence_.launches.size(); ++first) {
      kind_ = kind_of(sequence_.launches[first]);
      if (kind_ == nullptr) continue;
      members_ = {&sequence_.launches[first]};
      const std::size_t end = std::min(sequence_.launches.size(), first + 1 + kReach);
      for (std::size_t i = first + 1; i < end && members_.size() < kind_->most; ++i) {
        if (writes(sequence_.launches[i], sequence_.launches[first].inputs[0].buffer)) break;
        if (fits(first, i)) members_.push_back(&sequence_.launches[i]);
      }
      if (members_.size() > 1) merge();
    }
  }

 private:
  static bool writes(const Launch& launch, BufferId buffer) {
    return std::ranges::any_of(launch.outputs, [&](const Tensor& t) { return t.buffer == buffer; });
  }
  static bool touches(const Launch& launch, BufferId buffer) {
    return writes(launch, buffer) ||
           std::ranges::any_of(launch.inputs, [&](const Tensor& t) { return t.buffer == buffer; });
  }

  // Whether launch i may run at the place of `first`: what it reads besides the rows is there, and nothing in between
  // has to do with its result.
  bool fits(std::size_t first, std::size_t i) const {
    const Launch &leader = sequence_.launches[first], &launch = sequence_.launches[i];
    if (kind_of(launch) != kind_ || launch.kernel != leader.kernel) return false;
    if (!same_tensor(leader.inputs[0], launch.inputs[0]) || !kind_->fits(leader, launch)) return false;
    for (std::size_t k = 1; k < launch.inputs.size(); ++k) {
      const Segment segment = sequence_.buffers[launch.inputs[k].buffer].segment;
      if (segment != Segment::weight && segment != Segment::constant) return false;
    }
    const BufferId result = launch.outputs[0].buffer;
    const Segment segment = sequence_.buffers[result].segment;
    if (segment != Segment::arena && segment != Segment::output) return false;
    for (std::size_t k = first; k < i; ++k)
      if (touches(sequence_.launches[k], result)) return false;
    return true;
  }

  void merge() {
    Launch& leader = *members_[0];
    std::vector<Tensor> inputs = {leader.inputs[0]}, biases, outputs;
    for (const Launch* launch : members_) {
      inputs.push_back(launch->inputs[1]);
      biases.insert(biases.end(), launch->inputs.begin() + 2, launch->inputs.end());
      outputs.push_back(launch->outputs[0]);
      leader.serial = leader.serial && launch->serial;
    }
    kind_->merge(leader, members_);
    for (Launch* launch : members_) launch->outputs.clear();
    inputs.insert(inputs.end(), biases.begin(), biases.end());
    leader.inputs = std::move(inputs);
    leader.outputs = std::move(outputs);
  }

  LaunchSequence& sequence_;
  const Kind* kind_ = nullptr;  // of the products that are looked at
  std::vector<Launch*> members_;
};

}  // namespace

void merge_products(LaunchSequence& sequence) { Merger(sequence).run(); }

}  // namespace graft
