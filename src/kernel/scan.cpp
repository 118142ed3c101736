#include <algorithm>

#include "kernel/reduce.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using Int = std::int64_t;
using simd::BlockClass;

// Lines along the scanned dimension that are worked on together, so that memory is walked along the others when those
// lie closer.
constexpr Int kLines = 64;

template <typename T>
void combine(ScanOp op, T* running, const T* x, Int n) {
  if constexpr (std::is_same_v<T, Int>) {
    for (Int j = 0; j < n; ++j) {
      const auto a = static_cast<std::uint64_t>(running[j]), b = static_cast<std::uint64_t>(x[j]);
      running[j] = static_cast<Int>(op == ScanOp::sum ? a + b : a * b);
    }
  } else {
    for (Int j = 0; j < n; ++j) running[j] = op == ScanOp::sum ? running[j] + x[j] : running[j] * x[j];
  }
}

template <typename T>
void scan_lines(const KernelContext& ctx, const ScanAttrs& attrs, BlockClass type) {
  const TensorDesc &from = ctx.in(0), &to = ctx.out();
  const auto dim = static_cast<std::size_t>(attrs.dim);
  const auto from_size = static_cast<Int>(byte_size(from.dtype)), to_size = static_cast<Int>(byte_size(to.dtype));
  const Int length = to.rank() > 0 ? to.shape[attrs.dim] : 1;
  const Int from_step = to.rank() > 0 ? from.strides[dim] * from_size : 0;
  const Int to_step = to.rank() > 0 ? to.strides[dim] * to_size : 0;
  // The lines: everything but the scanned dimension.
  TensorDesc to_lines = to, from_lines = from;
  if (to.rank() > 0) {
    to_lines.shape[attrs.dim] = from_lines.shape[attrs.dim] = 1;
  }
  const TensorDesc* operands[] = {&to_lines, &from_lines};
  const Walk walk = make_walk(operands);
  if (walk.total == 0 || length == 0) return;

  const simd::ConvertFns& convert = *simd::elementwise().convert;
  const simd::LoadFn load = convert.load[static_cast<int>(type)][static_cast<int>(from.dtype)];
  const simd::StoreFn store = convert.store[static_cast<int>(type)][static_cast<int>(to.dtype)];
  const KernelContext::Range share = ctx.share(walk.total);
  Cursor cursor(walk);
  if (share.begin < share.end) cursor.seek(share.begin);
  const T start = attrs.op == ScanOp::sum ? T(0) : T(1);
  for (Int at = share.begin; at < share.end;) {
    const Int n = std::min({cursor.row_left(), share.end - at, kLines});
    const std::byte* x = ctx.input<std::byte>(0) + cursor.offset(1);
    std::byte* y = ctx.output<std::byte>() + cursor.offset(0);
    T running[kLines], block[kLines];
    std::fill(running, running + n, start);
    for (Int i = 0; i < length; ++i) {
      load(x + i * from_step, walk.inner_stride(1), n, block);
      combine(attrs.op, running, block, n);
      store(running, walk.inner_stride(0), n, y + i * to_step);
    }
    cursor.advance(n);
    at += n;
  }
}

void scan(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ScanAttrs>();
  if (is_float(ctx.out().dtype)) return scan_lines<double>(ctx, attrs, BlockClass::f64);
  scan_lines<Int>(ctx, attrs, BlockClass::i64);
}

}  // namespace

const Kernel kScan{"scan", scan, kMinParallelElements};

}  // namespace graft
