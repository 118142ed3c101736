#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "graft/error.h"
#include "lowering/lowering.h"

namespace graft {
namespace {

// Byte address of every element in row-major order: what a view must reproduce.
std::vector<std::int64_t> addresses(const Tensor& t) {
  std::vector<std::int64_t> result;
  const std::int64_t count = t.numel();
  std::array<std::int64_t, kMaxRank> at{};
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t address = t.offset;
    for (int d = 0; d < t.rank(); ++d)
      address += at[static_cast<std::size_t>(d)] * t.stride(d) * static_cast<std::int64_t>(byte_size(t.dtype()));
    result.push_back(address);
    for (int d = t.rank() - 1; d >= 0; --d) {
      if (++at[static_cast<std::size_t>(d)] < t.size(d)) break;
      at[static_cast<std::size_t>(d)] = 0;
    }
  }
  return result;
}

std::int64_t address_of(const Tensor& t, std::span<const std::int64_t> at) {
  std::int64_t address = t.offset;
  for (int d = 0; d < t.rank(); ++d)
    address += at[static_cast<std::size_t>(d)] * t.stride(d) * static_cast<std::int64_t>(byte_size(t.dtype()));
  return address;
}

Tensor tensor(const Shape& shape, DType dtype = DType::f32, std::int64_t offset = 64) {
  return {0, offset, TensorDesc(dtype, shape)};
}

// Whether some strides reproduce `wanted` for `shape`: the first step along each dimension determines them.
bool expressible(const std::vector<std::int64_t>& wanted, const Shape& shape) {
  if (wanted.empty()) return true;
  Tensor candidate = tensor(shape, DType::i8, wanted[0]);
  for (int d = 0; d < shape.rank(); ++d) {
    const auto contiguous = static_cast<std::size_t>(TensorDesc(DType::i8, shape).strides[static_cast<std::size_t>(d)]);
    if (shape[d] > 1) candidate.desc.strides[static_cast<std::size_t>(d)] = wanted[contiguous] - wanted[0];
  }
  return addresses(candidate) == wanted;
}

// A random view of a buffer: permuted, sliced, with size-1 and expanded dimensions.
Tensor random_view(std::mt19937& random) {
  auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Shape shape;
  const int rank = pick(0, 5);
  for (int d = 0; d < rank; ++d) shape.push_back(pick(0, 9) == 0 ? 0 : pick(1, 4));
  Tensor t = tensor(shape, DType::i16);
  std::vector<int> dims(static_cast<std::size_t>(rank));
  std::iota(dims.begin(), dims.end(), 0);
  if (pick(0, 2) == 0) std::shuffle(dims.begin(), dims.end(), random);
  t = permuted(t, dims);
  for (int d = 0; d < rank; ++d) {
    if (pick(0, 4) == 0 && t.size(d) > 1) {
      const int start = pick(0, static_cast<int>(t.size(d)) - 1);
      t = sliced(t, d, start, pick(1, static_cast<int>(t.size(d)) - start));
    }
    if (pick(0, 6) == 0 && t.size(d) > 0) t = sliced(t, d, t.size(d) - 1, t.size(d), -1);
    if (pick(0, 3) == 0 && t.size(d) == 1) {
      Shape grown = t.shape();
      grown[d] = pick(1, 3);
      t = expanded(t, grown);
    }
  }
  return t;
}

Shape random_factors(std::int64_t count, std::mt19937& random) {
  auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<std::int64_t> sizes;
  while (count > 1 && sizes.size() < 6) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t f = 2; f <= count; ++f)
      if (count % f == 0) divisors.push_back(f);
    const std::int64_t f = divisors[static_cast<std::size_t>(pick(0, static_cast<int>(divisors.size()) - 1))];
    sizes.push_back(f);
    count /= f;
  }
  if (count > 1) sizes.push_back(count);
  while (sizes.size() < 8 && pick(0, 2) == 0)
    sizes.insert(sizes.begin() + pick(0, static_cast<int>(sizes.size())), count == 0 ? 0 : 1);
  if (count == 0 && sizes.empty()) sizes.push_back(0);
  return Shape(sizes);
}

TEST(Views, ReshapeFindsExactlyTheViewsThatExist) {
  std::mt19937 random(7);
  int views = 0, copies = 0;
  for (int i = 0; i < 20000; ++i) {
    const Tensor from = random_view(random);
    const Shape shape = random_factors(from.numel(), random);
    const auto wanted = addresses(from);
    const auto result = try_reshape(from, shape);
    ASSERT_EQ(result.has_value(), expressible(wanted, shape)) << from.desc.str() << " to " << shape.str();
    (result ? views : copies)++;
    if (!result) continue;
    EXPECT_EQ(result->shape(), shape);
    EXPECT_EQ(result->buffer, from.buffer);
    ASSERT_EQ(addresses(*result), wanted) << from.desc.str() << " to " << shape.str();
  }
  EXPECT_GT(views, 1000);
  EXPECT_GT(copies, 1000);
}

