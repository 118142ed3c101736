#include <string>

#include "kernel/index/index.h"
#include "kernel/strided.h"

namespace graft {
namespace {

template <typename T>
void check(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<CheckIndexAttrs>();
  const T* from = ctx.input<T>(0);
  std::int32_t* to = ctx.output<std::int32_t>();
  const auto [begin, end] = ctx.range(ctx.out().numel());
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t index = attrs.wrap && from[i] < 0 ? from[i] + attrs.size : from[i];
    if (index < 0 || index >= attrs.size) {
      ctx.fail("index ", from[i], " is out of range for dimension ", attrs.dim, " of size ", attrs.size);
      return;
    }
    to[i] = static_cast<std::int32_t>(index);
  }
}

void run(const KernelContext& ctx) noexcept {
  if (ctx.in(0).dtype == DType::i32) return check<std::int32_t>(ctx);
  check<std::int64_t>(ctx);
}

}  // namespace

const Kernel kCheckIndex{"check_index", run, kMinParallelElements};

}  // namespace graft
