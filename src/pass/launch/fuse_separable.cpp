#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/fusion.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

class SeparableFuser {
 public:
  SeparableFuser(LaunchSequence& sequence, int threads)
      : sequence_(sequence), threads_(threads), uses_(uses_of(sequence)) {}

  std::size_t run() {
    std::size_t count = 0;
    for (std::size_t i = 0; i < sequence_.launches.size(); ++i) {
      const Launch& launch = sequence_.launches[i];
      const SeparableRule* rule = rule_of(launch, true);
      if (rule != nullptr && rule->fits(DescribedLaunch(launch).context())) count += fuse(*rule, i);
    }
    return count;
  }

 private:
  static const SeparableRule* rule_of(const Launch& launch, bool depthwise) {
    const Fusion* fusion = fusion_of(launch);
    return fusion != nullptr && fusion->is_depthwise == depthwise && launch.outputs.size() == 1 ? fusion->separable
                                                                                                : nullptr;
  }

  static bool is_small(const SeparableRule& rule, const Tensor& tensor) {
    return static_cast<std::int64_t>(tensor.desc.byte_count()) < rule.min_bytes;
  }

  bool fuse(const SeparableRule& rule, std::size_t i) {
    Launch& depthwise = sequence_.launches[i];
    Launch* expand = maker_of(depthwise.inputs[0]);
    if (expand != nullptr &&
        (rule_of(*expand, false) != &rule || !rule.can_expand(DescribedLaunch(*expand).context()) ||
         is_overwritten(sequence_, *expand, i)))
      expand = nullptr;
    Launch* project = reader_of(depthwise.outputs[0]);
    if (project != nullptr &&
        (rule_of(*project, false) != &rule || !rule.can_project(DescribedLaunch(*project).context()) ||
         is_overwritten(sequence_, depthwise, index_of(*project)) ||
         (expand != nullptr && is_overwritten(sequence_, *expand, index_of(*project)))))
      project = nullptr;
    bool by_panels = false;
    if ((expand == nullptr || is_small(rule, expand->outputs[0])) &&
        (project == nullptr || is_small(rule, depthwise.outputs[0]))) {
      by_panels = expand != nullptr && rule.expands_by_panels != nullptr &&
                  rule.expands_by_panels(DescribedLaunch(*expand).context(), threads_);
      if (!by_panels) return false;
      project = nullptr;
    } else if (expand != nullptr && rule.repeats_much(DescribedLaunch(depthwise).context(), threads_)) {
      if (rule.keep_sums != nullptr) rule.keep_sums(expand->attrs);
      expand = nullptr;
      if (project == nullptr) return false;
    }
    write(rule, expand, depthwise, project, by_panels);
    return true;
  }

  // Writes the fused launch in the position of its last part.
  void write(const SeparableRule& rule, Launch* expand, Launch& depthwise, Launch* project, bool by_panels) {
    Launch fused = project != nullptr ? *project : depthwise;
    std::optional<DescribedLaunch> before, after;
    if (expand != nullptr) before.emplace(*expand);
    if (project != nullptr) after.emplace(*project);
    fused.attrs = rule.attrs(before ? &before->context() : nullptr, DescribedLaunch(depthwise).context(),
                             after ? &after->context() : nullptr);
    fused.kernel = by_panels ? rule.kernel_by_panels : rule.kernel;
    fused.inputs = {expand != nullptr ? expand->inputs[0] : depthwise.inputs[0]};
    for (const Launch* part : {static_cast<const Launch*>(expand), static_cast<const Launch*>(&depthwise),
                               static_cast<const Launch*>(project)})
      if (part != nullptr) fused.inputs.insert(fused.inputs.end(), part->inputs.begin() + 1, part->inputs.end());
    fused.inplace = 0;
    fused.serial = false;
    const auto scratch_bytes = by_panels ? rule.scratch_bytes_by_panels : rule.scratch_bytes;
    fused.scratch_bytes = scratch_bytes(fused.inputs[0].desc, fused.outputs[0].desc, fused.attrs, threads_);
    Buffer scratch;
    scratch.bytes = fused.scratch_bytes;
    fused.scratch = static_cast<BufferId>(sequence_.buffers.size());
    sequence_.buffers.push_back(scratch);
    if (expand != nullptr) expand->outputs.clear();
    depthwise.outputs.clear();
    (project != nullptr ? *project : depthwise) = std::move(fused);
  }

  std::size_t index_of(const Launch& launch) const {
    return static_cast<std::size_t>(&launch - sequence_.launches.data());
  }

  // The launch that wrote all of a tensor, if nothing else reads it.
  Launch* maker_of(const Tensor& tensor) {
    const BufferUses& uses = uses_[tensor.buffer];
    if (!between_two(tensor, uses)) return nullptr;
    Launch& launch = sequence_.launches[uses.writer];
    return launch.outputs.size() == 1 && same_tensor(launch.outputs[0], tensor) ? &launch : nullptr;
  }
  Launch* reader_of(const Tensor& tensor) {
    const BufferUses& uses = uses_[tensor.buffer];
    if (!between_two(tensor, uses)) return nullptr;
    Launch& launch = sequence_.launches[uses.reader];
    return !launch.inputs.empty() && same_tensor(launch.inputs[0], tensor) ? &launch : nullptr;
  }
  bool between_two(const Tensor& tensor, const BufferUses& uses) const {
    return sequence_.buffers[tensor.buffer].memory == MemoryKind::arena && uses.reads == 1 && uses.writes == 1;
  }

  LaunchSequence& sequence_;
  const int threads_;
  const std::vector<BufferUses> uses_;
};

}  // namespace

std::size_t fuse_separable(LaunchSequence& sequence, int threads) { return SeparableFuser(sequence, threads).run(); }

}  // namespace graft
