#include <cstring>
#include <string>

#include "kernel/index/index.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Each task's count has its own cache line, to avoid false sharing.
constexpr i64 kCountsPerLine = 8;

template <typename T>
void select(const T* self, const std::uint8_t* mask, const T* source, T* to, i64 count) {
  for (i64 i = 0; i < count; ++i) to[i] = mask[i] != 0 ? *source++ : self[i];
}

// The first phase counts each task's true elements, the second copies.
void masked_scatter(const KernelContext& ctx) noexcept {
  const auto [first, last] = element_range(ctx, ctx.out().numel());
  const i64 begin = first, end = last;  // older compilers capture no structured bindings
  const std::uint8_t* mask = ctx.input<std::uint8_t>(1);
  i64* counts = reinterpret_cast<i64*>(ctx.scratch_bytes);
  if (ctx.phase == 0) {
    i64 count = 0;
    for (i64 i = begin; i < end; ++i) count += mask[i] != 0 ? 1 : 0;
    counts[ctx.task * kCountsPerLine] = count;
    return;
  }
  i64 before = 0, all = 0;
  for (int task = 0; task < ctx.tasks; ++task) {
    if (task == ctx.task) before = all;
    all += counts[task * kCountsPerLine];
  }
  const i64 there = ctx.in(2).numel();
  if (all > there || (ctx.attrs<MaskedScatterAttrs>().exact && all != there)) {
    if (ctx.task == 0) ctx.fail("the mask selects ", all, " elements, but source has ", there);
    return;
  }
  if (begin >= end) return;
  const auto run = [&]<typename T>(T) {
    select(ctx.input<T>(0) + begin, mask + begin, ctx.input<T>(2) + before, ctx.output<T>() + begin, end - begin);
  };
  switch (byte_size(ctx.out().dtype)) {
    case 1:
      return run(std::uint8_t{});
    case 2:
      return run(std::uint16_t{});
    case 4:
      return run(std::uint32_t{});
    default:
      return run(std::uint64_t{});
  }
}

}  // namespace

std::int64_t masked_scatter_scratch_bytes(int max_threads) {
  return max_threads * kCountsPerLine * static_cast<i64>(sizeof(i64));
}

const Kernel kMaskedScatter{"masked_scatter", masked_scatter, kMinParallelElements,
                            [](const KernelContext&) noexcept { return 2; }};

}  // namespace graft
