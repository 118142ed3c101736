// Pooling: largest and average, by windows and adaptive, of one to three dimensions.
#include "kernel/spatial/pool.h"

#include <limits>
#include <vector>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/operator.h"

namespace graft {
namespace {

using Sizes = std::vector<std::int64_t>;

enum class Kind { largest, average };

template <int spatial, Kind kind, bool adaptive>
Refusal refuse_pool(const NodeView& node) {
  const ir::Value& self = node.tensor("self");
  if (self.rank() != spatial + 1 && self.rank() != spatial + 2)
    return str("self has rank ", self.rank(), ", expected ", spatial + 1, " or ", spatial + 2);
  if (self.dtype == DType::b8) return "pooling of bool is not supported";
  if (!is_float(self.dtype) && (adaptive || (kind == Kind::average && self.dtype != DType::i64)))
    return str("self is ", name(self.dtype), ", expected a floating-point dtype");
  return {};
}

std::int64_t checked(std::int64_t value, std::int64_t least, std::string_view argument) {
  GRAFT_CHECK(InvalidArgument, value >= least && value <= std::numeric_limits<std::int32_t>::max(), argument, " is ",
              value, ", expected ", least, " to 2147483647");
  return value;
}

// An entry per spatial dimension; a lone one is for all.
template <int spatial>
Sizes entries(const Call& call, std::string_view argument, std::int64_t least) {
  Sizes given = call.integers(argument);
  GRAFT_CHECK(InvalidArgument, given.size() == 1 || given.size() == spatial, argument, " has ", given.size(),
              " entries for ", spatial, " dimensions");
  if (given.size() == 1) given.assign(spatial, given[0]);
  for (const std::int64_t value : given) checked(value, least, argument);
  return given;
}

std::int64_t pooled_size(std::int64_t in, const PoolAttrs& attrs, int d, bool ceil) {
  const std::int64_t reach = attrs.dilation[d] * (attrs.kernel[d] - 1) + 1;
  const std::int64_t padding = attrs.padding[d], stride = attrs.stride[d];
  GRAFT_CHECK(InvalidArgument, padding <= reach / 2, "padding ", padding, " is more than half of the ", reach,
              " elements that a window covers");
  const std::int64_t free = in + 2 * padding - reach;
  GRAFT_CHECK(InvalidArgument, free + (ceil ? stride - 1 : 0) >= 0, "a window covers ", reach,
              " elements of a dimension of size ", in, " with padding ", padding);
  std::int64_t size = (free + (ceil ? stride - 1 : 0)) / stride + 1;
  // The last window must start inside the input or its padding on the left.
  if (ceil && (size - 1) * stride >= in + padding) --size;
  GRAFT_CHECK(InvalidArgument, size > 0, "a dimension of size ", in, " leaves no window");
  return size;
}

// The arguments, checked, with an entry for each of three dimensions.
template <int spatial, Kind kind, bool adaptive>
struct Pooling {
  PoolAttrs attrs;
  Shape out;

