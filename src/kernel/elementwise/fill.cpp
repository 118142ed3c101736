#include "kernel/elementwise/elementwise.h"
#include "kernel/strided.h"

namespace graft {
namespace {

void run_fill(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<FillAttrs>();
  BlockJob job;
  job.output_class = block_class(ctx.out().dtype);
  job.input_class[0] = job.output_class;
  job.immediate_mask = 1;
  // Boolean blocks are set by either member, so only the one that matters for the dtype is set.
  if (is_float(ctx.out().dtype)) {
    job.immediates[0].f = attrs.f;
  } else {
    job.immediates[0].i = attrs.i;
  }
  run_blocks(ctx, job);
}

void run_arange(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ArangeAttrs>();
  const TensorDesc& out = ctx.out();
  const auto [begin, end] = element_range(ctx, out.numel());
  if (begin == end) return;
  const bool real = is_float(out.dtype);
  const simd::BlockClass c = real ? simd::BlockClass::f64 : simd::BlockClass::i64;
  const simd::StoreFn store = simd::elementwise().convert->store[static_cast<int>(c)][static_cast<int>(out.dtype)];
  const std::int64_t stride = out.strides[0] * static_cast<std::int64_t>(byte_size(out.dtype));
  for (std::int64_t p = begin; p < end; p += kBlock) {
    const std::int64_t n = end - p < kBlock ? end - p : kBlock;
    double reals[kBlock];
    std::int64_t integers[kBlock];
    for (std::int64_t i = 0; i < n; ++i) {
      // Unsigned: wraps like a narrower output.
      integers[i] =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(attrs.start.i) +
                                    static_cast<std::uint64_t>(p + i) * static_cast<std::uint64_t>(attrs.step.i));
      reals[i] = attrs.start.f + static_cast<double>(p + i) * attrs.step.f;
    }
    store(real ? static_cast<const void*>(reals) : integers, stride, n, ctx.output<std::byte>() + p * stride);
  }
}

}  // namespace

const Kernel kFill{"fill", run_fill, kMinParallelElements};
const Kernel kArange{"arange", run_arange, kMinParallelElements};

}  // namespace graft
