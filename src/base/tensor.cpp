#include "graft/tensor.h"

#include <cstdint>

#include "base/check.h"
#include "base/rethrow.h"

namespace graft {

Shape::Shape(std::initializer_list<std::int64_t> sizes) try : Shape(std::span(sizes.begin(), sizes.size())) {
} catch (...) {
  rethrow_typed();
}

Shape::Shape(std::span<const std::int64_t> sizes) try {
  GRAFT_CHECK(InvalidArgument, sizes.size() <= static_cast<std::size_t>(kMaxRank), "a tensor has at most ", kMaxRank,
              " dimensions, got ", sizes.size());
  for (std::int64_t size : sizes) push_back(size);
} catch (...) {
  rethrow_typed();
}

void Shape::push_back(std::int64_t size) try {
  GRAFT_CHECK(InvalidArgument, rank_ < kMaxRank, "a tensor has at most ", kMaxRank, " dimensions");
  GRAFT_CHECK(InvalidArgument, size >= 0, "size of dimension ", rank_, " must not be negative, got ", size);
  sizes_[static_cast<std::size_t>(rank_++)] = size;
} catch (...) {
  rethrow_typed();
}

std::int64_t Shape::numel() const try {
  std::int64_t n = 1;
  for (std::int64_t size : sizes())
    GRAFT_CHECK(InvalidArgument, !__builtin_mul_overflow(n, size, &n), "number of elements of ", str(),
                " does not fit 64 bits");
  return n;
} catch (...) {
  rethrow_typed();
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int d = 0; d < rank_; ++d)
    if ((*this)[d] != other[d]) return false;
  return true;
}

std::string Shape::str() const try {
  std::string out = "[";
  for (int d = 0; d < rank_; ++d) out += (d ? ", " : "") + std::to_string((*this)[d]);
  return out + "]";
} catch (...) {
  rethrow_typed();
}

TensorDesc::TensorDesc(DType element, const Shape& sizes) try : dtype(element), shape(sizes) {
  std::int64_t stride = 1;
  bool fits = true;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    if (shape[d] > 0) fits = fits && !__builtin_mul_overflow(stride, shape[d], &stride);
  }
  const auto size = static_cast<std::int64_t>(byte_size(dtype));
  GRAFT_CHECK(InvalidArgument, fits && !__builtin_mul_overflow(stride, size, &stride), "the size of ", str(),
              " does not fit 64 bits");
} catch (...) {
  rethrow_typed();
}

std::size_t TensorDesc::byte_count() const try {
  std::size_t bytes = 0;
  GRAFT_CHECK(InvalidArgument, !__builtin_mul_overflow(numel(), byte_size(dtype), &bytes) && bytes <= PTRDIFF_MAX,
              "the size of ", str(), " does not fit 64 bits");
  return bytes;
} catch (...) {
  rethrow_typed();
}

bool TensorDesc::contiguous() const {
  std::int64_t expected = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] == 1) continue;
    if (strides[static_cast<std::size_t>(d)] != expected) return false;
    if (__builtin_mul_overflow(expected, shape[d], &expected)) return false;
  }
  return true;
}

std::string TensorDesc::str() const try { return std::string(name(dtype)) + shape.str(); } catch (...) {
  rethrow_typed();
}

}  // namespace graft
