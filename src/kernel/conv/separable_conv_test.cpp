#define GRAFT_ISA test_reference
#include "kernel/conv/separable_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/check.h"
#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

struct Case {
  i64 batch = 1, inputs = 8, channels = 16, outputs = 8;  // inputs or outputs 0: no convolution there
  i64 height = 9, width = 9;
  i64 kernel = 3, stride = 1, padding = 1, dilation = 1;
  bool residual = false;
  i64 expand_kernel = 1, expand_stride = 1, expand_padding = 0;
  bool channels_last = true;  // layout of the input
  bool bands = true;          // also test the launch by bands of rows

  i64 middle(i64 size) const { return (size + 2 * expand_padding - expand_kernel) / expand_stride + 1; }
  i64 out(i64 size) const { return (middle(size) + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1; }
};

TensorDesc channels_last(i64 n, i64 c, i64 h, i64 w) {
  TensorDesc desc(DType::f32, Shape{n, c, 1, h, w});
  desc.strides = {h * w * c, 1, h * w * c, w * c, c};
  return desc;
}

void fill(TestTensor& tensor, unsigned seed) {
  std::mt19937 rng(seed);
  tensor.fill(rng, -1, 1);
}

// One convolution alone, as the reference: its own tests compare it with plain sums.
struct Conv {
  PackedConvAttrs attrs;
  TestTensor packed, bias;

  Conv(i64 outputs, i64 inputs, i64 groups, i64 lines, i64 columns, const simd::PackedConvTable& table, unsigned seed)
      : packed(TensorDesc(DType::f32, Shape{1})), bias(TensorDesc(DType::f32, Shape{outputs})) {
    TestTensor weight(TensorDesc(DType::f32, Shape{outputs, inputs / groups, 1, lines, columns}));
    fill(weight, seed);
    fill(bias, seed + 1);
    packed = TestTensor(TensorDesc(DType::f32, Shape{packed_conv_floats(weight.desc.shape, groups, table)}));
    run_on_threads({&weight}, {&packed}, PackConvAttrs{groups, 0}, 0, 1,
                   [&](const KernelContext& c) { run_pack_conv(c, table); });
    attrs.conv.groups = groups;
    attrs.conv.has_bias = 1;
    attrs.kernel[1] = lines;
    attrs.kernel[2] = columns;
  }

