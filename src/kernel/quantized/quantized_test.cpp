#include "kernel/quantized/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/aligned.h"
#include "kernel/kernel_test_util.h"
#include "kernel/matmul/matmul_vec.h"
#include "kernel/quantized/quantized_weight.h"

namespace graft {
namespace {

using i64 = std::int64_t;

std::size_t at(i64 i) { return static_cast<std::size_t>(i); }

struct Sizes {
  i64 rows, columns, depth, group;
};
// Around the tiles of 4 rows and columns, vectors of 32 and 64 bytes, panels of 8 to 32 columns and blocks of 16 and 64
// rows.
const std::vector<Sizes> kSizes = {{1, 1, 1, 1},      {1, 3, 31, 31},     {2, 4, 32, 32},  {3, 5, 33, 33},
                                   {4, 8, 63, 63},    {5, 9, 64, 64},     {7, 16, 65, 65}, {8, 17, 96, 32},
                                   {9, 31, 128, 64},  {15, 32, 100, 20},  {16, 33, 40, 8}, {17, 7, 60, 20},
                                   {65, 35, 192, 96}, {130, 66, 256, 128}};

// A product with values over the whole range of bytes.
struct Problem {
  Sizes s;
  DType dtype;  // of the input
  int bits;
  std::vector<std::uint8_t> a, w;  // as i8 or u8; one element each
  std::vector<float> weight_scale, input_scale, bias;
  std::vector<std::int8_t> weight_zero;
  std::vector<std::int32_t> input_zero;

  Problem(const Sizes& sizes, DType input, int weight_bits, bool zeros, unsigned seed)
      : s(sizes), dtype(input), bits(weight_bits) {
    std::mt19937 rng(seed);
    const auto bytes = [&](i64 n, int low, int high) {
      std::vector<std::uint8_t> out(at(n));
      for (auto& x : out) x = static_cast<std::uint8_t>(std::uniform_int_distribution<int>(low, high)(rng));
      return out;
    };
    const int low = bits == 8 ? -128 : -8, high = bits == 8 ? 127 : 7;
    a = dtype == DType::i8 ? bytes(s.rows * s.depth, -128, 127) : bytes(s.rows * s.depth, 0, 255);
    w = bytes(s.columns * s.depth, low, high);
    std::fill_n(w.begin(), s.depth, static_cast<std::uint8_t>(low));  // extremes against extremes
    std::fill_n(a.begin(), s.depth, static_cast<std::uint8_t>(dtype == DType::i8 ? 127 : 255));
    std::uniform_real_distribution<float> values(0.01F, 0.02F);
    const i64 groups = s.columns * (s.depth / s.group);
    for (i64 i = 0; i < groups; ++i) weight_scale.push_back(values(rng));
    for (i64 i = 0; i < groups; ++i)
      weight_zero.push_back(
          static_cast<std::int8_t>(zeros && i % 3 != 0 ? std::uniform_int_distribution<int>(low, high)(rng) : 0));
    for (i64 i = 0; i < s.rows; ++i) {
      input_scale.push_back(values(rng));
      input_zero.push_back(std::uniform_int_distribution<int>(dtype == DType::i8 ? -128 : 0, 127)(rng));
    }
    for (i64 j = 0; j < s.columns; ++j) bias.push_back(values(rng) * 100);
  }

  i64 input(i64 r, i64 k) const {
    const std::uint8_t x = a[at(r * s.depth + k)];
    return dtype == DType::i8 ? static_cast<std::int8_t>(x) : x;
  }
  i64 weight(i64 j, i64 k) const { return static_cast<std::int8_t>(w[at(j * s.depth + k)]); }
  double value(i64 j, i64 k) const {
    const auto g = at(j * (s.depth / s.group) + k / s.group);
    return static_cast<double>(weight_scale[g]) * static_cast<double>(weight(j, k) - weight_zero[g]);
  }

