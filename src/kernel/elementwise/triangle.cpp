#include "kernel/elementwise/triangle.h"

#include <algorithm>

#include "kernel/strided.h"

namespace graft {
namespace {

template <typename T>
void copy_or_zero(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                  std::int64_t columns, std::int64_t keep_begin, std::int64_t keep_end) {
  const T zero = 0;
  for (std::int64_t c = 0; c < columns; ++c) {
    const bool keep = c >= keep_begin && c < keep_end;
    std::memcpy(to + c * to_stride, keep ? static_cast<const void*>(from + c * from_stride) : &zero, sizeof(T));
  }
}

void triangle(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<TriangleAttrs>();
  const TensorDesc &x = ctx.in(0), &y = ctx.out();
  const int rank = y.rank();
  const auto size = static_cast<std::int64_t>(byte_size(y.dtype));
  const std::int64_t rows = y.shape[rank - 2], columns = y.shape[rank - 1];
  const std::int64_t total = columns > 0 ? y.numel() / columns : 0;  // rows of all matrices
  if (total == 0) return;
  const auto row_dim = static_cast<std::size_t>(rank - 2), column_dim = static_cast<std::size_t>(rank - 1);
  const KernelContext::Range range = ctx.range(total);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t row = at % rows;
    std::int64_t from = row * x.strides[row_dim], to = row * y.strides[row_dim], rest = at / rows;
    for (int d = rank - 3; d >= 0; --d) {
      from += rest % y.shape[d] * x.strides[static_cast<std::size_t>(d)];
      to += rest % y.shape[d] * y.strides[static_cast<std::size_t>(d)];
      rest /= y.shape[d];
    }
    // Column of the diagonal in this row, without overflow for any diagonal.
    const std::int64_t diagonal = std::clamp(attrs.diagonal, -rows - 1, columns + 1) + row;
    const std::int64_t begin = attrs.upper ? diagonal : 0, end = attrs.upper ? columns : diagonal + 1;
    const std::byte* in = ctx.input<std::byte>(0) + from * size;
    std::byte* out = ctx.output<std::byte>() + to * size;
    const std::int64_t in_stride = x.strides[column_dim] * size, out_stride = y.strides[column_dim] * size;
    switch (size) {
      case 1:
        copy_or_zero<std::uint8_t>(in, in_stride, out, out_stride, columns, begin, end);
        break;
      case 2:
        copy_or_zero<std::uint16_t>(in, in_stride, out, out_stride, columns, begin, end);
        break;
      case 4:
        copy_or_zero<std::uint32_t>(in, in_stride, out, out_stride, columns, begin, end);
        break;
      default:
        copy_or_zero<std::uint64_t>(in, in_stride, out, out_stride, columns, begin, end);
        break;
    }
  }
}

}  // namespace

const Kernel kTriangle{"triangle", triangle, kMinParallelElements};

}  // namespace graft
