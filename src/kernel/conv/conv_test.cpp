#define GRAFT_ISA test_reference
#include "kernel/conv/conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_conv.h"
#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

struct Case {
  i64 batch = 1, groups = 1, channels = 1, outputs = 1;  // channels and outputs of one group
  i64 size[3] = {1, 1, 1};
  i64 kernel[3] = {1, 1, 1};
  i64 stride[3] = {1, 1, 1};
  i64 padding[3] = {0, 0, 0};
  i64 dilation[3] = {1, 1, 1};
  i64 output_padding[3] = {0, 0, 0};
  bool transposed = false, bias = false, channels_last = false;
  DType dtype = DType::f32;

  i64 out(int d) const {
    const i64 extent = dilation[d] * (kernel[d] - 1) + 1;
    if (transposed) return (size[d] - 1) * stride[d] - 2 * padding[d] + extent + output_padding[d];
    return (size[d] + 2 * padding[d] - extent) / stride[d] + 1;
  }
};

double rounding(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 2048; }

i64 place(const TensorDesc& d, i64 a, i64 b, i64 c, i64 e, i64 f) {
  return a * d.strides[0] + b * d.strides[1] + c * d.strides[2] + e * d.strides[3] + f * d.strides[4];
}

// Reference: sums, and sums of absolute terms, of every output, by scattering each input.
void expected(const Case& c, const TestTensor& x, const TestTensor& w, const TestTensor& out, std::vector<double>* sums,
              std::vector<double>* sizes) {
  sums->assign(static_cast<std::size_t>(out.desc.numel()), 0);
  sizes->assign(sums->size(), 0);
  i64 o[3], i[3], k[3];
  for (i64 n = 0; n < c.batch; ++n)
    for (i64 g = 0; g < c.groups; ++g)
      for (i64 oc = 0; oc < c.outputs; ++oc)
        for (i64 ic = 0; ic < c.channels; ++ic)
          for (o[0] = 0; o[0] < c.out(0); ++o[0])
            for (o[1] = 0; o[1] < c.out(1); ++o[1])
              for (o[2] = 0; o[2] < c.out(2); ++o[2])
                for (k[0] = 0; k[0] < c.kernel[0]; ++k[0])
                  for (k[1] = 0; k[1] < c.kernel[1]; ++k[1])
                    for (k[2] = 0; k[2] < c.kernel[2]; ++k[2]) {
                      bool inside = true;
                      for (int d = 0; d < 3; ++d) {
                        if (c.transposed) {
                          const i64 at = o[d] + c.padding[d] - k[d] * c.dilation[d];
                          inside = inside && at >= 0 && at % c.stride[d] == 0;
                          i[d] = at / c.stride[d];
                        } else {
                          i[d] = o[d] * c.stride[d] - c.padding[d] + k[d] * c.dilation[d];
                        }
                        inside = inside && i[d] >= 0 && i[d] < c.size[d];
                      }
                      if (!inside) continue;
                      const i64 w0 = c.transposed ? g * c.channels + ic : g * c.outputs + oc;
                      const i64 w1 = c.transposed ? oc : ic;
                      const double term = x.get(place(x.desc, n, g * c.channels + ic, i[0], i[1], i[2])) *
                                          w.get(place(w.desc, w0, w1, k[0], k[1], k[2]));
                      const auto at =
                          static_cast<std::size_t>(place(out.desc, n, g * c.outputs + oc, o[0], o[1], o[2]));
                      (*sums)[at] += term;
                      (*sizes)[at] += std::fabs(term);
                    }
}

TensorDesc channels_last(const Shape& shape) {
  TensorDesc desc(DType::f32, shape);
  const i64 channels = shape[1];
  desc.strides = {shape.numel() / shape[0], 1, shape[3] * shape[4] * channels, shape[4] * channels, channels};
  return desc;
}

