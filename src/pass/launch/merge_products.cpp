#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "kernel/fusion.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// Search distance in launches: products of one layer are near each other.
constexpr std::size_t kWindow = 32;

const MergeRule* rule_of(const Launch& launch) {
  const Fusion* fusion = fusion_of(launch);
  return fusion != nullptr && !launch.outputs.empty() ? fusion->merge : nullptr;
}

class Merger {
 public:
  explicit Merger(LaunchSequence& sequence) : sequence_(sequence) {}

  std::size_t run() {
    std::size_t count = 0;
    for (std::size_t first = 0; first < sequence_.launches.size(); ++first) {
      rule_ = rule_of(sequence_.launches[first]);
      if (rule_ == nullptr || !rule_->fits(DescribedLaunch(sequence_.launches[first]).context())) continue;
      members_ = {&sequence_.launches[first]};
      const std::size_t end = std::min(sequence_.launches.size(), first + 1 + kWindow);
      for (std::size_t i = first + 1; i < end && members_.size() < rule_->most; ++i) {
        if (writes(sequence_.launches[i], sequence_.launches[first].inputs[0].buffer)) break;
        if (fits(first, i)) members_.push_back(&sequence_.launches[i]);
      }
      count += members_.size() - 1;
      if (members_.size() > 1) merge();
    }
    return count;
  }

 private:
  static bool writes(const Launch& launch, BufferId buffer) {
    return std::ranges::any_of(launch.outputs, [&](const Tensor& t) { return t.buffer == buffer; });
  }
  static bool touches(const Launch& launch, BufferId buffer) {
    return writes(launch, buffer) ||
           std::ranges::any_of(launch.inputs, [&](const Tensor& t) { return t.buffer == buffer; });
  }

  // Whether launch i may run at the position of `first`: its other inputs are ready, and nothing in between touches its
  // result.
  bool fits(std::size_t first, std::size_t i) const {
    const Launch &leader = sequence_.launches[first], &launch = sequence_.launches[i];
    if (rule_of(launch) != rule_ || !same_tensor(leader.inputs[0], launch.inputs[0])) return false;
    const DescribedLaunch described(launch);
    if (!rule_->fits(described.context()) ||
        !rule_->fit_together(DescribedLaunch(leader).context(), described.context()))
      return false;
    for (std::size_t k = 1; k < launch.inputs.size(); ++k) {
      const MemoryKind kind = sequence_.buffers[launch.inputs[k].buffer].memory;
      if (kind != MemoryKind::weight && kind != MemoryKind::constant) return false;
    }
    const BufferId result = launch.outputs[0].buffer;
    const MemoryKind kind = sequence_.buffers[result].memory;
    if (kind != MemoryKind::arena && kind != MemoryKind::output) return false;
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
    std::deque<DescribedLaunch> described;  // a deque, for stable addresses
    std::vector<const KernelContext*> contexts;
    for (const Launch* launch : members_) contexts.push_back(&described.emplace_back(*launch).context());
    leader.attrs = rule_->attrs(contexts);
    leader.kernel = rule_->merged;
    for (Launch* launch : members_) launch->outputs.clear();
    inputs.insert(inputs.end(), biases.begin(), biases.end());
    leader.inputs = std::move(inputs);
    leader.outputs = std::move(outputs);
  }

  LaunchSequence& sequence_;
  const MergeRule* rule_ = nullptr;  // of the products under consideration
  std::vector<Launch*> members_;
};

}  // namespace

std::size_t merge_products(LaunchSequence& sequence) { return Merger(sequence).run(); }

}  // namespace graft