TEST(Views, ReshapeOfEmptyAndOfTheWrongSize) {
  EXPECT_TRUE(try_reshape(tensor({0, 3}), Shape{3, 0, 5}).has_value());
  EXPECT_TRUE(try_reshape(tensor({}), Shape{1, 1}).has_value());
  EXPECT_EQ(try_reshape(tensor({1, 1}), Shape{})->rank(), 0);
  EXPECT_THROW(try_reshape(tensor({2, 3}), Shape{7}), InvalidArgument);
}

TEST(Views, EveryPermutationToRankFive) {
  for (int rank = 0; rank <= 5; ++rank) {
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back(d + 2);
    const Tensor from = tensor(shape);
    std::vector<int> dims(static_cast<std::size_t>(rank));
    std::iota(dims.begin(), dims.end(), 0);
    do {
      const Tensor to = permuted(from, dims);
      std::vector<std::int64_t> at(static_cast<std::size_t>(rank), 0);
      const auto result = addresses(to);
      for (std::size_t i = 0; i < result.size(); ++i) {
        // out[at] is in[source] with source[dims[d]] = at[d].
        std::vector<std::int64_t> source(static_cast<std::size_t>(rank));
        std::size_t rest = i;
        for (int d = rank - 1; d >= 0; --d) {
          const auto size = static_cast<std::size_t>(shape[dims[static_cast<std::size_t>(d)]]);
          ASSERT_EQ(to.size(d), static_cast<std::int64_t>(size));
          source[static_cast<std::size_t>(dims[static_cast<std::size_t>(d)])] = static_cast<std::int64_t>(rest % size);
          rest /= size;
        }
        ASSERT_EQ(result[i], address_of(from, source));
      }
    } while (std::next_permutation(dims.begin(), dims.end()));
  }
}

TEST(Views, NchwToNhwcIsAThreeCycleAndNotItsInverse) {
  const std::vector<int> dims{0, 2, 3, 1};
  const Tensor to = permuted(tensor({2, 3, 4, 5}), dims);
  EXPECT_EQ(to.shape(), (Shape{2, 4, 5, 3}));
  EXPECT_EQ(to.stride(1), 5);
  EXPECT_EQ(to.stride(2), 1);
  EXPECT_EQ(to.stride(3), 20);
}

TEST(Views, ExpandBroadcastsFromTheRight) {
  const Tensor to = expanded(tensor({3, 1}), Shape{2, 3, 4});
  EXPECT_EQ(to.stride(0), 0);
  EXPECT_EQ(to.stride(1), 1);
  EXPECT_EQ(to.stride(2), 0);
  EXPECT_EQ(expanded(tensor({1, 1}), Shape{0, 1}).shape(), (Shape{0, 1}));
  EXPECT_THROW(expanded(tensor({3}), Shape{4}), InvalidArgument);
  EXPECT_THROW(expanded(tensor({0}), Shape{4}), InvalidArgument);
  EXPECT_THROW(expanded(tensor({3, 1}), Shape{3}), InvalidArgument);
}

TEST(Views, SliceMovesTheOffsetAndScalesTheStride) {
  const Tensor from = tensor({4, 6});
  const Tensor to = sliced(from, 1, 1, 3, 2);
  EXPECT_EQ(to.shape(), (Shape{4, 3}));
  EXPECT_EQ(to.offset, 64 + 4);
  EXPECT_EQ(to.stride(1), 2);
  EXPECT_EQ(sliced(from, 0, 4, 0).offset, 64);            // empty: stays inside the buffer
  EXPECT_EQ(sliced(tensor({0, 6}), 1, 2, 3).offset, 64);  // already empty
  EXPECT_THROW(sliced(from, 1, 1, 3, 3), std::logic_error);
  const Tensor reversed = sliced(from, 0, 3, 4, -1);
  EXPECT_EQ(reversed.offset, 64 + 3 * 6 * 4);
  EXPECT_EQ(reversed.stride(0), -6);
}

TEST(Views, CollapseKeepsTheLastDimensions) {
  EXPECT_EQ(collapsed(tensor({2, 3, 4}), 1).shape(), (Shape{6, 4}));
  EXPECT_EQ(collapsed(tensor({2, 3, 4}), 3).shape(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(collapsed(tensor({}), 0).shape(), (Shape{1}));
  EXPECT_EQ(collapsed(tensor({0, 5}), 1).shape(), (Shape{0, 5}));
}

}  // namespace
}  // namespace graft