// The kernels with packed weights, without an epilogue and with all of it. `sums`: of every output, with its bias.
void check_packed(const Case& c, const TestTensor& x, const TestTensor& w, const TestTensor& bias,
                  const ConvAttrs& attrs, const std::vector<double>& sums, const std::vector<double>& sizes,
                  simd::Isa isa, int threads) {
  const simd::PackedConvTable& table = simd::packed_conv(isa);
  const bool depthwise = is_depthwise(w.desc.shape, c.groups);
  if (depthwise && !c.channels_last) return;  // the kernel requires it
  const TensorDesc out_desc = channels_last({c.batch, c.groups * c.outputs, c.out(0), c.out(1), c.out(2)});
  std::mt19937 rng(1);
  TestTensor scale(TensorDesc(DType::f32, Shape{out_desc.shape[1]})), residual(out_desc);
  scale.fill(rng, 0.5, 2);
  residual.fill(rng, -1, 1);
  for (const bool all : {false, true}) {
    TestTensor packed(TensorDesc(DType::f32, Shape{packed_conv_floats(w.desc.shape, c.groups, table)}));
    std::vector<const TestTensor*> weights = {&w};
    if (all) weights.push_back(&scale);
    run_on_threads(weights, {&packed}, PackConvAttrs{c.groups, all ? 1 : 0}, 0, threads,
                   [&](const KernelContext& ctx) { run_pack_conv(ctx, table); });
    PackedConvAttrs packed_attrs;
    packed_attrs.conv = attrs;
    for (int d = 0; d < 3; ++d) packed_attrs.kernel[d] = c.kernel[d];
    std::vector<const TestTensor*> inputs = {&x, &packed};
    if (c.bias) inputs.push_back(&bias);
    if (all) {
      inputs.push_back(&residual);
      packed_attrs.has_residual = packed_attrs.clamps = 1;
      packed_attrs.low = -0.5f;
      packed_attrs.high = 0.75f;
    }
    // `slack`: tolerance as a fraction of the sum of absolute terms, by output.
    const auto compare = [&](const TestTensor& out, const char* what, auto&& slack) {
      EXPECT_TRUE(out.guards_intact());
      const i64 positions = c.out(0) * c.out(1) * c.out(2), rows = out_desc.shape[1];
      i64 wrong = 0;
      for (i64 i = 0; i < out.elements(); ++i) {
        const i64 channel = i / positions % rows,
                  at = (i / positions / rows * positions + i % positions) * rows + channel;
        const double by = all ? scale.get(channel) : 1;
        const auto index = static_cast<std::size_t>(i);
        double want = sums[index] * by + (c.bias ? bias.get(channel) : 0);
        if (all) want = std::min(std::max(want + residual.get(at), -0.5), 0.75);
        if (std::fabs(out.get(at) - want) <= slack(index) * by + 8e-7) continue;
        if (++wrong < 4) ADD_FAILURE() << what << ", at " << i << ": got " << out.get(at) << ", expected " << want;
      }
      EXPECT_EQ(wrong, 0);
    };
    TestTensor out(out_desc);
    if (depthwise) {
      run_on_threads(inputs, {&out}, packed_attrs, packed_depthwise_scratch_bytes(packed_attrs, threads), threads,
                     [&](const KernelContext& ctx) { run_packed_depthwise_conv(ctx, table); });
    } else {
      run_on_threads(
          inputs, {&out}, packed_attrs, packed_conv_scratch_bytes(x.desc, packed_attrs, threads), threads,
          [&](const KernelContext& ctx) { run_packed_conv(ctx, table); }, kPackedConv.phases);
    }
    compare(out, "packed", [&](std::size_t i) { return 4e-7 * sizes[i]; });
    if (!fits_winograd(w.desc.shape, attrs) || x.desc.strides[1] != 1 || x.desc.shape[2] != 1) continue;
    const WinogradLoops loops(isa);
    TestTensor transformed(TensorDesc(DType::f32, Shape{winograd_floats(w.desc.shape, loops)})), tiled(out_desc);
    run_on_threads(weights, {&transformed}, PackConvAttrs{1, all ? 1 : 0}, 0, threads,
                   [&](const KernelContext& ctx) { run_pack_winograd(ctx, loops); });
    inputs[1] = &transformed;
    run_on_threads(inputs, {&tiled}, packed_attrs, winograd_scratch_bytes(x.desc, out_desc, threads, loops), threads,
                   [&](const KernelContext& ctx) { run_winograd_conv(ctx, loops); });
    const double largest = *std::ranges::max_element(sizes);
    compare(tiled, "by Winograd", [&](std::size_t) { return 4e-7 * largest; });
  }
}

