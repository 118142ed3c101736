#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"

// What kernels declare to the passes over launches (pass/launch): which neighbouring launches they can absorb. The
// functions see descriptors and attributes only (data pointers are not set).
namespace graft {

struct ElementwiseAttrs;

// A launch's stored attributes.
using AttrBytes = std::vector<std::byte>;
template <typename Attrs>
AttrBytes bytes_of_attrs(const Attrs& attrs) {
  AttrBytes bytes(sizeof(attrs));
  std::memcpy(bytes.data(), &attrs, sizeof(attrs));
  return bytes;
}

template <typename Attrs>
Attrs attrs_of_bytes(const AttrBytes& bytes) {
  Attrs attrs;
  GRAFT_ASSERT(bytes.size() == sizeof(attrs));
  std::memcpy(&attrs, bytes.data(), sizeof(attrs));
  return attrs;
}

// Applied to each f32 of a result before it is stored: an activation or a clamp.
struct Epilogue {
  simd::Activation activation = simd::Activation::none;
  bool clamps = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

// Merges several launches that read the same input 0 into one: its inputs are that one, input 1 of each launch and then
// the further inputs of each, its outputs those of all.
struct MergeRule {
  std::size_t most = 0;  // largest number of launches
  bool (*fits)(const KernelContext&) = nullptr;
  bool (*fit_together)(const KernelContext&, const KernelContext&) = nullptr;
  const Kernel* merged = nullptr;
  AttrBytes (*attrs)(std::span<const KernelContext* const> launches) = nullptr;
};

// Merges a depthwise convolution with the convolution before it (expand), the pointwise one after it (project), or
// both, into one launch. All of them name the same rule.
struct SeparableRule {
  bool (*fits)(const KernelContext& depthwise) = nullptr;
  bool (*can_expand)(const KernelContext& dense) = nullptr;
  bool (*can_project)(const KernelContext& dense) = nullptr;
  // With smaller intermediates the launches stay separate: moving those between cores is faster than reading all
  // weights on each core.
  std::int64_t min_bytes = 0;
  // Whether this many threads would compute too many rows of `expand` twice, in the halos of their bands.
  bool (*repeats_much)(const KernelContext& depthwise, int threads) = nullptr;
  // The merged launch. Its inputs are input 0 of the first part, then the further inputs of each; its output is that of
  // the last.
  const Kernel* kernel = nullptr;
  AttrBytes (*attrs)(const KernelContext* expand, const KernelContext& depthwise,
                     const KernelContext* project) = nullptr;
  std::int64_t (*scratch_bytes)(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs,
                                int threads) = nullptr;
  // The same by panels of channels, for small intermediates: without `project`. Null where there is none.
  bool (*expands_by_panels)(const KernelContext& expand, int threads) = nullptr;
  const Kernel* kernel_by_panels = nullptr;
  std::int64_t (*scratch_bytes_by_panels)(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs,
                                          int threads) = nullptr;
  // Called for an `expand` that stays a separate launch because of the number of threads, on which its sums must not
  // depend. Null where the order of sums never matters.
  void (*keep_sums)(AttrBytes& expand) = nullptr;
};

// All that a kernel declares; null members do not apply to it.
struct Fusion {
  // The elementwise operation of a launch that can be a step of a chain (kernel/elementwise/elementwise.h).
  bool (*elementwise)(const KernelContext&, ElementwiseAttrs& what) = nullptr;
  // A launch with one input as an epilogue.
  std::optional<Epilogue> (*as_epilogue)(const AttrBytes& attrs) = nullptr;
  // Whether a launch is the sum of its two inputs in f32.
  bool (*is_sum)(const AttrBytes& attrs) = nullptr;
  // Sets the epilogue in the attributes. False, and nothing changed, where the kernel has no such epilogue.
  bool (*take_epilogue)(AttrBytes& attrs, const Epilogue&) = nullptr;
  // The same for a residual, a tensor that is added to the result before the epilogue: it becomes the launch's last
  // input.
  bool (*take_residual)(AttrBytes& attrs) = nullptr;
  const MergeRule* merge = nullptr;
  const SeparableRule* separable = nullptr;
  bool is_depthwise = false;  // its part in `separable`
};

// take_epilogue and take_residual for a type of attributes, from functions on that type.
template <typename Attrs, bool (*take)(Attrs&, const Epilogue&)>
bool take_epilogue_of(AttrBytes& bytes, const Epilogue& epilogue) {
  auto attrs = attrs_of_bytes<Attrs>(bytes);
  if (!take(attrs, epilogue)) return false;
  bytes = bytes_of_attrs(attrs);
  return true;
}
template <typename Attrs, bool (*take)(Attrs&)>
bool take_residual_of(AttrBytes& bytes) {
  auto attrs = attrs_of_bytes<Attrs>(bytes);
  if (!take(attrs)) return false;
  bytes = bytes_of_attrs(attrs);
  return true;
}

}  // namespace graft