  std::vector<std::byte> stored() const {
    const TensorDesc desc(DType::i8, Shape{s.columns, s.depth});
    std::vector<std::byte> out(w.size());
    std::memcpy(out.data(), w.data(), w.size());
    if (bits == 8) return out;
    std::vector<std::byte> packed(w.size() / 2);
    EXPECT_EQ(run_kernel(kPackInt4, {{desc, w.data()}},
                         {TensorDesc(DType::u8, Shape{s.columns, s.depth / 2}), packed.data()}, 3),
              "");
    return packed;
  }
};

std::vector<float> integer_product(const Problem& p, int threads, bool zeros) {
  const Sizes& s = p.s;
  QuantizedAttrs attrs;
  attrs.group = s.group;
  attrs.bits = p.bits;
  attrs.has_weight_scale = attrs.has_input_scale = attrs.has_input_zero = attrs.has_bias = 1;
  attrs.has_weight_zero = zeros ? 1 : 0;
  const std::vector<std::byte> weight = p.stored();
  TensorDesc bias(DType::f32, Shape{s.rows, s.columns});
  bias.strides[0] = 0;
  const TensorDesc a(p.dtype, Shape{s.rows, s.depth});
  const i64 groups = s.columns * (s.depth / s.group);
  std::vector<TestOperand> inputs = {
      {a, p.a.data()},
      {TensorDesc(p.bits == 8 ? DType::i8 : DType::u8, Shape{s.columns, s.depth * p.bits / 8}), weight.data()},
      {TensorDesc(DType::f32, Shape{groups}), p.weight_scale.data()}};
  if (zeros) inputs.push_back({TensorDesc(DType::i8, Shape{groups}), p.weight_zero.data()});
  inputs.push_back({TensorDesc(DType::f32, Shape{s.rows}), p.input_scale.data()});
  inputs.push_back({TensorDesc(DType::i32, Shape{s.rows}), p.input_zero.data()});
  inputs.push_back({bias, p.bias.data()});
  AlignedMemory scratch(at(quantized_matmul_scratch_bytes(attrs, a, threads)));
  std::vector<float> out(at(s.rows * s.columns), NAN);
  EXPECT_EQ(run_kernel(kQuantizedMatmul, inputs, {TensorDesc(DType::f32, Shape{s.rows, s.columns}), out.data()},
                       threads, attrs, scratch.data()),
            "");
  return out;
}

bool four_bits(const Sizes& s) { return s.group % 32 == 0; }

TEST(QuantizedMatmul, InIntegers) {
  unsigned seed = 0;
  for (const Sizes& s : kSizes) {
    for (const DType dtype : {DType::i8, DType::u8}) {
      for (const int bits : {8, 4}) {
        if (bits == 4 && !four_bits(s)) continue;
        for (const bool zeros : {false, true}) {
          const Problem p(s, dtype, bits, zeros, ++seed);
          const std::vector<float> out = integer_product(p, 1 + static_cast<int>(seed % 3), zeros);
          for (i64 r = 0; r < s.rows; ++r) {
            for (i64 j = 0; j < s.columns; ++j) {
              double sum = 0, size = 0;
              for (i64 k = 0; k < s.depth; ++k) {
                const double term = p.value(j, k) * static_cast<double>(p.input(r, k) - p.input_zero[at(r)]);
                sum += term;
                size += std::abs(term);
              }
              const double scale = static_cast<double>(p.input_scale[at(r)]);
              const double want = sum * scale + static_cast<double>(p.bias[at(j)]);
              ASSERT_NEAR(static_cast<double>(out[at(r * s.columns + j)]), want, 1e-6 * (size * scale + std::abs(want)))
                  << s.rows << " x " << s.columns << " x " << s.depth << " by " << s.group << ", " << bits << " bits, "
                  << name(dtype) << ", at " << r << ", " << j;
            }
          }
        }
      }
    }
  }
}

TEST(QuantizedMatmul, OfFloats) {
  unsigned seed = 100;
  for (const Sizes& s : kSizes) {
    for (const int bits : {8, 4}) {
      if (bits == 4 && !four_bits(s)) continue;
      const Problem p(s, DType::i8, bits, true, ++seed);
      QuantizedAttrs attrs;
      attrs.group = s.group;
      attrs.bits = bits;
      attrs.has_weight_scale = attrs.has_weight_zero = attrs.has_bias = 1;
      std::mt19937 rng(seed);
      std::vector<float> x(at(s.rows * s.depth));
      for (float& v : x) v = std::uniform_real_distribution<float>(-1, 1)(rng);
      const std::vector<std::byte> weight = p.stored();
      TensorDesc bias(DType::f32, Shape{s.rows, s.columns});
      bias.strides[0] = 0;
      const TensorDesc a(DType::f32, Shape{s.rows, s.depth});
      const i64 groups = s.columns * (s.depth / s.group);
      const int threads = 1 + static_cast<int>(seed % 3);
      AlignedMemory scratch(at(quantized_matmul_scratch_bytes(attrs, a, threads)));
      std::vector<float> out(at(s.rows * s.columns), NAN);
      ASSERT_EQ(
          run_kernel(
              kQuantizedMatmul,
              {{a, x.data()},
               {TensorDesc(bits == 8 ? DType::i8 : DType::u8, Shape{s.columns, s.depth * bits / 8}), weight.data()},
               {TensorDesc(DType::f32, Shape{groups}), p.weight_scale.data()},
               {TensorDesc(DType::i8, Shape{groups}), p.weight_zero.data()},
               {bias, p.bias.data()}},
              {TensorDesc(DType::f32, Shape{s.rows, s.columns}), out.data()}, threads, attrs, scratch.data()),
          "");
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 j = 0; j < s.columns; ++j) {
          double sum = static_cast<double>(p.bias[at(j)]), size = std::abs(sum);
          for (i64 k = 0; k < s.depth; ++k) {
            const double term = p.value(j, k) * static_cast<double>(x[at(r * s.depth + k)]);
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(static_cast<double>(out[at(r * s.columns + j)]), sum, 1e-6 * size)
              << s.rows << " x " << s.columns << " x " << s.depth << ", " << bits << " bits";
        }
      }
    }
  }
}

// Every instruction set against plain C, in integers that must be equal.
TEST(QuantizedMatmul, LevelsAgree) {
  unsigned seed = 200;
  for (const Sizes& s : kSizes) {
    const Problem p(s, DType::u8, 8, false, ++seed);
    const i64 stride = simd::quantized_stride(s.depth);
    std::vector<std::uint8_t> rows(at(s.rows * stride), 77);  // bytes after a row must not matter
    for (i64 r = 0; r < s.rows; ++r) std::copy_n(p.a.data() + r * s.depth, s.depth, rows.data() + r * stride);
    const simd::QuantizedInput x{rows.data(), stride, p.input_zero.data(), nullptr};
    simd::QuantizedWeight w;
    w.q = reinterpret_cast<const std::byte*>(p.w.data());
    w.depth = w.group = s.depth;
    for (const simd::Isa isa : simd::available_isas_of<simd::QuantizedProducts>()) {
      std::vector<std::int32_t> out(at(s.rows * s.columns), -1);
      simd::quantized_products(isa).integers(x, w, 0, static_cast<int>(s.rows), 0, static_cast<int>(s.columns),
                                             out.data(), s.columns);
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 j = 0; j < s.columns; ++j) {
          i64 want = 0;
          for (i64 k = 0; k < s.depth; ++k) want += p.weight(j, k) * (p.input(r, k) - p.input_zero[at(r)]);
          ASSERT_EQ(out[at(r * s.columns + j)], want) << name(isa) << " at " << r << ", " << j;
        }
      }
    }
  }
}

