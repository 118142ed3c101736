#include <optional>
#include <utility>
#include <vector>

#include "kernel/fusion.h"
#include "lowering/lowering.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

bool is_whole(const Tensor& tensor, const Buffer& buffer) {
  return tensor.offset == 0 && tensor.dtype() == DType::f32 && is_dense(tensor.desc) &&
         static_cast<std::int64_t>(tensor.desc.byte_count()) == buffer.bytes;
}

bool same_layout(const TensorDesc& a, const TensorDesc& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape[d] != 1 && a.strides[static_cast<std::size_t>(d)] != b.strides[static_cast<std::size_t>(d)])
      return false;
  return true;
}

class Fuser {
 public:
  explicit Fuser(LaunchSequence& sequence) : sequence_(sequence), uses_(uses_of(sequence)) {}

  std::size_t run() {
    std::size_t count = 0;
    for (std::size_t i = 0; i < sequence_.launches.size(); ++i) count += add_residual(i) || add_epilogue(i);
    return count;
  }

 private:
  // The launch that wrote all of `from`, if only `to`'s launch reads it and both have the same layout: then it may
  // write `to` directly.
  Launch* writer_of(const Tensor& from, const Tensor& to) const {
    const BufferUses& sum = uses_[from.buffer];
    if (sequence_.buffers[from.buffer].memory != MemoryKind::arena || sum.reads != 1 || sum.writes != 1) return nullptr;
    const MemoryKind target = sequence_.buffers[to.buffer].memory;
    if ((target != MemoryKind::arena && target != MemoryKind::output) || uses_[to.buffer].writes != 1) return nullptr;
    Launch& launch = sequence_.launches[sum.writer];
    if (launch.outputs.size() != 1 || launch.outputs[0].buffer != from.buffer) return nullptr;
    const bool whole = is_whole(from, sequence_.buffers[from.buffer]) && is_whole(to, sequence_.buffers[to.buffer]) &&
                       is_whole(launch.outputs[0], sequence_.buffers[from.buffer]) && same_layout(from.desc, to.desc);
    return whole ? &launch : nullptr;
  }

  bool add_epilogue(std::size_t i) {
    Launch& launch = sequence_.launches[i];
    const Fusion* fusion = fusion_of(launch);
    if (fusion == nullptr || fusion->as_epilogue == nullptr || launch.inputs.size() != 1) return false;
    const std::optional<Epilogue> epilogue = fusion->as_epilogue(launch.attrs);
    if (!epilogue) return false;
    Launch* sum = writer_of(launch.inputs[0], launch.outputs[0]);
    const Fusion* takes = sum != nullptr ? fusion_of(*sum) : nullptr;
    if (takes == nullptr || takes->take_epilogue == nullptr || !takes->take_epilogue(sum->attrs, *epilogue))
      return false;
    const BufferId to = launch.outputs[0].buffer;
    uses_[to].writer = static_cast<std::size_t>(sum - sequence_.launches.data());
    sum->outputs[0].buffer = to;
    launch.outputs.clear();
    return true;
  }

  // Moves the launch whose result is added to the position of the addition, where the other operand, its residual, is
  // ready.
  bool add_residual(std::size_t i) {
    Launch& launch = sequence_.launches[i];
    const Fusion* fusion = fusion_of(launch);
    if (fusion == nullptr || fusion->is_sum == nullptr || !fusion->is_sum(launch.attrs)) return false;
    if (launch.inputs[0].buffer == launch.inputs[1].buffer) return false;
    // Try the later of the two first: the other one is ready by then.
    std::size_t first = uses_[launch.inputs[0].buffer].writer > uses_[launch.inputs[1].buffer].writer ? 0 : 1;
    for (int tries = 0; tries < 2; ++tries, first = 1 - first) {
      Launch* sum = writer_of(launch.inputs[first], launch.outputs[0]);
      const Tensor other = launch.inputs[1 - first];
      const Fusion* takes = sum != nullptr ? fusion_of(*sum) : nullptr;
      if (takes == nullptr || takes->take_residual == nullptr) continue;
      AttrBytes attrs = sum->attrs;
      if (!same_layout(other.desc, launch.outputs[0].desc) || !takes->take_residual(attrs)) continue;
      if (is_overwritten(sequence_, *sum, i)) continue;
      Launch moved = *sum;
      moved.attrs = std::move(attrs);
      moved.inputs.push_back(other);
      moved.outputs[0].buffer = launch.outputs[0].buffer;
      sum->outputs.clear();
      launch = std::move(moved);
      return true;
    }
    return false;
  }

  LaunchSequence& sequence_;
  std::vector<BufferUses> uses_;
};

}  // namespace

std::size_t fuse_epilogues(LaunchSequence& sequence) { return Fuser(sequence).run(); }

}  // namespace graft