void check(const Case& c) {
  std::mt19937 rng(static_cast<unsigned>(c.channels * 7919 + c.outputs * 104729 + c.size[2] * 31 + c.kernel[2]));
  const i64 all = c.groups * c.channels, rows = c.groups * c.outputs;
  TensorDesc x_desc(c.dtype, Shape{c.batch, all, c.size[0], c.size[1], c.size[2]});
  if (c.channels_last) {
    x_desc.strides = {all * c.size[0] * c.size[1] * c.size[2], 1, c.size[1] * c.size[2] * all, c.size[2] * all, all};
  }
  TestTensor x(x_desc);
  TestTensor w(TensorDesc(c.dtype, Shape{c.transposed ? all : rows, c.transposed ? c.outputs : c.channels, c.kernel[0],
                                         c.kernel[1], c.kernel[2]}));
  TestTensor bias(TensorDesc(c.dtype, Shape{rows}));
  x.fill(rng, -1, 1);
  w.fill(rng, -1, 1);
  bias.fill(rng, -1, 1);
  ConvAttrs attrs;
  attrs.groups = c.groups;
  attrs.transposed = c.transposed ? 1 : 0;
  attrs.has_bias = c.bias ? 1 : 0;
  for (int d = 0; d < 3; ++d) {
    attrs.stride[d] = c.stride[d];
    attrs.padding[d] = c.padding[d];
    attrs.dilation[d] = c.dilation[d];
  }
  std::vector<const TestTensor*> inputs = {&x, &w};
  if (c.bias) inputs.push_back(&bias);
  const TensorDesc out_desc(c.dtype, Shape{c.batch, rows, c.out(0), c.out(1), c.out(2)});
  std::vector<double> sums, sizes;
  expected(c, x, w, TestTensor(out_desc), &sums, &sizes);

  const auto compare = [&](TestTensor& out) {
    EXPECT_TRUE(out.guards_intact());
    i64 wrong = 0;
    const i64 positions = c.out(0) * c.out(1) * c.out(2);
    for (i64 i = 0; i < out.elements(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double want = sums[at] + (c.bias ? bias.get(i / positions % rows) : 0);
      const double tolerance = 4e-7 * (sizes[at] + 1) + rounding(c.dtype) * std::fabs(want);
      if (!(std::fabs(out.get(i) - want) <= tolerance) && ++wrong < 4) {
        ADD_FAILURE() << "at " << i << ": got " << out.get(i) << ", expected " << want;
      }
    }
    EXPECT_EQ(wrong, 0);
  };
  for (const simd::Isa isa : simd::available_isas_of<simd::PackedConvTable>()) {
    for (const int threads : {1, 2, 7}) {
      SCOPED_TRACE(testing::Message() << simd::name(isa) << " threads " << threads << " groups " << c.groups
                                      << " channels " << c.channels << " outputs " << c.outputs << " size " << c.size[0]
                                      << " " << c.size[1] << " " << c.size[2] << " kernel " << c.kernel[0] << " "
                                      << c.kernel[1] << " " << c.kernel[2] << " stride " << c.stride[1] << " "
                                      << c.stride[2] << " transposed " << c.transposed);
      TestTensor out(out_desc);
      const simd::MatmulTable& table = simd::matmul(isa);
      run_on_threads(
          inputs, {&out}, attrs, conv_scratch_bytes(x_desc, w.desc, out_desc, attrs, threads, table), threads,
          [&](const KernelContext& ctx) { run_conv(ctx, table); },
          [&](const KernelContext& ctx) { return conv_phases(ctx, table); });
      compare(out);
      if (!c.transposed && c.dtype == DType::f32) check_packed(c, x, w, bias, attrs, sums, sizes, isa, threads);
      if (c.transposed || c.channels != 1) continue;
      TestTensor again(out_desc);
      const simd::ConvTable& taps = simd::conv(isa);
      run_on_threads(inputs, {&again}, attrs, depthwise_scratch_bytes(w.desc, out_desc, attrs, threads, taps), threads,
                     [&](const KernelContext& ctx) { run_depthwise_conv(ctx, taps); });
      compare(again);
    }
  }
}

TEST(Conv, LinesAroundThePanels) {
  for (const i64 width : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65}) {
    for (const i64 outputs : {1, 6, 7, 12, 13, 25}) {
      check({.channels = 3, .outputs = outputs, .size = {1, 1, width}, .kernel = {1, 1, 3}, .padding = {0, 0, 1}});
      check({.channels = 2,
             .outputs = outputs,
             .size = {1, 3, width},
             .kernel = {1, 3, 1},
             .padding = {0, 1, 0},
             .bias = true});
    }
  }
}

