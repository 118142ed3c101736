#include <algorithm>

#include "kernel/elementwise/elementwise.h"
#include "kernel/fusion.h"
#include "kernel/strided.h"

namespace graft {
namespace {

// Rows of at least this many bytes are copied with memcpy; shorter ones element by element or in tiles.
constexpr std::int64_t kRowBytes = 16;
// Side of the square tiles of a transposing copy: 32 elements of 4 bytes are two cache lines.
constexpr std::int64_t kTile = 32;

template <typename T>
void copy_strided(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                  std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
    from += from_stride;
    to += to_stride;
  }
}

template <typename T>
void copy_rows(const KernelContext& ctx, const Walk& walk) {
  const auto [begin, end] = element_range(ctx, walk.total);
  if (begin == end) return;
  const std::int64_t to_stride = walk.inner_stride(0);
  const std::int64_t from_stride = walk.inner_stride(1);
  const bool runs = to_stride == sizeof(T) && from_stride == sizeof(T);
  std::byte* to = ctx.output<std::byte>();
  const std::byte* from = ctx.input<std::byte>(0);
  Cursor cursor(walk);
  cursor.seek(begin);
  for (std::int64_t p = begin; p < end;) {
    const std::int64_t n = std::min(end - p, cursor.row_left());
    if (runs && n * static_cast<std::int64_t>(sizeof(T)) >= kRowBytes) {
      std::memcpy(to + cursor.offset(0), from + cursor.offset(1), static_cast<std::size_t>(n) * sizeof(T));
    } else {
      copy_strided<T>(from + cursor.offset(1), from_stride, to + cursor.offset(0), to_stride, n);
    }
    cursor.advance(n);
    p += n;
  }
}

// The dimension along which the input is contiguous while the output is contiguous along the last one; -1 when the copy
// is not a transposition worth tiling.
int transposed_dim(const Walk& walk, std::int64_t element_bytes) {
  if (walk.inner_stride(0) != element_bytes || walk.inner_stride(1) == element_bytes) return -1;
  if (walk.inner_stride(1) == 0 || walk.inner() < 4) return -1;
  for (int d = 0; d < walk.rank - 1; ++d)
    if (walk.stride(1, d) == element_bytes && walk.sizes[static_cast<std::size_t>(d)] >= 4) return d;
  return -1;
}

template <typename T>
void copy_transposed(const KernelContext& ctx, Walk walk, int dim) {
  // Move `dim` next to the last dimension; the others are the outer loops.
  const auto d0 = static_cast<std::size_t>(dim);
  const auto last = static_cast<std::size_t>(walk.rank - 2);
  std::rotate(walk.sizes.begin() + d0, walk.sizes.begin() + d0 + 1, walk.sizes.begin() + last + 1);
  for (std::size_t k = 0; k < 2; ++k)
    std::rotate(walk.strides[k].begin() + d0, walk.strides[k].begin() + d0 + 1, walk.strides[k].begin() + last + 1);
  const std::int64_t rows = walk.sizes[last];
  const std::int64_t columns = walk.inner();
  const std::int64_t to_row = walk.stride(0, walk.rank - 2);
  const std::int64_t from_column = walk.inner_stride(1);
  const std::int64_t row_tiles = (rows + kTile - 1) / kTile;
  const std::int64_t column_tiles = (columns + kTile - 1) / kTile;
  const std::int64_t tiles = walk.total / (rows * columns) * row_tiles * column_tiles;
  const KernelContext::Range range = ctx.range(tiles);

  Cursor cursor(walk);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t r0 = t / column_tiles % row_tiles * kTile;
    const std::int64_t c0 = t % column_tiles * kTile;
    cursor.seek(t / (row_tiles * column_tiles) * rows * columns + r0 * columns + c0);
    const std::int64_t r1 = std::min(kTile, rows - r0);
    const std::int64_t c1 = std::min(kTile, columns - c0);
    const std::byte* from = ctx.input<std::byte>(0) + cursor.offset(1);
    std::byte* to = ctx.output<std::byte>() + cursor.offset(0);
    for (std::int64_t r = 0; r < r1; ++r) {
      T* row = reinterpret_cast<T*>(to + r * to_row);
      const std::byte* column = from + r * static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t c = 0; c < c1; ++c) row[c] = *reinterpret_cast<const T*>(column + c * from_column);
    }
  }
}

template <typename T>
void copy_same(const KernelContext& ctx, const Walk& walk) {
  if (const int dim = transposed_dim(walk, sizeof(T)); dim >= 0) {
    copy_transposed<T>(ctx, walk, dim);
  } else {
    copy_rows<T>(ctx, walk);
  }
}

void run_copy(const KernelContext& ctx) noexcept {
  const DType from = ctx.in(0).dtype;
  const DType to = ctx.out().dtype;
  if (from != to) {
    BlockJob job;
    job.output_class = conversion_class(from, to);
    job.input_class[0] = job.output_class;
    run_blocks(ctx, job);
    return;
  }
  if (ctx.inputs[0] == ctx.outputs[0] && ctx.in(0).shape == ctx.out().shape && ctx.in(0).strides == ctx.out().strides)
    return;
  const TensorDesc* descs[] = {&ctx.out(), &ctx.in(0)};
  const Walk walk = make_walk(descs);
  if (walk.total == 0) return;
  switch (byte_size(to)) {
    case 1:
      return copy_same<std::uint8_t>(ctx, walk);
    case 2:
      return copy_same<std::uint16_t>(ctx, walk);
    case 4:
      return copy_same<std::uint32_t>(ctx, walk);
    default:
      return copy_same<std::uint64_t>(ctx, walk);
  }
}

// A conversion to another dtype that keeps the order of elements can be a step of a chain.
bool what_of(const KernelContext& ctx, ElementwiseAttrs& what) {
  const TensorDesc &from = ctx.in(0), &to = ctx.out();
  if (from.dtype == to.dtype || from.shape != to.shape || from.strides != to.strides) return false;
  what = {};
  what.op = simd::ElementwiseOp::identity;
  what.compute = conversion_class(from.dtype, to.dtype);
  return true;
}

constexpr Fusion kFusion = {.elementwise = what_of};

}  // namespace

const Kernel kCopy{.name = "copy", .run = run_copy, .parallel_from = kMinParallelElements, .fusion = &kFusion};

}  // namespace graft
