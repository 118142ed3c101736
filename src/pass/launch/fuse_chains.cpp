#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/elementwise/elementwise.h"
#include "kernel/fusion.h"
#include "kernel/strided.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

// A chain under construction: what a launch computes from its inputs.
struct Chain {
  struct Input {
    Tensor tensor;
    BlockClass read_as;
  };
  std::vector<ChainStep> steps;
  std::vector<Input> inputs;

  // The index of an input; a tensor read in one way gets one.
  std::int32_t add_input(const Tensor& tensor, BlockClass read_as) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].read_as == read_as && same_tensor(inputs[i].tensor, tensor)) return static_cast<std::int32_t>(i);
    inputs.push_back({tensor, read_as});
    return static_cast<std::int32_t>(inputs.size() - 1);
  }

  template <typename Visit>
  static void for_each_operand(ChainStep& step, Visit&& visit) {
    for (int k = 0; k < simd::operand_count(step.what.op); ++k)
      if ((step.what.immediate_mask >> k & 1u) == 0) visit(k, step.from[static_cast<std::size_t>(k)]);
  }

  int immediates() const {
    int count = 0;
    for (const ChainStep& step : steps)
      for (int k = 0; k < simd::operand_count(step.what.op); ++k)
        count += static_cast<int>(step.what.immediate_mask >> k & 1u);
    return count;
  }
  bool fits() const {
    return steps.size() <= kMaxChainSteps && inputs.size() <= kMaxChainInputs && immediates() <= kMaxChainImmediates;
  }
};

// What an elementwise launch or a conversion computes.
std::optional<ElementwiseAttrs> what_of(const Launch& launch) {
  const Fusion* fusion = fusion_of(launch);
  if (fusion == nullptr || fusion->elementwise == nullptr || launch.outputs.size() != 1) return std::nullopt;
  ElementwiseAttrs what;
  if (!fusion->elementwise(DescribedLaunch(launch).context(), what)) return std::nullopt;
  return what;
}

