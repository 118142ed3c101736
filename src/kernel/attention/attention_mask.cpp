#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/attention/attention.h"
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/strided.h"

namespace graft {
namespace {

// One row of the mask: what is added to the scores, and whether any key is seen.
bool widen(const TensorDesc& desc, const std::byte* from, simd::LoadFn load, float* to) {
  const int last = desc.rank() - 1;
  const std::int64_t n = desc.shape[last];
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  const auto element = static_cast<std::int64_t>(byte_size(desc.dtype));
  load(from, desc.strides[static_cast<std::size_t>(last)] * element, n, to);
  if (desc.dtype == DType::b8)
    for (std::int64_t i = 0; i < n; ++i) to[i] = to[i] != 0 ? 0.f : kUnseen;
  return std::any_of(to, to + n, [](float v) { return v != kUnseen; });
}

void run(const KernelContext& ctx) noexcept {
  const TensorDesc& mask = ctx.in(0);
  const int rank = mask.rank();
  const std::int64_t keys = mask.shape[rank - 1];
  const auto element = static_cast<std::int64_t>(byte_size(mask.dtype));
  const simd::LoadFn load =
      simd::elementwise(simd::Isa::baseline)
          .convert->load[static_cast<std::size_t>(simd::BlockClass::f32)][static_cast<std::size_t>(mask.dtype)];
  const auto [begin, end] = ctx.range(ctx.out(1).numel());
  for (std::int64_t row = begin; row < end; ++row) {
    std::int64_t offset = 0;
    std::int64_t rest = row;
    for (int d = rank - 2; d >= 0; --d) {
      offset += rest % mask.shape[d] * mask.strides[static_cast<std::size_t>(d)] * element;
      rest /= mask.shape[d];
    }
    float* to = ctx.output<float>() + row * keys;
    const bool seen = widen(mask, ctx.input<std::byte>(0) + offset, load, to);
    if (!seen) std::fill(to, to + keys, 0.f);
    ctx.output<float>(1)[row] = seen ? 1.f : 0.f;
  }
}

}  // namespace

const Kernel kAttentionMask{"attention_mask", run, kMinParallelElements};

}  // namespace graft