TEST(QuantizedMatmul, PackingRefusesWhatDoesNotFit) {
  for (const int value : {-9, 8, 127}) {
    std::vector<std::int8_t> from(64, 7);
    from[45] = static_cast<std::int8_t>(value);
    std::vector<std::byte> to(32);
    EXPECT_NE(run_kernel(kPackInt4, {{TensorDesc(DType::i8, Shape{1, 64}), from.data()}},
                         {TensorDesc(DType::u8, Shape{1, 32}), to.data()})
                  .find("expected -8 to 7"),
              std::string::npos);
  }
}

struct Convolution {
  i64 batch, channels, height, width, outputs, kernel, stride, padding, dilation, groups;
};

TEST(QuantizedConv, AgainstASum) {
  const std::vector<Convolution> cases = {{1, 3, 9, 10, 5, 3, 1, 1, 1, 1},  {2, 4, 7, 8, 6, 3, 2, 2, 2, 2},
                                          {1, 8, 5, 5, 8, 3, 1, 1, 1, 8},   {2, 16, 12, 11, 33, 1, 1, 0, 1, 1},
                                          {1, 2, 20, 20, 3, 5, 3, 0, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 0, 1, 1}};
  unsigned seed = 300;
  for (const Convolution& c : cases) {
    for (const DType dtype : {DType::i8, DType::u8}) {
      std::mt19937 rng(++seed);
      const int low = dtype == DType::i8 ? -128 : 0;
      const i64 depth = c.channels / c.groups * c.kernel * c.kernel;
      std::vector<std::uint8_t> x(at(c.batch * c.channels * c.height * c.width));
      for (auto& v : x) v = static_cast<std::uint8_t>(std::uniform_int_distribution<int>(low, low + 255)(rng));
      std::vector<std::int8_t> w(at(c.outputs * depth)), zeros(at(c.outputs));
      for (auto& v : w) v = static_cast<std::int8_t>(std::uniform_int_distribution<int>(-128, 127)(rng));
      for (auto& v : zeros) v = static_cast<std::int8_t>(std::uniform_int_distribution<int>(-3, 3)(rng));
      std::vector<float> scales(at(c.outputs)), bias(at(c.outputs));
      for (auto& v : scales) v = std::uniform_real_distribution<float>(0.01F, 0.02F)(rng);
      for (auto& v : bias) v = std::uniform_real_distribution<float>(-5, 5)(rng);
      QuantizedConvAttrs attrs;
      attrs.quantized.group = depth;
      attrs.quantized.has_weight_scale = attrs.quantized.has_weight_zero = attrs.quantized.has_bias = 1;
      attrs.quantized.input_scale = 0.05F;
      attrs.quantized.input_zero = low + 100;
      attrs.conv.groups = c.groups;
      for (const int d : {1, 2}) {
        attrs.conv.stride[d] = c.stride;
        attrs.conv.padding[d] = c.padding;
        attrs.conv.dilation[d] = c.dilation;
      }
      const i64 extent = c.dilation * (c.kernel - 1) + 1;
      const i64 oh = (c.height + 2 * c.padding - extent) / c.stride + 1;
      const i64 ow = (c.width + 2 * c.padding - extent) / c.stride + 1;
      const TensorDesc weight(DType::i8, Shape{c.outputs, c.channels / c.groups, 1, c.kernel, c.kernel});
      const int threads = 1 + static_cast<int>(seed % 3);
      AlignedMemory scratch(at(quantized_conv_scratch_bytes(weight, threads)));
      std::vector<float> out(at(c.batch * c.outputs * oh * ow), NAN);
      ASSERT_EQ(run_kernel(kQuantizedConv,
                           {{TensorDesc(dtype, Shape{c.batch, c.channels, 1, c.height, c.width}), x.data()},
                            {weight, w.data()},
                            {TensorDesc(DType::f32, Shape{c.outputs}), scales.data()},
                            {TensorDesc(DType::i8, Shape{c.outputs}), zeros.data()},
                            {TensorDesc(DType::f32, Shape{c.outputs}), bias.data()}},
                           {TensorDesc(DType::f32, Shape{c.batch, c.outputs, 1, oh, ow}), out.data()}, threads, attrs,
                           scratch.data()),
                "");
      for (i64 n = 0; n < c.batch; ++n) {
        for (i64 o = 0; o < c.outputs; ++o) {
          for (i64 p = 0; p < oh * ow; ++p) {
            double sum = 0;
            for (i64 k = 0; k < depth; ++k) {
              const i64 channel = o / (c.outputs / c.groups) * (c.channels / c.groups) + k / (c.kernel * c.kernel);
              const i64 y = p / ow * c.stride - c.padding + k / c.kernel % c.kernel * c.dilation;
              const i64 z = p % ow * c.stride - c.padding + k % c.kernel * c.dilation;
              if (y < 0 || y >= c.height || z < 0 || z >= c.width) continue;
              const std::uint8_t byte = x[at(((n * c.channels + channel) * c.height + y) * c.width + z)];
              const int q = dtype == DType::i8 ? static_cast<std::int8_t>(byte) : byte;
              sum += (q - attrs.quantized.input_zero) * (w[at(o * depth + k)] - zeros[at(o)]);
            }
            const double want = sum * static_cast<double>(scales[at(o)]) * 0.05 + static_cast<double>(bias[at(o)]);
            ASSERT_NEAR(static_cast<double>(out[at((n * c.outputs + o) * oh * ow + p)]), want,
                        1e-4 + 1e-5 * std::abs(want));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace graft
