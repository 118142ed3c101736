#include "kernel/conv/packed_quantized_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "kernel/conv/packed_conv.h"
#include "kernel/simd/simd_test_util.h"

// Against integer sums and quantization in f64, with every instruction set, around the borders of tiles, panels and
// blocks.
namespace graft {
namespace {

using i64 = std::int64_t;
using simd::QuantizedConvTable;
using simd::QuantizeTo;

struct Case {
  i64 batch = 1, groups = 1, channels = 1, outputs = 1;  // per group
  i64 size[3] = {1, 1, 1};
  i64 kernel[3] = {1, 1, 1};
  i64 stride[3] = {1, 1, 1};
  i64 padding[3] = {0, 0, 0};
  i64 dilation[3] = {1, 1, 1};
  DType input = DType::i8, output = DType::i8;
  bool channels_last = true;
  bool bias = true;
  bool residual = false;

  i64 out(int d) const { return (size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1; }
  bool depthwise() const { return groups > 1 && channels == 1 && outputs == 1; }
};

TensorDesc desc_of(DType dtype, const Shape& shape, bool channels_last) {
  TensorDesc desc(dtype, shape);
  if (!channels_last) return desc;
  const i64 channels = shape[1], plane = shape[3] * shape[4] * channels;
  desc.strides = {shape[2] * plane, 1, plane, shape[4] * channels, channels};
  return desc;
}

i64 place(const TensorDesc& desc, i64 n, i64 c, i64 d, i64 h, i64 w) {
  const auto& s = desc.strides;
  return n * s[0] + c * s[1] + d * s[2] + h * s[3] + w * s[4];
}

// Bytes or floats at an unaligned address.
template <typename T>
T* elements(TestTensor& t) {
  return static_cast<T*>(t.data());
}

void fill_bytes(TestTensor& t, std::mt19937& rng) {
  for (i64 i = 0; i < t.elements(); ++i) elements<std::uint8_t>(t)[i] = static_cast<std::uint8_t>(rng());
}

int byte_at(const TestTensor& t, i64 i) {
  const auto byte = static_cast<const std::uint8_t*>(t.data())[i];
  return t.desc.dtype == DType::i8 ? static_cast<std::int8_t>(byte) : byte;
}

// The values a quantized number may have: one, or two where the f64 value is close to the middle between them.
struct Quantized {
  double least, most;
};
Quantized quantized(double y, const QuantizeTo& to) {
  const double x = y * static_cast<double>(to.inverse);
  const auto round = [&](double v) {
    return std::clamp(std::nearbyint(v), static_cast<double>(to.low), static_cast<double>(to.high));
  };
  return {round(x - 1e-4), round(x + 1e-4)};
}

void check_at(const Case& c, const QuantizedConvTable& table, int threads) {
  std::mt19937 rng(static_cast<unsigned>(c.channels * 31 + c.outputs * 7 + c.size[2]));
  const i64 rows = c.groups * c.outputs;
  TestTensor x(desc_of(c.input, {c.batch, c.groups * c.channels, c.size[0], c.size[1], c.size[2]}, c.channels_last));
  TestTensor w(TensorDesc(DType::i8, Shape{rows, c.channels, c.kernel[0], c.kernel[1], c.kernel[2]}));
  TestTensor scale(TensorDesc(DType::f32, Shape{rows})), bias(TensorDesc(DType::f32, Shape{rows}));
  fill_bytes(x, rng);
  fill_bytes(w, rng);
  scale.fill(rng, 0.5f, 1.5f);
  bias.fill(rng, -50.f, 50.f);

  PackQuantizedConvAttrs pack;
  pack.conv.groups = c.groups;
  pack.conv.has_bias = c.bias ? 1 : 0;
  for (int d = 0; d < 3; ++d) {
    pack.conv.stride[d] = c.stride[d];
    pack.conv.padding[d] = c.padding[d];
    pack.conv.dilation[d] = c.dilation[d];
  }
  pack.input_scale = 0.01f;
  const int zero = c.input == DType::i8 ? -7 : 130;
  pack.input_zero = zero + (c.input == DType::i8 ? 128 : 0);
  pack.has_weight_scale = 1;
  std::vector<const TestTensor*> weights = {&w, &scale};
  if (c.bias) weights.push_back(&bias);
  TestTensor packed(TensorDesc(DType::u8, Shape{packed_quantized_conv_bytes(w.desc.shape, pack.conv, table)}));
  run_on_threads(weights, {&packed}, pack, 0, threads,
                 [&](const KernelContext& ctx) { run_pack_quantized_conv(ctx, table); });
  ASSERT_TRUE(packed.guards_intact());

  PackedQuantizedConvAttrs attrs;
  attrs.conv = pack.conv;
  attrs.conv.has_bias = 0;
  for (int d = 0; d < 3; ++d) attrs.kernel[d] = c.kernel[d];
  attrs.input_zero = zero;
  const double depth = static_cast<double>(c.channels * c.kernel[0] * c.kernel[1] * c.kernel[2]);
  const int middle = c.output == DType::u8 ? 128 : 0, first_zero = middle + 5;
  attrs.scale = static_cast<float>(0.5 * std::sqrt(depth));
  attrs.first = {1 / attrs.scale, static_cast<float>(middle - 100 - first_zero),
                 static_cast<float>(middle + 120 - first_zero)};
  attrs.zero = first_zero;
  const Shape out_shape = {c.batch, rows, c.out(0), c.out(1), c.out(2)};
  TestTensor residual(desc_of(c.output, out_shape, true)), out(desc_of(c.output, out_shape, true));
  fill_bytes(residual, rng);
  std::vector<const TestTensor*> inputs = {&x, &packed};
  if (c.residual) {
    inputs.push_back(&residual);
    attrs.has_residual = 1;
    attrs.residual_scale = attrs.scale * 0.75f;
    attrs.residual_zero = middle - 3;
    attrs.zero = middle - 11;
    attrs.second = {0.625f / attrs.scale, static_cast<float>(middle - attrs.zero),
                    static_cast<float>(middle + 127 - attrs.zero)};
  }
  if (c.depthwise()) {
    run_on_threads(inputs, {&out}, attrs, packed_quantized_depthwise_scratch_bytes(x.desc, out.desc, attrs, threads),
                   threads, [&](const KernelContext& ctx) { run_packed_quantized_depthwise_conv(ctx, table); });
  } else {
    run_on_threads(
        inputs, {&out}, attrs, packed_quantized_conv_scratch_bytes(x.desc, attrs, threads), threads,
        [&](const KernelContext& ctx) { run_packed_quantized_conv(ctx, table); }, kPackedQuantizedConv.phases);
  }
  EXPECT_TRUE(out.guards_intact());

  i64 wrong = 0;
  for (i64 n = 0; n < c.batch; ++n)
    for (i64 oc = 0; oc < rows; ++oc)
      for (i64 d = 0; d < c.out(0); ++d)
        for (i64 h = 0; h < c.out(1); ++h)
          for (i64 v = 0; v < c.out(2); ++v) {
            i64 sum = 0;
            for (i64 ic = 0; ic < c.channels; ++ic)
              for (i64 kd = 0; kd < c.kernel[0]; ++kd)
                for (i64 kh = 0; kh < c.kernel[1]; ++kh)
                  for (i64 kw = 0; kw < c.kernel[2]; ++kw) {
                    const i64 at[3] = {d * c.stride[0] - c.padding[0] + kd * c.dilation[0],
                                       h * c.stride[1] - c.padding[1] + kh * c.dilation[1],
                                       v * c.stride[2] - c.padding[2] + kw * c.dilation[2]};
                    bool inside = true;
                    for (int i = 0; i < 3; ++i) inside = inside && at[i] >= 0 && at[i] < c.size[i];
                    if (!inside) continue;
                    const i64 channel = oc / c.outputs * c.channels + ic;
                    sum += (byte_at(x, place(x.desc, n, channel, at[0], at[1], at[2])) - zero) *
                           byte_at(w, place(w.desc, oc, ic, kd, kh, kw));
                  }
            const i64 at = place(out.desc, n, oc, d, h, v);
            const double y = static_cast<double>(sum) * 0.01 * scale.get(oc) + (c.bias ? bias.get(oc) : 0);
            if (c.output == DType::f32) {
              wrong += !(std::fabs(out.get(at) - y) <= 1e-4 + 1e-5 * std::fabs(y));
              continue;
            }
            const double got = byte_at(out, at) - attrs.zero;
            Quantized want = quantized(y, attrs.first);
            if (c.residual) {
              const double r =
                  (byte_at(residual, at) - attrs.residual_zero) * static_cast<double>(attrs.residual_scale);
              const auto by = static_cast<double>(attrs.scale);
              want = {quantized(want.least * by + r, attrs.second).least,
                      quantized(want.most * by + r, attrs.second).most};
            }
            wrong += got < want.least || got > want.most;
          }
  EXPECT_EQ(wrong, 0) << "of " << out.elements() << ", groups " << c.groups << ", channels " << c.channels
                      << ", outputs " << c.outputs << ", size " << c.size[1] << " x " << c.size[2] << ", kernel "
                      << c.kernel[1] << " x " << c.kernel[2] << ", lanes " << table.lanes << ", " << threads
                      << " threads";
}

void check(const Case& c) {
  for (const simd::Isa isa : simd::available_isas_of<simd::QuantizedConvTable>())
    for (const int threads : {1, 3}) check_at(c, simd::quantized_conv(isa), threads);
}

TEST(PackedQuantizedConv, TilesPanelsAndDepths) {
  for (const i64 outputs : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 97, 130})
    for (const i64 width : {1, 4, 13}) check({.channels = 5, .outputs = outputs, .size = {1, 1, width}});
  for (const i64 channels : {1, 2, 3, 4, 6, 7, 8, 63, 64, 65, 300})
    for (const i64 outputs : {9, 24, 70})
      check({.channels = channels, .outputs = outputs, .size = {1, 3, 5}, .residual = channels % 2 == 0});
  for (const i64 width : {1, 2, 3, 5, 6, 7, 11, 12, 14, 24, 25, 500})
    check({.channels = 9, .outputs = 20, .size = {1, 1, width}, .residual = true});
}

TEST(PackedQuantizedConv, KernelsGroupsAndPaddings) {
  for (const i64 groups : {1, 2}) {
    for (const i64 channels : {1, 3, 6}) {
      for (const i64 stride : {1, 2}) {
        for (const i64 dilation : {1, 2}) {
          Case c{.batch = 2,
                 .groups = groups,
                 .channels = channels,
                 .outputs = 10,
                 .size = {1, 9, 11},
                 .kernel = {1, 3, 3},
                 .stride = {1, stride, stride},
                 .padding = {0, 1, dilation},
                 .dilation = {1, 1, dilation}};
          check(c);
          c.channels_last = false;
          c.padding[1] = c.padding[2] = 0;
          check(c);
        }
      }
    }
  }
  check({.groups = 2, .channels = 3, .outputs = 9, .size = {4, 5, 6}, .kernel = {2, 3, 2}, .padding = {1, 1, 1}});
}

TEST(PackedQuantizedConv, DepthwiseChannelsAroundTheVectors) {
  for (const i64 groups : {2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 96, 97, 130})
    for (const i64 stride : {1, 2})
      check({.groups = groups,
             .size = {1, 5, 8},
             .kernel = {1, 3, 3},
             .stride = {1, stride, stride},
             .padding = {0, 1, 1},
             .residual = groups % 2 == 0});
}

TEST(PackedQuantizedConv, DepthwiseLinesAndTaps) {
  for (const i64 width : {1, 2, 3, 7, 20})
    for (const i64 taps : {1, 2, 3, 4, 5, 7})
      for (const i64 dilation : {1, 2})
        check({.batch = 2,
               .groups = 20,
               .size = {1, 4, width},
               .kernel = {1, 2, taps},
               .padding = {0, 1, (taps - 1) * dilation},
               .dilation = {1, 1, dilation},
               .input = DType::u8,
               .bias = width % 2 == 0});
  check({.groups = 9, .size = {4, 5, 6}, .kernel = {2, 3, 3}, .stride = {2, 1, 1}, .padding = {1, 0, 1}});
}

TEST(PackedQuantizedConv, BytesWithAndWithoutSignAndFloats) {
  for (const DType input : {DType::i8, DType::u8}) {
    for (const DType output : {DType::i8, DType::u8, DType::f32}) {
      for (const i64 outputs : {10, 20, 70}) {
        const bool residual = output != DType::f32;
        check({.channels = 7,
               .outputs = outputs,
               .size = {1, 6, 7},
               .kernel = {1, 3, 3},
               .padding = {0, 1, 1},
               .input = input,
               .output = output,
               .residual = residual});
        check({.groups = outputs,
               .size = {1, 6, 7},
               .kernel = {1, 3, 3},
               .padding = {0, 1, 1},
               .input = input,
               .output = output,
               .residual = residual});
      }
    }
  }
}

// The longest sums of the largest products: 255 * -128.
TEST(PackedQuantizedConv, LongSumsDoNotOverflow) {
  for (const simd::Isa isa : simd::available_isas_of<simd::QuantizedConvTable>()) {
    const QuantizedConvTable& table = simd::quantized_conv(isa);
    const i64 channels = kLongestByteSum;
    TestTensor x(TensorDesc(DType::u8, Shape{1, channels, 1, 1, 1})),
        w(TensorDesc(DType::i8, Shape{8, channels, 1, 1, 1}));
    std::fill_n(elements<std::uint8_t>(x), channels, std::uint8_t{255});
    std::fill_n(elements<std::int8_t>(w), 8 * channels, std::int8_t{-128});
    PackQuantizedConvAttrs pack;
    TestTensor packed(TensorDesc(DType::u8, Shape{packed_quantized_conv_bytes(w.desc.shape, pack.conv, table)}));
    run_on_threads({&w}, {&packed}, pack, 0, 1, [&](const KernelContext& ctx) { run_pack_quantized_conv(ctx, table); });
    PackedQuantizedConvAttrs attrs;
    TestTensor out(desc_of(DType::f32, {1, 8, 1, 1, 1}, true));
    run_on_threads({&x, &packed}, {&out}, attrs, packed_quantized_conv_scratch_bytes(x.desc, attrs, 1), 1,
                   [&](const KernelContext& ctx) { run_packed_quantized_conv(ctx, table); });
    for (i64 i = 0; i < 8; ++i) EXPECT_EQ(out.get(i), -255.0 * 128 * static_cast<double>(channels));
  }
}

}  // namespace
}  // namespace graft
