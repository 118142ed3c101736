#include "graft/tensor.h"

#include <gtest/gtest.h>

#include <limits>

#include "graft/error.h"

namespace graft {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TEST(TensorDesc, RowMajorStrides) {
  const TensorDesc desc(DType::f32, {2, 3, 4});
  EXPECT_EQ(desc.strides[0], 12);
  EXPECT_EQ(desc.strides[1], 4);
  EXPECT_EQ(desc.strides[2], 1);
  EXPECT_EQ(desc.byte_count(), 96u);
  EXPECT_TRUE(desc.contiguous());
  EXPECT_EQ(TensorDesc(DType::f64, {}).byte_count(), 8u);
  EXPECT_EQ(TensorDesc(DType::f64, {kHuge, 0, 3}).byte_count(), 0u);
}

TEST(TensorDesc, SizesThatDoNotFitAreAnErrorEvenWithoutElements) {
  for (const Shape& shape : {Shape{kHuge, kHuge}, Shape{kHuge, kHuge, 0}, Shape{0, kHuge, kHuge},
                             Shape{kHuge, 0, kHuge}, Shape{std::numeric_limits<std::int64_t>::max(), 2, 0}})
    EXPECT_THROW(TensorDesc(DType::u8, shape), InvalidArgument) << shape.str();
}

// 2^62 elements fit, 2^65 bytes do not: they would wrap to a small number.
TEST(TensorDesc, BytesThatDoNotFitAreAnError) {
  EXPECT_EQ(TensorDesc(DType::u8, {std::int64_t{1} << 62}).byte_count(), std::size_t{1} << 62);
  EXPECT_THROW(TensorDesc(DType::f64, {std::int64_t{1} << 62}), InvalidArgument);
  EXPECT_THROW(TensorDesc(DType::f16, {std::int64_t{1} << 62}), InvalidArgument);
  TensorDesc changed(DType::f64, {1});
  changed.shape[0] = std::int64_t{1} << 61;
  EXPECT_THROW(changed.byte_count(), InvalidArgument);
}

}  // namespace
}  // namespace graft
