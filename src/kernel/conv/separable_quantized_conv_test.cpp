#define GRAFT_ISA test_reference
#include "kernel/conv/separable_quantized_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>

#include "base/check.h"
#include "kernel/simd/simd_test_util.h"

// Against the separate launches, whose own tests compare them with plain sums: the bytes are equal.
namespace graft {
namespace {

using i64 = std::int64_t;
using simd::QuantizedConvTable;

struct Case {
  i64 batch = 1, inputs = 8, channels = 16, outputs = 8;  // inputs or outputs 0: no convolution there
  i64 height = 9, width = 9;
  i64 kernel = 3, stride = 1, padding = 1, dilation = 1;
  bool residual = false;
  i64 expand_kernel = 1, expand_stride = 1, expand_padding = 0;
  i64 expand_lines = 0;       // rows of its kernel; 0: as many as taps
  bool channels_last = true;  // layout of the input
  DType input = DType::i8, expanded = DType::i8, between = DType::i8, output = DType::i8;

  i64 kernel_lines() const { return expand_lines > 0 ? expand_lines : expand_kernel; }
  i64 middle_height() const { return (height + 2 * expand_padding - kernel_lines()) / expand_stride + 1; }
  i64 middle_width() const { return (width + 2 * expand_padding - expand_kernel) / expand_stride + 1; }
  i64 out(i64 middle) const { return (middle + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1; }
};

TensorDesc channels_last(DType dtype, i64 n, i64 c, i64 h, i64 w) {
  TensorDesc desc(dtype, Shape{n, c, 1, h, w});
  desc.strides = {h * w * c, 1, h * w * c, w * c, c};
  return desc;
}

void fill_bytes(TestTensor& tensor, unsigned seed) {
  std::mt19937 rng(seed);
  auto* bytes = static_cast<std::uint8_t*>(tensor.data());
  for (i64 i = 0; i < tensor.elements() * static_cast<i64>(byte_size(tensor.desc.dtype)); ++i)
    bytes[i] = static_cast<std::uint8_t>(rng());
}

int zero_of(DType dtype) { return dtype == DType::i8 ? -7 : 130; }

// One convolution alone.
struct Conv {
  PackedQuantizedConvAttrs attrs;
  TestTensor packed;

  Conv(i64 outputs, i64 inputs, const ConvAttrs& conv, i64 lines, i64 columns, DType in, DType out,
       const QuantizedConvTable& table, unsigned seed)
      : packed(TensorDesc(DType::u8, Shape{1})) {
    std::mt19937 rng(seed);
    TestTensor weight(TensorDesc(DType::i8, Shape{outputs, inputs / conv.groups, 1, lines, columns}));
    TestTensor scale(TensorDesc(DType::f32, Shape{outputs})), bias(TensorDesc(DType::f32, Shape{outputs}));
    fill_bytes(weight, seed);
    scale.fill(rng, 0.5f, 1.5f);
    bias.fill(rng, -50.f, 50.f);
    PackQuantizedConvAttrs pack;
    pack.conv = conv;
    pack.conv.has_bias = 1;
    pack.has_weight_scale = 1;
    pack.input_scale = 0.01f;
    pack.input_zero = zero_of(in) + (in == DType::i8 ? 128 : 0);
    packed = TestTensor(TensorDesc(DType::u8, Shape{packed_quantized_conv_bytes(weight.desc.shape, pack.conv, table)}));
    run_on_threads({&weight, &scale, &bias}, {&packed}, pack, 0, 1,
                   [&](const KernelContext& c) { run_pack_quantized_conv(c, table); });
    attrs.conv = conv;
    attrs.kernel[1] = lines;
    attrs.kernel[2] = columns;
    attrs.input_zero = zero_of(in);
    attrs.zero = zero_of(out);
    const float least = out == DType::i8 ? -128 : 0, depth = static_cast<float>(inputs / conv.groups * lines * columns);
    attrs.scale = 0.5f * std::sqrt(depth);
    attrs.first = {1 / attrs.scale, least + 9 - static_cast<float>(attrs.zero),
                   least + 250 - static_cast<float>(attrs.zero)};
  }

