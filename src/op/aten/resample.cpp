// Operators that resize spatial dimensions: padding with the tensor's own elements, upsampling, sampling by a grid,
// col2im.
#include "kernel/spatial/resample.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernel/spatial/grid_sample.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/operator.h"

namespace graft {
namespace {

using Sizes = std::vector<std::int64_t>;

// --- padding ---

template <int spatial>
Refusal refuse_pad(const NodeView& node) {
  const int rank = node.tensor("self").rank();
  if (rank == spatial + 1 || rank == spatial + 2) return {};
  return str("self has rank ", rank, ", expected ", spatial + 1, " or ", spatial + 2);
}

template <int spatial, PadMode mode>
std::vector<Shape> pad_shape(const Call& call) {
  const Shape& self = call.tensor("self").shape();
  const Sizes padding = call.integers("padding");
  GRAFT_CHECK(InvalidArgument, padding.size() == 2 * spatial, "padding has ", padding.size(), " entries, expected ",
              2 * spatial);
  Shape out = self;
  for (int d = 0; d < spatial; ++d) {
    const int dim = self.rank() - 1 - d;
    const std::int64_t before = padding[static_cast<std::size_t>(2 * d)],
                       after = padding[static_cast<std::size_t>(2 * d + 1)];
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    GRAFT_CHECK(InvalidArgument, std::abs(before) <= kMost && std::abs(after) <= kMost, "padding is (", before, ", ",
                after, ")");
    GRAFT_CHECK(InvalidArgument, self[dim] > 0, "dimension ", dim, " of shape ", self.str(),
                " has no element to repeat");
    if (mode == PadMode::reflect)
      GRAFT_CHECK(InvalidArgument, before < self[dim] && after < self[dim], "padding (", before, ", ", after,
                  ") is not less than dimension ", dim, " of shape ", self.str());
    out[dim] = self[dim] + before + after;
    GRAFT_CHECK(InvalidArgument, out[dim] > 0, "dimension ", dim, " of the output would have size ", out[dim]);
  }
  return {out};
}

template <int spatial, PadMode mode>
std::vector<Tensor> lower_pad(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.tensor("self").dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  const Sizes padding = call.integers("padding");
  MappedPadAttrs attrs;
  attrs.mode = mode;
  for (int d = 0; d < spatial; ++d) attrs.before[2 - d] = padding[static_cast<std::size_t>(2 * d)];
  lowering.launch(kMappedPad, {with_three_spatial(lowering.contiguous(call.tensor("self")), spatial)},
                  {with_three_spatial(out, spatial)}, attrs);
  return {out};
}

template <int spatial, PadMode mode>
constexpr Operator pad_operator(std::string_view target) {
  return {target, refuse_pad<spatial>, pad_shape<spatial, mode>, lower_pad<spatial, mode>, true};
}

// --- upsampling ---

Refusal refuse_any(const NodeView& node) {
  const std::string_view name_of_input = node.target().ends_with(".vec") ? "input" : "self";
  return node.tensor(name_of_input).rank() == 4 ? Refusal()
                                                : str(name_of_input, " has rank ", node.tensor(name_of_input).rank());
}
Refusal refuse_float(const NodeView& node) {
  const ir::Value& input = node.tensor(node.target().ends_with(".vec") ? "input" : "self");
  if (!is_float(input.dtype)) return str("input is ", name(input.dtype), ", expected a floating-point dtype");
  return refuse_any(node);
}

const Tensor& input_of(const Call& call) { return call.tensor(call.target().ends_with(".vec") ? "input" : "self"); }

// The factor that the caller gave for dimension i of two.
std::optional<double> given_factor(const Call& call, int i) {
  if (call.target().ends_with(".vec")) {
    if (!call.has("scale_factors")) return std::nullopt;
    const std::vector<double> factors = call.reals("scale_factors");
    GRAFT_CHECK(InvalidArgument, factors.size() == 2, "scale_factors has ", factors.size(), " entries, expected 2");
    return factors[static_cast<std::size_t>(i)];
  }
  const std::string_view argument = i == 0 ? "scales_h" : "scales_w";
  return call.has(argument) ? std::optional(call.real(argument)) : std::nullopt;
}

std::vector<Shape> upsample_shape(const Call& call) {
  const Shape& in = input_of(call).shape();
  Shape out = in;
  for (int i = 0; i < 2; ++i) {
    if (call.has("output_size")) {
      const Sizes sizes = call.integers("output_size");
      GRAFT_CHECK(InvalidArgument, sizes.size() == 2, "output_size has ", sizes.size(), " entries, expected 2");
      out[2 + i] = sizes[static_cast<std::size_t>(i)];
    } else {
      const std::optional<double> factor = given_factor(call, i);
      GRAFT_CHECK(InvalidArgument, factor.has_value(), "neither output_size nor scale_factors is given");
      const double size = static_cast<double>(in[2 + i]) * *factor;
      GRAFT_CHECK(InvalidArgument, size >= 1 && size <= std::numeric_limits<std::int32_t>::max(), "a factor of ",
                  *factor, " makes a size of ", size);
      out[2 + i] = static_cast<std::int64_t>(size);
    }
    GRAFT_CHECK(InvalidArgument,
                in[2 + i] > 0 && out[2 + i] > 0 && out[2 + i] <= std::numeric_limits<std::int32_t>::max(), "input ",
                in.str(), " cannot be resized to ", out.str());
  }
  return {out};
}

template <const Kernel& kernel>
std::vector<Tensor> lower_upsample(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const bool linear = &kernel != &kNearest;  // not a constant for g++ with the undefined-behaviour sanitizer
  const Tensor& input = input_of(call);
  const bool halves = linear && input.dtype() != DType::f32 && input.dtype() != DType::f64;
  const Tensor from = lowering.contiguous(halves ? lowering.cast(input, DType::f32) : input);
  const Tensor out = lowering.allocate(from.dtype(), shapes[0]);
  if (out.numel() > 0) {
    ResampleAttrs attrs;
    attrs.align_corners = linear && call.boolean("align_corners") ? 1 : 0;
    for (int i = 0; i < 2; ++i) {
      const auto in_size = static_cast<double>(input.size(2 + i)), out_size = static_cast<double>(out.size(2 + i));
      const std::optional<double> factor = given_factor(call, i);
      double scale = factor && *factor > 0 ? 1 / *factor : in_size / out_size;
      if (attrs.align_corners != 0) scale = out_size > 1 ? (in_size - 1) / (out_size - 1) : 0;
      attrs.scale[i] = scale;
    }
    lowering.launch(kernel, {with_three_spatial(from, 2)}, {with_three_spatial(out, 2)}, attrs);
  }
  return {lowering.cast(out, call.output_dtype())};
}

// f64 stays, other floats are computed in f32.
Tensor computable(const Tensor& tensor, Lowering& lowering) {
  return lowering.contiguous(tensor.dtype() == DType::f64 ? tensor : lowering.cast(tensor, DType::f32));
}

// --- grid_sampler_2d ---

Refusal refuse_grid(const NodeView& node) {
  const ir::Value &input = node.tensor("input"), &grid = node.tensor("grid");
  if (input.rank() != 4 || grid.rank() != 4)
    return str("input has rank ", input.rank(), ", grid ", grid.rank(), ", expected 4");
  if (!is_float(input.dtype) || grid.dtype != input.dtype)
    return str("input is ", name(input.dtype), ", grid ", name(grid.dtype), ", expected one floating-point dtype");
  for (const std::string_view argument : {"interpolation_mode", "padding_mode"})
    if (const std::optional<std::int64_t> mode = node.constant(argument); !mode || *mode < 0 || *mode > 2)
      return str(argument, " must be 0, 1 or 2");
  return {};
}

std::vector<Shape> grid_shape(const Call& call) {
  const Shape &input = call.tensor("input").shape(), &grid = call.tensor("grid").shape();
  GRAFT_CHECK(InvalidArgument, input[0] == grid[0], "input ", input.str(), " and grid ", grid.str(),
              " have different batches");
  GRAFT_CHECK(InvalidArgument, grid[3] == 2, "grid ", grid.str(), " must have 2 coordinates for each place");
  constexpr std::int64_t kMost = 1 << 30;
  GRAFT_CHECK(InvalidArgument, input[2] > 0 && input[3] > 0 && input[2] <= kMost && input[3] <= kMost, "input ",
              input.str(), " has no pixel, or too many in a row");
  return {Shape{input[0], input[1], grid[1], grid[2]}};
}

std::vector<Tensor> lower_grid(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  GridSampleAttrs attrs;
  attrs.interpolation = static_cast<Interpolation>(call.integer("interpolation_mode"));
  attrs.outside = static_cast<Outside>(call.integer("padding_mode"));
  attrs.align_corners = call.boolean("align_corners") ? 1 : 0;
  const Tensor input = computable(call.tensor("input"), lowering), grid = computable(call.tensor("grid"), lowering);
  const Tensor out = lowering.allocate(input.dtype(), shapes[0]);
  if (out.numel() > 0) lowering.launch(kGridSample, {input, grid}, {out}, attrs);
  return {lowering.cast(out, call.output_dtype())};
}

// --- col2im ---

Refusal refuse_col2im(const NodeView& node) {
  const ir::Value& self = node.tensor("self");
  if (self.rank() != 2 && self.rank() != 3) return str("self has rank ", self.rank(), ", expected 2 or 3");
  return is_float(self.dtype) ? Refusal() : str("self is ", name(self.dtype), ", expected a floating-point dtype");
}

struct Fold {
  Col2ImAttrs attrs;
  Shape image;  // [N, C, H, W]

