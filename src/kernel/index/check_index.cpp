#include <algorithm>
#include <array>
#include <string>

#include "kernel/index/index.h"
#include "kernel/strided.h"

namespace graft {
namespace {

template <typename T>
void check(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<CheckIndexAttrs>();
  const TensorDesc rows(DType::i32, ctx.in(0).shape);  // of the first table
  const std::array<const TensorDesc*, 2> operands{&rows, &ctx.in(0)};
  const Walk walk = make_walk(operands);
  const auto* from = ctx.input<std::byte>(0);
  std::int32_t* to = ctx.output<std::int32_t>();
  Cursor cursor(walk);
  const auto [begin, end] = ctx.range(walk.total);
  if (begin < end) cursor.seek(begin);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t n = std::min(cursor.row_left(), end - i);
    const std::byte* row = from + cursor.offset(1);
    for (std::int64_t last = i + n; i < last; ++i, row += walk.inner_stride(1)) {
      const std::int64_t given = *reinterpret_cast<const T*>(row);
      const std::int64_t index = attrs.wrap && given < 0 ? given + attrs.size : given;
      if (index < 0 || index >= attrs.size) {
        ctx.fail("index ", given, " is out of range for dimension ", attrs.dim, " of size ", attrs.size);
        return;
      }
      for (std::int64_t table = 0; table < attrs.outer; ++table)
        to[table * walk.total + i] = static_cast<std::int32_t>(table * attrs.size + index);
    }
    cursor.advance(n);
  }
}

void run(const KernelContext& ctx) noexcept {
  if (ctx.in(0).dtype == DType::i32) return check<std::int32_t>(ctx);
  check<std::int64_t>(ctx);
}

}  // namespace

const Kernel kCheckIndex{"check_index", run, kMinParallelElements};

}  // namespace graft
