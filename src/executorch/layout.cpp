#include "executorch/layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "graft/tensor.h"

namespace graft {
namespace {

using Strides = std::array<std::int64_t, kMaxRank>;

// Transposes two dimensions in square tiles: one is contiguous in the input, the other in the output.
template <typename T>
void copy_plane(const T* from, std::int64_t from_row, std::int64_t from_column, T* to, std::int64_t to_row,
                std::int64_t to_column, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kSquare = 16;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kSquare)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kSquare)
      for (std::int64_t r = r0; r < std::min(rows, r0 + kSquare); ++r)
        for (std::int64_t c = c0; c < std::min(columns, c0 + kSquare); ++c)
          to[r * to_row + c * to_column] = from[r * from_row + c * from_column];
}

// Element strides of row-major memory, and of memory in that order.
struct Layouts {
  Strides rows{}, ordered{};
  Layouts(std::span<const std::int64_t> sizes, std::span<const std::uint8_t> order) {
    std::int64_t step = 1;
    for (std::size_t d = sizes.size(); d-- > 0; step *= sizes[d]) rows[d] = step;
    step = 1;
    for (std::size_t i = sizes.size(); i-- > 0; step *= sizes[order[i]]) ordered[order[i]] = step;
  }
};

template <typename T>
void copy(const std::byte* from, const Strides& from_strides, std::byte* to, const Strides& to_strides,
          std::span<const std::int64_t> sizes, std::size_t row, std::size_t column) {
  std::int64_t planes = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (d != row && d != column) planes *= sizes[d];
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    std::int64_t from_at = 0, to_at = 0, rest = plane;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      if (d == row || d == column) continue;
      from_at += rest % sizes[d] * from_strides[d];
      to_at += rest % sizes[d] * to_strides[d];
      rest /= sizes[d];
    }
    copy_plane(reinterpret_cast<const T*>(from) + from_at, from_strides[row], from_strides[column],
               reinterpret_cast<T*>(to) + to_at, to_strides[row], to_strides[column], sizes[row], sizes[column]);
  }
}

void copy_any(const std::byte* from, const Strides& from_strides, std::byte* to, const Strides& to_strides,
              std::span<const std::int64_t> sizes, std::size_t row, std::size_t column, std::size_t size) {
  switch (size) {
    case 1:
      return copy<std::uint8_t>(from, from_strides, to, to_strides, sizes, row, column);
    case 2:
      return copy<std::uint16_t>(from, from_strides, to, to_strides, sizes, row, column);
    case 4:
      return copy<std::uint32_t>(from, from_strides, to, to_strides, sizes, row, column);
    default:
      return copy<std::uint64_t>(from, from_strides, to, to_strides, sizes, row, column);
  }
}

// The innermost dimension of each layout; they differ when the layouts do.
std::pair<std::size_t, std::size_t> innermost(std::span<const std::uint8_t> order) {
  const std::size_t last = order.size() - 1;
  return order[last] != last ? std::pair<std::size_t, std::size_t>(order[last], last)
                             : std::pair<std::size_t, std::size_t>(order[last - 1], last);
}

}  // namespace

bool row_major(std::span<const std::uint8_t> order) {
  for (std::size_t d = 0; d < order.size(); ++d)
    if (order[d] != d) return false;
  return true;
}

void to_row_major(const std::byte* ordered, std::span<const std::int64_t> sizes, std::span<const std::uint8_t> order,
                  std::size_t size, std::byte* rows) {
  const Layouts layouts(sizes, order);
  const auto [row, column] = innermost(order);
  copy_any(ordered, layouts.ordered, rows, layouts.rows, sizes, row, column, size);
}

void from_row_major(const std::byte* rows, std::span<const std::int64_t> sizes, std::span<const std::uint8_t> order,
                    std::size_t size, std::byte* ordered) {
  const Layouts layouts(sizes, order);
  const auto [row, column] = innermost(order);
  copy_any(rows, layouts.rows, ordered, layouts.ordered, sizes, row, column, size);
}

}  // namespace graft
