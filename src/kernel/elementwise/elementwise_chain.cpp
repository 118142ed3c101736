#include <algorithm>
#include <cstring>
#include <span>

#include "kernel/elementwise/elementwise.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

constexpr int kMaxStepOperands = 3;

BlockClass operand_class(const ElementwiseAttrs& what, int k) {
  return what.op == ElementwiseOp::where && k == 0 ? BlockClass::b8 : what.compute;
}
BlockClass result_class(const ElementwiseAttrs& what) {
  return simd::gives_bool(what.op) ? BlockClass::b8 : what.compute;
}

// Runs the steps of a chain on one block; each result is kept in a register (a block) as elements of its dtype.
class Chain final : public BlockProgram {
 public:
  // `most`: elements of the largest block.
  Chain(const ElementwiseChainAttrs& attrs, std::int64_t most) : steps_(attrs.step.data(), at(attrs.steps)) {
    int immediates = 0;
    std::array<int, kMaxChainSteps> last_reader{};
    for (int s = 0; s < attrs.steps; ++s) {
      const ElementwiseAttrs& what = steps_[at(s)].what;
      function_[at(s)] = simd::elementwise().function(what.compute, what.op);
      for (int k = 0; k < simd::operand_count(what.op); ++k) {
        if (is_immediate(what, k)) {
          immediate_of_[at(s)][at(k)] = immediates;
          fill_block(operand_class(what, k), what.immediates[k], most, immediates_[immediates++]);
        } else if (const int from = steps_[at(s)].from[at(k)]; from >= kMaxChainInputs) {
          last_reader[at(from - kMaxChainInputs)] = s;
        }
      }
    }
    // A register is reused after the step that reads it last.
    for (int s = 0; s < attrs.steps; ++s) {
      int free = 0;
      const auto taken = [&](int earlier) {
        return register_of_[at(earlier)] == free && last_reader[at(earlier)] >= s;
      };
      for (int earlier = 0; earlier < s; ++earlier) {
        if (!taken(earlier)) continue;
        ++free;
        earlier = -1;
      }
      register_of_[at(s)] = free;
    }
  }

  // False when a step has no function or no conversion for its operands or result.
  bool valid() const {
    const simd::ConvertFns& convert = *simd::elementwise().convert;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const ElementwiseAttrs& what = steps_[s].what;
      if (function_[s] == nullptr || store_of(convert, what, steps_[s].result) == nullptr) return false;
      for (int k = 0; k < simd::operand_count(what.op); ++k) {
        const int from = steps_[s].from[at(k)];
        if (is_immediate(what, k) || from < kMaxChainInputs) continue;
        if (load_of(convert, operand_class(what, k), steps_[at(from - kMaxChainInputs)].result) == nullptr)
          return false;
      }
    }
    return true;
  }

  int run(const void* const* in, void* out, std::int64_t n) noexcept override {
    const simd::ConvertFns& convert = *simd::elementwise().convert;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const ChainStep& step = steps_[s];
      const void* operands[kMaxStepOperands] = {};
      for (int k = 0; k < simd::operand_count(step.what.op); ++k) operands[k] = operand(convert, step, s, k, in, n);
      const bool last = s + 1 == steps_.size();
      void* kept = registers_[register_of_[s]].bytes;
      // The result of the last step is converted by the caller.
      const bool same = last || step.result == block_dtype(result_class(step.what));
      void* result = last ? out : same ? kept : unrounded_.bytes;
      if (const int status = function_[s](operands, result, n, step.what.params); status != simd::kBlockOk)
        return status;
      if (!same)
        store_of(convert, step.what, step.result)(result, static_cast<std::int64_t>(byte_size(step.result)), n, kept);
    }
    return simd::kBlockOk;
  }

 private:
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static bool is_immediate(const ElementwiseAttrs& what, int k) { return (what.immediate_mask >> k & 1u) != 0; }
  static simd::StoreFn store_of(const simd::ConvertFns& convert, const ElementwiseAttrs& what, DType to) {
    return convert.store[static_cast<int>(result_class(what))][static_cast<int>(to)];
  }
  static simd::LoadFn load_of(const simd::ConvertFns& convert, BlockClass to, DType from) {
    return convert.load[static_cast<int>(to)][static_cast<int>(from)];
  }

  const void* operand(const simd::ConvertFns& convert, const ChainStep& step, std::size_t s, int k,
                      const void* const* in, std::int64_t n) {
    if (is_immediate(step.what, k)) return immediates_[immediate_of_[s][at(k)]].bytes;
    const int from = step.from[at(k)];
    if (from < kMaxChainInputs) return in[from];
    const auto earlier = at(from - kMaxChainInputs);
    const DType dtype = steps_[earlier].result;
    const std::byte* kept = registers_[register_of_[earlier]].bytes;
    const BlockClass wanted = operand_class(step.what, k);
    if (dtype == block_dtype(wanted)) return kept;
    load_of(convert, wanted, dtype)(kept, static_cast<std::int64_t>(byte_size(dtype)), n, converted_[k].bytes);
    return converted_[k].bytes;
  }

  std::span<const ChainStep> steps_;
  simd::BlockFn function_[kMaxChainSteps] = {};
  std::array<int, kMaxChainSteps> register_of_{};
  std::array<std::array<int, kMaxStepOperands>, kMaxChainSteps> immediate_of_{};
  Block registers_[kMaxChainSteps];
  Block converted_[kMaxStepOperands];  // converted operands of a step
  Block unrounded_;                    // the result of a step before conversion to its dtype
  Block immediates_[kMaxChainImmediates];
};

void run_chain(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ElementwiseChainAttrs>();
  const auto [begin, end] = element_range(ctx, ctx.out().numel());
  if (begin == end) return;
  Chain chain(attrs, std::min(end - begin, kBlock));
  if (!chain.valid()) return ctx.fail("chain: no function of these classes");
  BlockJob job;
  job.program = &chain;
  job.inputs = attrs.inputs;
  for (int s = 0; s < attrs.steps; ++s) {
    const ChainStep& step = attrs.step[static_cast<std::size_t>(s)];
    for (int k = 0; k < simd::operand_count(step.what.op); ++k) {
      const auto from = static_cast<std::size_t>(step.from[static_cast<std::size_t>(k)]);
      if ((step.what.immediate_mask >> k & 1u) == 0 && from < kMaxChainInputs)
        job.input_class[from] = operand_class(step.what, k);
    }
  }
  job.output_class = result_class(attrs.step[static_cast<std::size_t>(attrs.steps - 1)].what);
  run_or_fail(ctx, job);
}

std::string explain_chain(const KernelContext& ctx) {
  return "operators whose results only the next one reads: " + chain_text(ctx.attrs<ElementwiseChainAttrs>());
}

}  // namespace

const Kernel kElementwiseChain{
    .name = "elementwise_chain", .run = run_chain, .explain = explain_chain, .label = [](const KernelContext& ctx) {
      return chain_text(ctx.attrs<ElementwiseChainAttrs>());
    }};

std::string chain_text(const ElementwiseChainAttrs& chain) {
  std::string text;
  for (int s = 0; s < chain.steps; ++s) {
    if (s > 0) text += ", ";
    text += simd::name(chain.step[static_cast<std::size_t>(s)].what.op);
  }
  return text;
}

}  // namespace graft