  void add_residual(DType out) {
    attrs.has_residual = 1;
    attrs.residual_scale = attrs.scale * 0.75f;
    attrs.residual_zero = zero_of(out) + 3;
    attrs.second = {0.625f / attrs.scale, attrs.first.low, attrs.first.high};
  }

  void run(const TestTensor& x, TestTensor& out, const TestTensor* residual, const QuantizedConvTable& table) const {
    std::vector<const TestTensor*> operands = {&x, &packed};
    if (residual != nullptr) operands.push_back(residual);
    if (attrs.conv.groups > 1) {
      run_on_threads(operands, {&out}, attrs, packed_quantized_depthwise_scratch_bytes(x.desc, out.desc, attrs, 1), 1,
                     [&](const KernelContext& c) { run_packed_quantized_depthwise_conv(c, table); });
    } else {
      run_on_threads(
          operands, {&out}, attrs, packed_quantized_conv_scratch_bytes(x.desc, attrs, 1), 1,
          [&](const KernelContext& c) { run_packed_quantized_conv(c, table); }, kPackedQuantizedConv.phases);
    }
  }
};

ConvAttrs geometry(i64 groups, i64 stride, i64 padding, i64 dilation) {
  ConvAttrs conv;
  conv.groups = groups;
  for (int d = 1; d < 3; ++d) {
    conv.stride[d] = stride;
    conv.padding[d] = padding;
    conv.dilation[d] = dilation;
  }
  return conv;
}

void check(const Case& c) {
  const i64 out_h = c.out(c.middle_height()), out_w = c.out(c.middle_width());
  SCOPED_TRACE(str(c.inputs, " to ", c.channels, " to ", c.outputs, " channels of [", c.height, ", ", c.width,
                   "], kernel ", c.kernel, ", stride ", c.stride, ", before it kernel ", c.expand_kernel, ", stride ",
                   c.expand_stride));
  const i64 first = c.inputs > 0 ? c.inputs : c.channels, last = c.outputs > 0 ? c.outputs : c.channels;
  const DType expanded_type = c.inputs > 0 ? c.expanded : c.input, between_type = c.outputs > 0 ? c.between : c.output;
  for (const simd::Isa isa : simd::available_isas_of<simd::QuantizedConvTable>()) {
    const QuantizedConvTable& table = simd::quantized_conv(isa);
    TestTensor x(c.channels_last ? channels_last(c.input, c.batch, first, c.height, c.width)
                                 : TensorDesc(c.input, Shape{c.batch, first, 1, c.height, c.width}));
    fill_bytes(x, 1);
    SeparableQuantizedConvAttrs attrs;
    attrs.channels = c.channels;
    attrs.height = c.middle_height();
    attrs.width = c.middle_width();
    attrs.expanded = expanded_type;
    attrs.between = between_type;

    std::vector<const TestTensor*> operands = {&x};
    TestTensor expanded(channels_last(expanded_type, c.batch, c.channels, attrs.height, attrs.width));
    TestTensor between(channels_last(between_type, c.batch, c.channels, out_h, out_w));
    TestTensor expected(channels_last(c.output, c.batch, last, out_h, out_w)), out(expected.desc);
    TestTensor residual(expected.desc);
    fill_bytes(residual, 2);
    std::optional<Conv> expand, project;
    const Conv depthwise(c.channels, c.channels, geometry(c.channels, c.stride, c.padding, c.dilation), c.kernel,
                         c.kernel, expanded_type, between_type, table, 3);
    if (c.inputs > 0) {
      expand.emplace(c.channels, c.inputs, geometry(1, c.expand_stride, c.expand_padding, 1), c.kernel_lines(),
                     c.expand_kernel, c.input, c.expanded, table, 5);
      attrs.has_expand = 1;
      attrs.expand = expand->attrs;
      operands.push_back(&expand->packed);
      expand->run(x, expanded, nullptr, table);
    }
    attrs.depthwise = depthwise.attrs;
    operands.push_back(&depthwise.packed);
    depthwise.run(c.inputs > 0 ? expanded : x, c.outputs > 0 ? between : expected, nullptr, table);
    if (c.outputs > 0) {
      project.emplace(c.outputs, c.channels, ConvAttrs(), 1, 1, c.between, c.output, table, 7);
      if (c.residual) project->add_residual(c.output);
      attrs.has_project = 1;
      attrs.project = project->attrs;
      operands.push_back(&project->packed);
      if (c.residual) operands.push_back(&residual);
      project->run(between, expected, c.residual ? &residual : nullptr, table);
    }

    const std::function<void(const KernelContext&)> run = [&](const KernelContext& ctx) {
      run_separable_quantized_conv(ctx, table);
    };
    for (const int threads : {1, 2, 3, 8}) {
      fill_bytes(out, 9);
      run_on_threads(operands, {&out}, attrs, separable_quantized_conv_scratch_bytes(x.desc, out.desc, attrs, threads),
                     threads, threads == 3 ? last_first(run) : run, kSeparableQuantizedConv.phases);
      EXPECT_TRUE(out.guards_intact());
      const auto bytes = static_cast<i64>(byte_size(c.output)) * out.elements();
      const auto *got = static_cast<const std::uint8_t*>(out.data()),
                 *want = static_cast<const std::uint8_t*>(expected.data());
      i64 wrong = 0;
      for (i64 i = 0; i < bytes; ++i) {
        if (got[i] == want[i]) continue;
        if (++wrong < 4)
          ADD_FAILURE() << simd::name(isa) << ", " << threads << " threads, at " << i << ": " << int{got[i]}
                        << ", apart " << int{want[i]};
      }
    }
  }
}

TEST(SeparableQuantizedConv, TheBytesOfThreeLaunches) {
  for (const i64 inputs : {0, 1, 16, 33})
    for (const i64 outputs : {0, 1, 24, 70})
      for (const i64 channels : {2, 16, 33, 70})
        check({.batch = 2, .inputs = inputs, .channels = channels, .outputs = outputs, .residual = outputs == 24});
}

TEST(SeparableQuantizedConv, BytesWithAndWithoutSignAndFloats) {
  constexpr DType kBytes[] = {DType::i8, DType::u8};
  for (const DType input : kBytes)
    for (const DType expanded : kBytes)
      for (const DType between : kBytes)
        for (const DType output : {DType::i8, DType::u8, DType::f32})
          for (const i64 inputs : {0, 8})
            for (const i64 outputs : {0, 8})
              check({.inputs = inputs,
                     .outputs = outputs,
                     .residual = outputs > 0 && output != DType::f32,
                     .input = input,
                     .expanded = expanded,
                     .between = between,
                     .output = output});
}

TEST(SeparableQuantizedConv, LinesAndStrides) {
  for (const i64 height : {1, 2, 5, 24})
    for (const i64 stride : {1, 2, 3, 5})
      for (const i64 width : {1, 7, 30}) {
        check({.height = height, .width = width, .stride = stride});
        check({.height = height, .width = width, .kernel = 5, .stride = stride, .padding = 4, .dilation = 2});
      }
}

TEST(SeparableQuantizedConv, AnyConvolutionBefore) {
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

TEST(SeparableQuantizedConv, BandsOfLines) {
  check({.height = 60, .width = 60, .expand_kernel = 3, .expand_lines = 1});
  check({.inputs = 24, .channels = 144, .outputs = 24, .height = 60, .width = 112, .residual = true});
  check({.inputs = 16, .channels = 96, .outputs = 24, .height = 70, .width = 112, .stride = 2});
  // Samples copied in two groups.
  check({.batch = 2,
         .inputs = 70,
         .channels = 8,
         .outputs = 8,
         .height = 180,
         .width = 180,
         .expand_kernel = 3,
         .expand_padding = 1});
  // A row is more than a band.
  check({.inputs = 70, .channels = 1000, .outputs = 8, .height = 5, .width = 400});
}

}  // namespace
}  // namespace graft