TEST(Conv, StridesPaddingsAndDilations) {
  for (const i64 stride : {1, 2, 3, 5}) {
    for (const i64 padding : {0, 1, 4}) {
      for (const i64 dilation : {1, 2, 3}) {
        for (const bool transposed : {false, true}) {
          Case c{.batch = 2,
                 .channels = 2,
                 .outputs = 3,
                 .size = {1, 11, 23},
                 .kernel = {1, 3, 4},
                 .stride = {1, stride, 1 + stride % 3},
                 .padding = {0, padding, padding / 2},
                 .dilation = {1, dilation, 4 - dilation},
                 .transposed = transposed,
                 .bias = true};
          check(c);
          c.channels_last = true;
          check(c);
          if (transposed && stride > 1) {
            c.output_padding[1] = stride - 1;
            check(c);
          }
        }
      }
    }
  }
}

TEST(Conv, PaddingWiderThanTheInput) {
  check({.channels = 2, .outputs = 2, .size = {1, 2, 3}, .kernel = {1, 5, 9}, .padding = {0, 6, 14}});
  check(
      {.channels = 2, .outputs = 2, .size = {1, 1, 1}, .kernel = {1, 3, 3}, .stride = {1, 2, 2}, .padding = {0, 9, 9}});
}

TEST(Conv, ThreeDimensions) {
  for (const bool transposed : {false, true}) {
    check({.batch = 2,
           .groups = 2,
           .channels = 3,
           .outputs = 2,
           .size = {4, 5, 6},
           .kernel = {2, 3, 3},
           .stride = {2, 1, 2},
           .padding = {1, 1, 0},
           .dilation = {1, 2, 1},
           .transposed = transposed,
           .bias = true});
  }
}

TEST(Conv, MoreDepthThanABlockAndManyPanels) {
  check({.channels = 180, .outputs = 14, .size = {1, 6, 7}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}});
  check({.channels = 4, .outputs = 5, .size = {1, 30, 31}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}, .bias = true});
  check({.channels = 90,
         .outputs = 51,
         .size = {1, 5, 7},
         .kernel = {1, 3, 3},
         .stride = {1, 2, 2},
         .transposed = true,
         .bias = true});
}

TEST(Conv, FewOutputsPerChannel) {
  for (const i64 width : {1, 2, 7, 8}) {
    check({.batch = 3,
           .groups = 2,
           .channels = 5,
           .outputs = 27,
           .size = {1, 1, width},
           .kernel = {1, 1, 3},
           .padding = {0, 0, 1},
           .bias = true});
  }
  // More samples than are copied at once.
  check({.batch = 90, .channels = 200, .outputs = 2, .size = {1, 2, 4}, .kernel = {1, 1, 1}});
}

