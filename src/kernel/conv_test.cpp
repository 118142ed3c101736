#define GRAFT_ISA test_reference
#include "kernel/conv.h"

#include <gtest/gtest.h>

#include <cmath>

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
    const i64 reach = dilation[d] * (kernel[d] - 1) + 1;
    if (transposed) return (size[d] - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d];
    return (size[d] + 2 * padding[d] - reach) / stride[d] + 1;
  }
};

double rounding(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 2048; }

i64 place(const TensorDesc& d, i64 a, i64 b, i64 c, i64 e, i64 f) {
  return a * d.strides[0] + b * d.strides[1] + c * d.strides[2] + e * d.strides[3] + f * d.strides[4];
}

// Sums and sums of absolute terms of every output, by scattering each input.
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
  for (const simd::Isa isa : simd::available_isas()) {
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
  // More samples than are laid out at once.
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

TEST(DepthwiseConv, BandsOfLines) {
  check({.groups = 2, .size = {1, 60, 1500}, .kernel = {1, 3, 3}, .stride = {1, 2, 1}, .padding = {0, 1, 1}});
  check({.groups = 1, .size = {1, 40, 30000}, .kernel = {1, 3, 3}, .padding = {0, 1, 1}});
}

}  // namespace
}  // namespace graft
