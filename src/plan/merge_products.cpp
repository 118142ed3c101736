#include "plan/merge_products.h"

#include <algorithm>
#include <cstring>

#include "kernel/block_matmul.h"

namespace graft {
namespace {

// Launches in between that are looked at: layers of a block lie close together.
constexpr std::size_t kReach = 32;

bool in_panels(const Launch& launch) {
  return launch.kernel == &kBlockMatmul && !launch.on_device && attrs_of<BlockMatmulAttrs>(launch).panels != 0;
}

class Merger {
 public:
  explicit Merger(Plan& plan) : plan_(plan) {}

  void run() {
    for (std::size_t first = 0; first < plan_.launches.size(); ++first) {
      if (!in_panels(plan_.launches[first]) || plan_.launches[first].outputs.empty()) continue;
      members_ = {first};
      const std::size_t end = std::min(plan_.launches.size(), first + 1 + kReach);
      for (std::size_t i = first + 1; i < end && members_.size() < kMostBlockProducts; ++i) {
        if (writes(plan_.launches[i], plan_.launches[first].inputs[0].buffer)) break;
        if (fits(first, i)) members_.push_back(i);
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
    const Launch &leader = plan_.launches[first], &launch = plan_.launches[i];
    if (launch.outputs.empty() || !in_panels(launch) || !same_tensor(leader.inputs[0], launch.inputs[0])) return false;
    if (attrs_of<BlockMatmulAttrs>(leader).type != attrs_of<BlockMatmulAttrs>(launch).type) return false;
    for (std::size_t k = 1; k < launch.inputs.size(); ++k) {
      const Segment segment = plan_.buffers[launch.inputs[k].buffer].segment;
      if (segment != Segment::weight && segment != Segment::constant) return false;
    }
    const BufferId result = launch.outputs[0].buffer;
    const Segment segment = plan_.buffers[result].segment;
    if (segment != Segment::arena && segment != Segment::output) return false;
    for (std::size_t k = first; k < i; ++k)
      if (touches(plan_.launches[k], result)) return false;
    return true;
  }

  void merge() {
    Launch& leader = plan_.launches[members_[0]];
    BlockMatmulsAttrs attrs;
    attrs.type = attrs_of<BlockMatmulAttrs>(leader).type;
    std::vector<Tensor> inputs = {leader.inputs[0]}, biases, outputs;
    for (const std::size_t i : members_) {
      Launch& launch = plan_.launches[i];
      attrs.products[static_cast<std::size_t>(attrs.count++)] = attrs_of<BlockMatmulAttrs>(launch).product;
      inputs.push_back(launch.inputs[1]);
      biases.insert(biases.end(), launch.inputs.begin() + 2, launch.inputs.end());
      outputs.push_back(launch.outputs[0]);
      leader.serial = leader.serial && launch.serial;
      launch.outputs.clear();
    }
    inputs.insert(inputs.end(), biases.begin(), biases.end());
    leader.kernel = &kBlockMatmuls;
    leader.inputs = std::move(inputs);
    leader.outputs = std::move(outputs);
    leader.attrs.resize(sizeof(attrs));
    std::memcpy(leader.attrs.data(), &attrs, sizeof(attrs));
  }

  Plan& plan_;
  std::vector<std::size_t> members_;
};

}  // namespace

void merge_products(Plan& plan) { Merger(plan).run(); }

}  // namespace graft