TEST(Conv, HalfPrecisionAccumulatesInF32AndRoundsOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const bool transposed : {false, true}) {
      check({.groups = 2,
             .channels = 20,
             .outputs = 13,
             .size = {1, 9, 11},
             .kernel = {1, 3, 3},
             .stride = {1, 1, 2},
             .padding = {0, 1, 1},
             .transposed = transposed,
             .bias = true,
             .dtype = dtype});
      check({.channels = 20, .outputs = 13, .size = {1, 1, 5}, .kernel = {1, 1, 3}, .bias = true, .dtype = dtype});
    }
    check({.groups = 5, .size = {1, 9, 40}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}, .bias = true, .dtype = dtype});
  }
}

TEST(DepthwiseConv, LinesAndStrides) {
  for (const i64 width : {1, 4, 7, 16, 17, 33, 70, 130}) {
    for (const i64 stride : {1, 2, 3}) {
      check({.batch = 2,
             .groups = 3,
             .outputs = 2,
             .size = {1, 7, width},
             .kernel = {1, 3, 3},
             .stride = {1, stride, stride},
             .padding = {0, 1, 1},
             .bias = true});
      check({.groups = 2,
             .size = {3, 9, width},
             .kernel = {2, 3, 5},
             .stride = {1, 1, stride},
             .padding = {1, 2, 4},
             .dilation = {1, 2, 2}});
    }
  }
}

TEST(PackedConv, TilesPanelsAndKBlocks) {
  for (const bool last : {false, true}) {
    for (const i64 outputs : {8, 16, 17, 32, 33, 70})
      for (const i64 channels : {1, 15, 256, 257, 600})
        check({.channels = channels, .outputs = outputs, .size = {1, 3, 13}, .bias = true, .channels_last = last});
    // A row for each sample; taps of a kernel row contiguous and not; groups.
    check({.batch = 2, .channels = 90, .outputs = 40, .size = {1, 9, 25}, .kernel = {1, 3, 3}, .channels_last = last});
    check({.channels = 40,
           .outputs = 20,
           .size = {1, 9, 25},
           .kernel = {1, 3, 3},
           .stride = {1, 2, 2},
           .dilation = {1, 1, 2},
           .channels_last = last});
    check({.batch = 3,
           .groups = 3,
           .channels = 10,
           .outputs = 34,
           .size = {1, 4, 5},
           .kernel = {1, 3, 3},
           .padding = {0, 1, 1},
           .bias = true,
           .channels_last = last});
  }
  // Enough tiles for all threads, and samples copied in two parts.
  check({.channels = 5, .outputs = 9, .size = {1, 60, 77}, .channels_last = true});
  check({.batch = 3, .channels = 300, .outputs = 8, .size = {1, 31, 63}, .kernel = {1, 1, 3}, .padding = {0, 0, 1}});
}

TEST(PackedConv, DepthwiseChannelsAroundTheVectors) {
  for (const i64 groups : {2, 15, 16, 17, 40}) {
    for (const i64 stride : {1, 2, 3}) {
      for (const i64 width : {1, 2, 6, 7, 8, 21}) {
        check({.batch = 2,
               .groups = groups,
               .size = {1, 6, width},
               .kernel = {1, 3, 3},
               .stride = {1, stride, stride},
               .padding = {0, 1, 1},
               .bias = true,
               .channels_last = true});
        check({.groups = groups,
               .size = {2, 9, width},
               .kernel = {2, 3, 5},
               .stride = {1, 1, stride},
               .padding = {1, 2, 4},
               .dilation = {1, 2, 2},
               .channels_last = true});
      }
    }
  }
}