  void run(const TestTensor& x, TestTensor& out, const TestTensor* residual, const simd::PackedConvTable& table) const {
    std::vector<const TestTensor*> operands = {&x, &packed, &bias};
    if (residual != nullptr) operands.push_back(residual);
    if (attrs.conv.groups > 1) {
      run_on_threads(operands, {&out}, attrs, packed_depthwise_scratch_bytes(attrs, 1), 1,
                     [&](const KernelContext& c) { run_packed_depthwise_conv(c, table); });
    } else {
      run_on_threads(
          operands, {&out}, attrs, packed_conv_scratch_bytes(x.desc, attrs, 1), 1,
          [&](const KernelContext& c) { run_packed_conv(c, table); }, kPackedConv.phases);
    }
  }
};

void check(const Case& c) {
  const i64 out_h = c.out(c.height), out_w = c.out(c.width);
  SCOPED_TRACE(str(c.inputs, " to ", c.channels, " to ", c.outputs, " channels of [", c.height, ", ", c.width,
                   "], kernel ", c.kernel, ", stride ", c.stride, ", before it kernel ", c.expand_kernel, ", stride ",
                   c.expand_stride));
  const i64 first = c.inputs > 0 ? c.inputs : c.channels, last = c.outputs > 0 ? c.outputs : c.channels;
  for (const simd::Isa isa : simd::available_isas_of<simd::PackedConvTable>()) {
    const simd::PackedConvTable& table = simd::packed_conv(isa);
    TestTensor x(c.channels_last ? channels_last(c.batch, first, c.height, c.width)
                                 : TensorDesc(DType::f32, Shape{c.batch, first, 1, c.height, c.width}));
    fill(x, 1);
    x.set(3, std::numeric_limits<double>::quiet_NaN());
    TestTensor residual(channels_last(c.batch, last, out_h, out_w));
    fill(residual, 2);
    SeparableConvAttrs attrs;
    attrs.channels = c.channels;
    attrs.height = c.middle(c.height);
    attrs.width = c.middle(c.width);

    std::optional<Conv> expand, project;
    Conv depthwise(c.channels, c.channels, c.channels, c.kernel, c.kernel, table, 3);
    for (int d = 1; d < 3; ++d) {
      depthwise.attrs.conv.stride[d] = c.stride;
      depthwise.attrs.conv.padding[d] = c.padding;
      depthwise.attrs.conv.dilation[d] = c.dilation;
    }
    depthwise.attrs.activation = simd::Activation::silu;
    std::vector<const TestTensor*> operands = {&x};
    TestTensor expanded(channels_last(c.batch, c.channels, attrs.height, attrs.width));
    TestTensor between(channels_last(c.batch, c.channels, out_h, out_w));
    TestTensor expected(channels_last(c.batch, last, out_h, out_w)), out(expected.desc);
    if (c.inputs > 0) {
      expand.emplace(c.channels, c.inputs, 1, c.expand_kernel, c.expand_kernel, table, 5);
      for (int d = 1; d < 3; ++d) {
        expand->attrs.conv.stride[d] = c.expand_stride;
        expand->attrs.conv.padding[d] = c.expand_padding;
      }
      expand->attrs.clamps = 1;
      expand->attrs.low = -0.5f;
      expand->attrs.high = 0.75f;
      attrs.has_expand = 1;
      attrs.expand = expand->attrs;
      operands.insert(operands.end(), {&expand->packed, &expand->bias});
      expand->run(x, expanded, nullptr, table);
    }
    attrs.depthwise = depthwise.attrs;
    operands.insert(operands.end(), {&depthwise.packed, &depthwise.bias});
    depthwise.run(c.inputs > 0 ? expanded : x, c.outputs > 0 ? between : expected, nullptr, table);
    if (c.outputs > 0) {
      project.emplace(c.outputs, c.channels, 1, 1, 1, table, 7);
      project->attrs.has_residual = c.residual ? 1 : 0;
      attrs.has_project = 1;
      attrs.project = project->attrs;
      operands.insert(operands.end(), {&project->packed, &project->bias});
      if (c.residual) operands.push_back(&residual);
      project->run(between, expected, c.residual ? &residual : nullptr, table);
    }

    // By panels of channels nothing is computed twice or in other tiles: the sums are the same bits.
    if (c.inputs > 0 && c.outputs == 0 && expands_by_panels(x.desc, attrs.expand)) {
      const std::function<void(const KernelContext&)> by_panels = [&](const KernelContext& ctx) {
        run_separable_panels(ctx, table);
      };
      for (const int threads : {1, 2, 3, 8}) {
        fill(out, 9);
        run_on_threads(operands, {&out}, attrs, separable_panels_scratch_bytes(x.desc, out.desc, attrs, threads),
                       threads, threads == 3 ? last_first(by_panels) : by_panels, kSeparableConvByPanels.phases);
        EXPECT_TRUE(out.guards_intact());
        i64 wrong = 0;
        for (i64 i = 0; i < out.elements(); ++i) {
          const double got = out.get(i), want = expected.get(i);
          if (got == want || (std::isnan(got) && std::isnan(want))) continue;
          if (++wrong < 4)
            ADD_FAILURE() << simd::name(isa) << ", " << threads << " threads, by panels, at " << i << ": " << got
                          << ", apart " << want;
        }
      }
    }

    if (!c.bands) continue;
    const std::function<void(const KernelContext&)> run = [&](const KernelContext& ctx) {
      run_separable_conv(ctx, table);
    };
    TestTensor alone(out.desc);
    for (const int threads : {1, 2, 3, 8}) {
      fill(out, 9);
      run_on_threads(operands, {&out}, attrs, separable_conv_scratch_bytes(x.desc, out.desc, attrs, threads), threads,
                     threads == 3 ? last_first(run) : run, kSeparableConv.phases);
      EXPECT_TRUE(out.guards_intact());
      if (threads == 1) alone = out;
      i64 wrong = 0;
      for (i64 i = 0; i < out.elements(); ++i) {
        const double got = out.get(i), want = expected.get(i), one = alone.get(i);
        const bool fits = std::isnan(want) ? std::isnan(got) : std::fabs(got - want) <= 2e-6 * (1 + std::fabs(want));
        const bool same = got == one || (std::isnan(got) && std::isnan(one));
        if (fits && same) continue;
        if (++wrong < 4)
          ADD_FAILURE() << simd::name(isa) << ", " << threads << " threads, at " << i << ": " << got << ", apart "
                        << want << ", with one thread " << one;
      }
    }
  }
}

TEST(SeparableConv, TheSumsOfThreeLaunches) {
  for (const i64 inputs : {0, 1, 16, 33})
    for (const i64 outputs : {0, 1, 24, 40})
      for (const i64 channels : {2, 16, 33})
        check({.batch = 2, .inputs = inputs, .channels = channels, .outputs = outputs, .residual = outputs == 24});
}

TEST(SeparableConv, LinesAndStrides) {
  for (const i64 height : {1, 2, 5, 24})
    for (const i64 stride : {1, 2, 3, 5})
      for (const i64 width : {1, 7, 30}) {
        check({.height = height, .width = width, .stride = stride});
        check({.height = height, .width = width, .kernel = 5, .stride = stride, .padding = 4, .dilation = 2});
      }
}

TEST(SeparableConv, AnyConvolutionBefore) {
  for (const bool last : {false, true})
    for (const i64 inputs : {1, 3, 20})
      for (const i64 kernel : {1, 3, 4})
        for (const i64 stride : {1, 2})
          for (const i64 padding : {0, 1})
            check({.batch = 2,
                   .inputs = inputs,
                   .channels = 20,
                   .height = 13,
                   .width = 30,
                   .expand_kernel = kernel,
                   .expand_stride = stride,
                   .expand_padding = padding,
                   .channels_last = last});
}

TEST(SeparableConv, BandsOfLines) {
  check({.inputs = 24, .channels = 144, .outputs = 24, .height = 40, .width = 56, .residual = true});
  check({.inputs = 16, .channels = 96, .outputs = 24, .height = 30, .width = 112, .stride = 2});
  // Samples copied in two groups.
  check({.batch = 2,
         .inputs = 70,
         .channels = 8,
         .outputs = 8,
         .height = 100,
         .width = 100,
         .expand_kernel = 3,
         .expand_padding = 1});
  // A row is more than a band; sums of several K blocks.
  check({.inputs = 300, .channels = 600, .outputs = 8, .height = 5, .width = 130});
}

TEST(SeparableConv, PanelsOfChannels) {
  for (const i64 channels : {20, 64, 161})
    for (const i64 inputs : {1, 40, 300})
      for (const i64 size : {1, 7, 13})
        for (const i64 stride : {1, 2})
          check({.batch = 2,
                 .inputs = inputs,
                 .channels = channels,
                 .outputs = 0,
                 .height = size,
                 .width = size == 7 ? 7 : 5,
                 .stride = stride,
                 .bands = false});
  // More tiles than one call takes; other kernels; a convolution before it that has a stride and sees neighbours.
  check({.inputs = 8, .channels = 70, .outputs = 0, .height = 20, .width = 31});
  check({.inputs = 8, .channels = 70, .outputs = 0, .height = 9, .width = 9, .kernel = 5, .padding = 4, .dilation = 2});
  check({.inputs = 8, .channels = 70, .outputs = 0, .height = 15, .width = 13, .expand_kernel = 3, .expand_stride = 2});
}

}  // namespace
}  // namespace graft