class ChainFuser {
 public:
  explicit ChainFuser(LaunchSequence& sequence)
      : sequence_(sequence), chains_(sequence.launches.size()), uses_(sequence.buffers.size()) {
    for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
      const Launch& launch = sequence.launches[i];
      chains_[i] = chain_of(launch);
      if (chains_[i]) {
        for (const Chain::Input& input : chains_[i]->inputs) ++uses_[input.tensor.buffer].reads;
      } else {
        for (const Tensor& t : launch.inputs) ++uses_[t.buffer].reads;
      }
      for (const Tensor& t : launch.outputs) {
        ++uses_[t.buffer].writes;
        uses_[t.buffer].writer = i;
      }
    }
    for (const UndoLaunch& undo : sequence.undo)
      for (const Tensor& t : undo.launch.inputs) ++uses_[t.buffer].reads;
  }

  std::size_t run() {
    std::size_t count = 0;
    for (std::size_t i = 0; i < sequence_.launches.size(); ++i) {
      if (!chains_[i]) continue;
      while (grow(i)) ++count;
      if (chains_[i]->steps.size() > 1) write(i);
    }
    return count;
  }

 private:
  struct Uses {
    std::size_t reads = 0;   // inputs of launches
    std::size_t writes = 0;  // outputs of launches
    std::size_t writer = 0;  // the last launch that writes it
  };

  static std::optional<Chain> chain_of(const Launch& launch) {
    const std::optional<ElementwiseAttrs> what = what_of(launch);
    if (!what) return std::nullopt;
    Chain chain;
    ChainStep step;
    step.what = *what;
    step.result = launch.outputs[0].dtype();
    std::size_t next = 0;
    Chain::for_each_operand(step, [&](int k, std::int32_t& from) {
      const bool condition = what->op == ElementwiseOp::where && k == 0;
      from = chain.add_input(launch.inputs[next++], condition ? BlockClass::b8 : what->compute);
    });
    chain.steps.push_back(step);
    return chain;
  }

  // Fuses the launch that makes one of the inputs of launch i into it.
  bool grow(std::size_t i) {
    for (std::size_t k = 0; k < chains_[i]->inputs.size(); ++k) {
      const std::optional<std::size_t> maker = maker_for(i, chains_[i]->inputs[k].tensor);
      if (maker && take(*maker, i, k)) return true;
    }
    return false;
  }

  // The elementwise launch that writes `tensor` for launch i alone and could run at its position.
  std::optional<std::size_t> maker_for(std::size_t i, const Tensor& tensor) const {
    const Uses& uses = uses_[tensor.buffer];
    if (sequence_.buffers[tensor.buffer].memory != MemoryKind::arena || uses.reads != 1 || uses.writes != 1)
      return std::nullopt;
    const std::size_t maker = uses.writer;
    if (maker >= i || !chains_[maker]) return std::nullopt;
    // Launches that write states cannot fail and come last: do not fuse across that boundary.
    if ((maker < sequence_.commit_begin) != (i < sequence_.commit_begin)) return std::nullopt;
    const Tensor& made = sequence_.launches[maker].outputs[0];
    const Tensor& out = sequence_.launches[i].outputs[0];
    if (!same_tensor(made, tensor) || made.shape() != out.shape()) return std::nullopt;
    for (const Chain::Input& input : chains_[maker]->inputs) {
      const BufferId buffer = input.tensor.buffer;
      if (buffer == out.buffer) return std::nullopt;
      if (uses_[buffer].writes == 0) continue;
      for (std::size_t between = maker + 1; between < i; ++between)
        for (const Tensor& written : sequence_.launches[between].outputs)
          if (written.buffer == buffer) return std::nullopt;
    }
    return maker;
  }

  bool take(std::size_t maker, std::size_t i, std::size_t input) {
    const Chain& first = *chains_[maker];
    const Chain& then = *chains_[i];
    Chain joined = first;
    const auto made_by = kMaxChainInputs + static_cast<std::int32_t>(first.steps.size()) - 1;
    for (ChainStep step : then.steps) {
      Chain::for_each_operand(step, [&](int, std::int32_t& from) {
        if (from >= kMaxChainInputs) {
          from += static_cast<std::int32_t>(first.steps.size());
        } else if (static_cast<std::size_t>(from) == input) {
          from = made_by;
        } else {
          const Chain::Input& other = then.inputs[static_cast<std::size_t>(from)];
          from = joined.add_input(other.tensor, other.read_as);
        }
      });
      joined.steps.push_back(step);
    }
    if (!joined.fits()) return false;
    for (const Chain* part : {&first, &then})
      for (const Chain::Input& gone : part->inputs) --uses_[gone.tensor.buffer].reads;
    for (const Chain::Input& kept : joined.inputs) ++uses_[kept.tensor.buffer].reads;
    chains_[i] = std::move(joined);
    chains_[maker].reset();
    sequence_.launches[maker].outputs.clear();
    return true;
  }

  void write(std::size_t i) {
    const Chain& chain = *chains_[i];
    Launch& launch = sequence_.launches[i];
    const Tensor& out = launch.outputs[0];
    ElementwiseChainAttrs attrs;
    attrs.inputs = static_cast<std::int32_t>(chain.inputs.size());
    attrs.steps = static_cast<std::int32_t>(chain.steps.size());
    std::copy(chain.steps.begin(), chain.steps.end(), attrs.step.begin());
    launch.kernel = &kElementwiseChain;
    launch.attrs = bytes_of_attrs(attrs);
    launch.inputs.clear();
    launch.inplace = 0;
    for (const Chain::Input& input : chain.inputs) {
      const Tensor& in = input.tensor;
      if (in.dtype() == out.dtype() && in.shape() == out.shape() && in.desc.strides == out.desc.strides)
        launch.inplace |= 1u << launch.inputs.size();
      launch.inputs.push_back(in);
    }
    launch.serial = out.numel() * static_cast<std::int64_t>(attrs.steps) < kMinParallelElements;
  }

  LaunchSequence& sequence_;
  std::vector<std::optional<Chain>> chains_;  // by launch
  std::vector<Uses> uses_;
};

}  // namespace

std::size_t fuse_chains(LaunchSequence& sequence) { return ChainFuser(sequence).run(); }

}  // namespace graft