TEST(PackedConv, NarrowPanels) {
  // Widths of one and three half vectors of each instruction set and their neighbours, alone and after a whole panel.
  // Odd sums and sums of two blocks have no narrow panel. Tiles of every number of rows.
  for (const i64 outputs : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 20, 24, 25, 40, 56})
    for (const i64 channels : {1, 2, 6, 7, 64, 256, 258})
      check({.channels = channels, .outputs = outputs, .size = {1, 1, 5}, .kernel = {1, 1, 1}, .channels_last = true});
  for (const i64 outputs : {2, 4, 8, 10, 12, 24})
    for (i64 positions = 1; positions <= 26; ++positions)
      check({.batch = 2,
             .channels = 10,
             .outputs = outputs,
             .size = {1, 1, positions},
             .kernel = {1, 1, 1},
             .bias = true,
             .channels_last = true});
  check({.groups = 2, .channels = 8, .outputs = 24, .size = {1, 5, 5}, .kernel = {1, 1, 1}, .channels_last = true});
  check({.channels = 8,
         .outputs = 24,
         .size = {1, 5, 5},
         .kernel = {1, 1, 1},
         .stride = {1, 2, 2},
         .padding = {0, 1, 1}});
  check({.channels = 2, .outputs = 24, .size = {1, 5, 5}, .kernel = {1, 3, 3}, .channels_last = true});
}

TEST(PackedConv, NaNStaysAndZeroTimesPaddingIsNotRead) {
  for (const simd::Isa isa : simd::available_isas_of<simd::PackedConvTable>()) {
    const simd::PackedConvTable& table = simd::packed_conv(isa);
    // A channel with NaN and infinity, a 3 x 3 kernel of ones: outputs that do not see them are finite.
    TestTensor x(channels_last({1, 2, 1, 5, 9})), w(TensorDesc(DType::f32, Shape{2, 1, 1, 3, 3}));
    for (i64 i = 0; i < x.elements(); ++i) x.set(i, 1);
    for (i64 i = 0; i < w.elements(); ++i) w.set(i, 1);
    x.set(0, std::numeric_limits<double>::quiet_NaN());
    x.set(1, std::numeric_limits<double>::infinity());
    TestTensor packed(TensorDesc(DType::f32, Shape{packed_conv_floats(w.desc.shape, 2, table)}));
    run_on_threads({&w}, {&packed}, PackConvAttrs{2, 0}, 0, 1,
                   [&](const KernelContext& c) { run_pack_conv(c, table); });
    PackedConvAttrs attrs;
    attrs.conv.groups = 2;
    attrs.conv.padding[1] = attrs.conv.padding[2] = 1;
    attrs.kernel[1] = attrs.kernel[2] = 3;
    attrs.clamps = 1;
    attrs.low = 0;
    attrs.high = 6;
    TestTensor out(channels_last({1, 2, 1, 5, 9}));
    run_on_threads({&x, &packed}, {&out}, attrs, packed_depthwise_scratch_bytes(attrs, 1), 1,
                   [&](const KernelContext& c) { run_packed_depthwise_conv(c, table); });
    for (i64 h = 0; h < 5; ++h) {
      for (i64 col = 0; col < 9; ++col) {
        const bool sees = h < 2 && col < 2;
        const i64 edges = (h == 0 || h == 4) + (col == 0 || col == 8);
        const double plain = edges == 0 ? 6 : edges == 1 ? 6 : 4;  // 9, 6 or 4 ones, clamped
        EXPECT_EQ(std::isnan(out.get((h * 9 + col) * 2)), sees) << simd::name(isa) << " " << h << " " << col;
        if (!sees) {
          EXPECT_EQ(out.get((h * 9 + col) * 2), plain);
        }
        EXPECT_EQ(out.get((h * 9 + col) * 2 + 1), sees ? 6 : plain);
      }
    }
  }
}

