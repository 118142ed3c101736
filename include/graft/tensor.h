#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "graft/dtype.h"
#include "graft/export.h"

namespace graft {

inline constexpr int kMaxRank = 8;

// Sizes of a tensor, outermost dimension first (PyTorch's order). Rank 0 to kMaxRank.
class GRAFT_API Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  // Throws InvalidArgument when there are more than kMaxRank sizes or one is negative.
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return sizes_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return sizes_[static_cast<std::size_t>(dim)]; }
  std::span<const std::int64_t> sizes() const { return {sizes_.data(), static_cast<std::size_t>(rank_)}; }
  // Number of elements; 1 for rank 0. Throws InvalidArgument when it does not fit 64 bits.
  std::int64_t numel() const;
  void push_back(std::int64_t size);
  bool operator==(const Shape& other) const;
  std::string str() const;  // "[1, 7, 384]"

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// A tensor without its data: dtype, sizes and strides (in elements; 0 for expanded dimensions).
struct GRAFT_API TensorDesc {
  DType dtype = DType::f32;
  Shape shape;
  std::array<std::int64_t, kMaxRank> strides{};

  TensorDesc() = default;
  // Row-major (contiguous) strides. Throws InvalidArgument when the bytes of the sizes other than 0 do not fit 64 bits.
  TensorDesc(DType dtype, const Shape& shape);

  int rank() const { return shape.rank(); }
  std::int64_t numel() const { return shape.numel(); }
  std::size_t byte_count() const;  // throws InvalidArgument when it does not fit 64 bits
  // True when the elements lie row-major without gaps (dimensions of size 1 ignored, empty tensors included).
  bool contiguous() const;
  std::string str() const;  // "f32[1, 7, 384]"
};

// Memory that belongs to the caller, read as a contiguous tensor.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
};

}  // namespace graft