  explicit Pooling(const Call& call) {
    const Shape& input = call.tensor("self").shape();
    const int lead = input.rank() - spatial;
    attrs.average = kind == Kind::average ? 1 : 0;
    attrs.adaptive = adaptive ? 1 : 0;
    for (int d = 0; d < lead; ++d) out.push_back(input[d]);
    for (int d = lead - 1; d < input.rank(); ++d)
      GRAFT_CHECK(InvalidArgument, input[d] > 0 || (d == 0 && lead == 2), "self has size ", input.str(),
                  ", expected only the batch to be empty");
    for (int d = 0; d < spatial; ++d) checked(input[lead + d], 1, "a size of self");
    if constexpr (adaptive) {
      for (const std::int64_t size : entries<spatial>(call, "output_size", 0)) out.push_back(size);
      return;
    } else {
      constexpr int first = 3 - spatial;
      const Sizes kernel = entries<spatial>(call, "kernel_size", 1);
      const Sizes stride = call.integers("stride").empty() ? kernel : entries<spatial>(call, "stride", 1);
      const Sizes padding = entries<spatial>(call, "padding", 0);
      const Sizes dilation = kind == Kind::largest ? entries<spatial>(call, "dilation", 1) : Sizes(spatial, 1);
      for (int d = 0; d < spatial; ++d) {
        const auto i = static_cast<std::size_t>(d);
        attrs.kernel[first + d] = kernel[i];
        attrs.stride[first + d] = stride[i];
        attrs.padding[first + d] = padding[i];
        attrs.dilation[first + d] = dilation[i];
        out.push_back(pooled_size(input[lead + d], attrs, first + d, call.boolean("ceil_mode")));
      }
      if constexpr (kind == Kind::average) {
        attrs.include_pad = call.boolean("count_include_pad") ? 1 : 0;
        if (spatial > 1 && call.has("divisor_override")) {
          attrs.divisor = call.integer("divisor_override");
          GRAFT_CHECK(InvalidArgument, attrs.divisor != 0, "divisor_override is 0");
        }
      }
    }
  }
};

template <int spatial, Kind kind, bool adaptive>
std::vector<Shape> pool_shape(const Call& call) {
  return std::vector<Shape>(call.output_count(), Pooling<spatial, kind, adaptive>(call).out);
}

template <int spatial, Kind kind, bool adaptive>
std::vector<Tensor> pool_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const PoolAttrs attrs = Pooling<spatial, kind, adaptive>(call).attrs;
  if (const Tensor& self = call.tensor("self"); kind == Kind::largest && shapes.size() == 1 &&
                                                self.dtype() == DType::f32 && self.rank() == spatial + 2 &&
                                                has_channels_last(self) && !lowering.has_device()) {
    const Tensor result = allocate_channels_last(DType::f32, shapes[0], lowering);
    if (result.numel() == 0) return {result};
    const Tensor x = with_three_spatial(self, spatial);
    lowering.launch(kChannelsLastMaxPool, {x}, {with_three_spatial(result, spatial)}, attrs,
                    channels_last_pool_scratch_bytes(attrs, x.desc, lowering.max_tasks()));
    return {result};
  }
  std::vector<Tensor> results, outputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const DType dtype = i == 0 ? call.tensor("self").dtype() : DType::i64;  // values, indices
    results.push_back(lowering.allocate(dtype, shapes[i]));
    outputs.push_back(with_three_spatial(results.back(), spatial));
  }
  if (results[0].numel() == 0) return results;
  const Tensor x = with_three_spatial(call.tensor("self"), spatial);
  const std::int64_t scratch = pool_scratch_bytes(x.desc, outputs[0].desc, lowering.max_tasks());
  lowering.launch(kPool, {x}, outputs, attrs, scratch);
  return results;
}

template <int spatial, Kind kind, bool adaptive = false>
constexpr Operator pool_operator(std::string_view target, bool preserve = false) {
  return {target, refuse_pool<spatial, kind, adaptive>, pool_shape<spatial, kind, adaptive>,
          pool_lower<spatial, kind, adaptive>, preserve};
}

}  // namespace

std::span<const Operator> pool_operators() {
  static constexpr Operator kOperators[] = {
      // Kept whole: the decomposition also computes positions, and pools one dimension as two.
      pool_operator<1, Kind::largest>("aten.max_pool1d.default", true),
      pool_operator<2, Kind::largest>("aten.max_pool2d.default", true),
      pool_operator<3, Kind::largest>("aten.max_pool3d.default", true),
      pool_operator<1, Kind::largest>("aten.max_pool1d_with_indices.default", true),
      pool_operator<2, Kind::largest>("aten.max_pool2d_with_indices.default"),
      pool_operator<3, Kind::largest>("aten.max_pool3d_with_indices.default"),
      pool_operator<1, Kind::average>("aten.avg_pool1d.default", true),
      pool_operator<2, Kind::average>("aten.avg_pool2d.default"),
      pool_operator<3, Kind::average>("aten.avg_pool3d.default"),
      pool_operator<1, Kind::average, true>("aten.adaptive_avg_pool1d.default"),
      pool_operator<2, Kind::average, true>("aten.adaptive_avg_pool2d.default"),
      pool_operator<3, Kind::average, true>("aten.adaptive_avg_pool3d.default"),
      pool_operator<2, Kind::average, true>("aten._adaptive_avg_pool2d.default"),
      pool_operator<3, Kind::average, true>("aten._adaptive_avg_pool3d.default"),
      pool_operator<1, Kind::largest, true>("aten.adaptive_max_pool1d.default", true),
      pool_operator<2, Kind::largest, true>("aten.adaptive_max_pool2d.default"),
      pool_operator<3, Kind::largest, true>("aten.adaptive_max_pool3d.default"),
  };
  return kOperators;
}

}  // namespace graft
