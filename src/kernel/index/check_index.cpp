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
  const std::int64_t count = ctx.in(0).numel();
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t given = from[i % count];
    const std::int64_t index = attrs.wrap && given < 0 ? given + attrs.size : given;
    if (index < 0 || index >= attrs.size) {
      ctx.fail("index ", given, " is out of range for dimension ", attrs.dim, " of size ", attrs.size);
      return;
    }
    to[i] = static_cast<std::int32_t>(i / count * attrs.size + index);
  }
}

void run(const KernelContext& ctx) noexcept {
  if (ctx.in(0).dtype == DType::i32) return check<std::int32_t>(ctx);
  check<std::int64_t>(ctx);
}

}  // namespace

const Kernel kCheckIndex{"check_index", run, kMinParallelElements};

}  // namespace graft