TEST(WinogradConv, TilesPanelsAndChunks) {
  for (const i64 height : {1, 2, 3, 8})
    for (const i64 width : {1, 2, 5, 14})
      for (const i64 padding : {0, 1, 2}) {
        if (height + 2 * padding < 3 || width + 2 * padding < 3) continue;
        check({.batch = 2,
               .channels = 5,
               .outputs = 9,
               .size = {1, height, width},
               .kernel = {1, 3, 3},
               .padding = {0, padding, padding},
               .bias = true,
               .channels_last = true});
      }
  for (const i64 channels : {1, 16, 33, 300})
    for (const i64 outputs : {1, 16, 33, 70})
      check({.channels = channels,
             .outputs = outputs,
             .size = {1, 7, 9},
             .kernel = {1, 3, 3},
             .padding = {0, 1, 1},
             .channels_last = true});
  // Tiles in several chunks; weights so large that threads divide panels.
  check({.batch = 2,
         .channels = 64,
         .outputs = 32,
         .size = {1, 30, 31},
         .kernel = {1, 3, 3},
         .padding = {0, 1, 1},
         .channels_last = true});
  check({.channels = 130,
         .outputs = 100,
         .size = {1, 33, 40},
         .kernel = {1, 3, 3},
         .padding = {0, 1, 1},
         .channels_last = true});
}

TEST(WinogradConv, WhatIsNotFiniteReachesThoseThatSeeIt) {
  for (const simd::Isa isa : simd::available_isas_of<simd::PackedConvTable>()) {
    const WinogradLoops loops(isa);
    TestTensor x(channels_last({1, 3, 1, 7, 8})), w(TensorDesc(DType::f32, Shape{20, 3, 1, 3, 3}));
    std::mt19937 rng(1);
    x.fill(rng, -1, 1);
    w.fill(rng, -1, 1);
    TestTensor before = x;
    const i64 nan_at = 1 * 8 + 2, infinity_at = 5 * 8 + 7;  // positions
    x.set(nan_at * 3 + 1, std::numeric_limits<double>::quiet_NaN());
    x.set(infinity_at * 3, std::numeric_limits<double>::infinity());
    TestTensor packed(TensorDesc(DType::f32, Shape{winograd_floats(w.desc.shape, loops)}));
    run_on_threads({&w}, {&packed}, PackConvAttrs{}, 0, 1,
                   [&](const KernelContext& c) { run_pack_winograd(c, loops); });
    PackedConvAttrs attrs;
    attrs.conv.padding[1] = attrs.conv.padding[2] = 1;
    attrs.kernel[1] = attrs.kernel[2] = 3;
    TestTensor out(channels_last({1, 20, 1, 7, 8})), finite(out.desc);
    for (auto [input, to] : {std::pair{&x, &out}, std::pair{&before, &finite}})
      run_on_threads({input, &packed}, {to}, attrs, winograd_scratch_bytes(x.desc, out.desc, 1, loops), 1,
                     [&](const KernelContext& c) { run_winograd_conv(c, loops); });
    for (i64 h = 0; h < 7; ++h)
      for (i64 col = 0; col < 8; ++col)
        for (i64 o = 0; o < 20; ++o) {
          const i64 at = (h * 8 + col) * 20 + o;
          const auto sees = [&](i64 position) {
            return std::abs(h - position / 8) <= 1 && std::abs(col - position % 8) <= 1;
          };
          if (sees(nan_at)) {
            EXPECT_TRUE(std::isnan(out.get(at))) << h << " " << col;
          } else if (sees(infinity_at)) {
            const i64 tap = (5 - h + 1) * 3 + 7 - col + 1;
            EXPECT_TRUE(std::isinf(out.get(at)) && std::signbit(out.get(at)) == std::signbit(w.get(o * 27 + tap)))
                << h << " " << col << ": " << out.get(at);
          } else {
            EXPECT_NEAR(out.get(at), finite.get(at), 4e-6) << simd::name(isa) << " " << h << " " << col;
          }
        }
  }
}

TEST(DepthwiseConv, BandsOfLines) {
  check({.groups = 2, .size = {1, 60, 1500}, .kernel = {1, 3, 3}, .stride = {1, 2, 1}, .padding = {0, 1, 1}});
  check({.groups = 1, .size = {1, 40, 30000}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}});
}

}  // namespace
}  // namespace graft
