#pragma once

#include <cstdint>

#include "base/ceil_div.h"
#include "kernel/conv/separable.h"
#include "kernel/fusion.h"

namespace graft {

// The functions of a SeparableRule for launches whose attributes are an Attrs::Part: in f32 or in 8 bits.
template <typename Attrs>
struct SeparableFunctions {
  using Part = typename Attrs::Part;

  static bool fits(const KernelContext& depthwise) {
    return is_planar(depthwise) && depthwise.attrs<Part>().has_residual == 0;
  }

  static bool can_expand(const KernelContext& dense) {
    const auto attrs = dense.attrs<Part>();
    return is_planar(dense) && attrs.conv.groups == 1 && attrs.has_residual == 0;
  }

  static bool can_project(const KernelContext& dense) {
    const auto attrs = dense.attrs<Part>();
    const auto all = [](const std::int64_t(&values)[3], std::int64_t expected) {
      return values[0] == expected && values[1] == expected && values[2] == expected;
    };
    return all(attrs.kernel, 1) && all(attrs.conv.stride, 1) && all(attrs.conv.padding, 0) && attrs.conv.groups == 1;
  }

  // Computing up to half of the rows twice costs less than moving the intermediates between cores.
  static bool repeats_much(const KernelContext& depthwise, int threads) {
    const auto attrs = depthwise.attrs<Part>();
    const Shape& out = depthwise.out().shape;
    const std::int64_t rows = ceil_div(out[0] * out[3], threads) * attrs.conv.stride[1];
    const std::int64_t halo = (attrs.kernel[1] - 1) * attrs.conv.dilation[1] + 1 - attrs.conv.stride[1];
    return threads > 1 && 2 * halo > rows;
  }

  static AttrBytes attrs(const KernelContext* expand, const KernelContext& depthwise, const KernelContext* project) {
    Attrs attrs;
    const TensorDesc& expanded = depthwise.in(0);
    attrs.expanded = expanded.dtype;
    attrs.between = depthwise.out().dtype;
    attrs.channels = expanded.shape[1];
    attrs.height = expanded.shape[3];
    attrs.width = expanded.shape[4];
    attrs.depthwise = depthwise.attrs<Part>();
    if (expand != nullptr) {
      attrs.has_expand = 1;
      attrs.expand = expand->attrs<Part>();
    }
    if (project != nullptr) {
      attrs.has_project = 1;
      attrs.project = project->attrs<Part>();
    }
    return bytes_of_attrs(attrs);
  }

 private:
  static bool is_planar(const KernelContext& ctx) {
    const auto attrs = ctx.attrs<Part>();
    return attrs.kernel[0] == 1 && attrs.conv.padding[0] == 0 && ctx.in(0).shape[2] == 1;
  }
};

}  // namespace graft