  explicit Fold(const Call& call) {
    const Tensor& self = call.tensor("self");
    const std::int64_t rows = self.size(self.rank() - 2), columns = self.size(self.rank() - 1);
    const auto pair = [&](std::string_view argument, std::int64_t least, std::int64_t* to) {
      const Sizes given = call.integers(argument);
      GRAFT_CHECK(InvalidArgument, given.size() == 1 || given.size() == 2, argument, " has ", given.size(),
                  " entries, expected 2");
      for (std::size_t i = 0; i < 2; ++i) {
        to[i] = given[given.size() == 1 ? 0 : i];
        GRAFT_CHECK(InvalidArgument, to[i] >= least && to[i] <= std::numeric_limits<std::int32_t>::max(), argument,
                    " is ", to[i], ", expected ", least, " to 2147483647");
      }
    };
    std::int64_t size[2] = {};
    pair("output_size", 1, size);
    pair("kernel_size", 1, attrs.kernel);
    pair("dilation", 1, attrs.dilation);
    pair("padding", 0, attrs.padding);
    pair("stride", 1, attrs.stride);
    for (int d = 0; d < 2; ++d) {
      const std::int64_t free = size[d] + 2 * attrs.padding[d] - attrs.dilation[d] * (attrs.kernel[d] - 1) - 1;
      GRAFT_CHECK(InvalidArgument, free >= 0, "no window fits into output_size ", size[d]);
      attrs.windows[d] = free / attrs.stride[d] + 1;
    }
    const std::int64_t window = attrs.kernel[0] * attrs.kernel[1];
    GRAFT_CHECK(InvalidArgument, rows > 0 && rows % window == 0, "self has ", rows,
                " rows, expected a multiple of the ", window, " elements of a window");
    std::int64_t windows = 0;
    const bool overflow = __builtin_mul_overflow(attrs.windows[0], attrs.windows[1], &windows);
    GRAFT_CHECK(InvalidArgument, !overflow && columns == windows, "self has ", columns, " columns, expected ", windows,
                ", one for each window");
    image = Shape{self.rank() == 3 ? self.size(0) : 1, rows / window, size[0], size[1]};
  }
};

std::vector<Shape> col2im_shape(const Call& call) {
  const Fold fold(call);
  if (call.tensor("self").rank() == 3) return {fold.image};
  return {Shape{fold.image[1], fold.image[2], fold.image[3]}};
}

std::vector<Tensor> lower_col2im(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Fold fold(call);
  const Tensor self = computable(call.tensor("self"), lowering);
  const Tensor out = lowering.allocate(self.dtype(), shapes[0]);
  if (out.numel() > 0) lowering.launch(kCol2Im, {self}, {*try_reshape(out, fold.image)}, fold.attrs);
  return {lowering.cast(out, call.output_dtype())};
}

}  // namespace

std::span<const Operator> resample_operators() {
  static constexpr Operator kOperators[] = {
      pad_operator<1, PadMode::reflect>("aten.reflection_pad1d.default"),
      pad_operator<2, PadMode::reflect>("aten.reflection_pad2d.default"),
      pad_operator<3, PadMode::reflect>("aten.reflection_pad3d.default"),
      pad_operator<1, PadMode::replicate>("aten.replication_pad1d.default"),
      pad_operator<2, PadMode::replicate>("aten.replication_pad2d.default"),
      pad_operator<3, PadMode::replicate>("aten.replication_pad3d.default"),
      {"aten.upsample_nearest2d.vec", refuse_any, upsample_shape, lower_upsample<kNearest>, true},
      {"aten.upsample_nearest2d.default", refuse_any, upsample_shape, lower_upsample<kNearest>, true},
      {"aten.upsample_bilinear2d.vec", refuse_float, upsample_shape, lower_upsample<kBilinear>, true},
      {"aten.upsample_bilinear2d.default", refuse_float, upsample_shape, lower_upsample<kBilinear>, true},
      {"aten.upsample_bicubic2d.vec", refuse_float, upsample_shape, lower_upsample<kBicubic>, true},
      {"aten.upsample_bicubic2d.default", refuse_float, upsample_shape, lower_upsample<kBicubic>, true},
      {"aten.grid_sampler_2d.default", refuse_grid, grid_shape, lower_grid},
      {"aten.col2im.default", refuse_col2im, col2im_shape, lower_col2im},
  };
  return kOperators;
}

}  // namespace graft
