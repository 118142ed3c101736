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

// What kernels declare to the passes over launches (pass/launch): which launches next to theirs they can take over.
// Functions see descriptors and attributes alone (data pointers are not set).
namespace graft {

struct ElementwiseAttrs;

// The attributes of a launch as they are stored there.
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

// What is done to each f32 of a result before it is stored: an activation or a clamp.
struct Epilogue {
  simd::Activation activation = simd::Activation::none;
  bool clamps = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

// Several launches that read the same input 0 become one: its inputs are that one, input 1 of each launch and then the
// further inputs of each, its outputs those of all.
struct MergeRule {
  std::size_t most = 0;  // launches
  bool (*fits)(const KernelContext&) = nullptr;
  bool (*fit_together)(const KernelContext&, const KernelContext&) = nullptr;
  const Kernel* merged = nullptr;
  AttrBytes (*attrs)(std::span<const KernelContext* const> launches) = nullptr;
};

// A depthwise convolution becomes one launch with the convolution before it (expand), the pointwise one after it
// (project), or both. All of them name the same rule.
struct SeparableRule {
  bool (*fits)(const KernelContext& depthwise) = nullptr;
  bool (*can_expand)(const KernelContext& dense) = nullptr;
  bool (*can_project)(const KernelContext& dense) = nullptr;
  // What lies between smaller launches goes from core to core in less time than reading all weights on each core takes.
  std::int64_t min_bytes = 0;
  // Whether so many threads would compute too many rows of `expand` twice, where their bands meet.
  bool (*repeats_much)(const KernelContext& depthwise, int threads) = nullptr;
  // The launch of the parts that are there. Its inputs are input 0 of the first of them, then the further inputs of
  // each; its output is that of the last.
  const Kernel* kernel = nullptr;
  AttrBytes (*attrs)(const KernelContext* expand, const KernelContext& depthwise,
                     const KernelContext* project) = nullptr;
  std::int64_t (*scratch_bytes)(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs,
                                int threads) = nullptr;
  // The same divided by panels of channels, for little between the two: without `project`. Null where there is none.
  bool (*expands_by_panels)(const KernelContext& expand, int threads) = nullptr;
  const Kernel* kernel_by_panels = nullptr;
  std::int64_t (*scratch_bytes_by_panels)(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs,
                                          int threads) = nullptr;
  // Called for an `expand` that stays a launch of its own because of the number of threads, which must not show in its
  // sums. Null where no order of sums does.
  void (*keep_sums)(AttrBytes& expand) = nullptr;
};

// All that a kernel declares; what is null it does not take part in.
struct Fusion {
  // The elementwise operation that a launch is, one step of a chain (kernel/elementwise/elementwise.h).
  bool (*elementwise)(const KernelContext&, ElementwiseAttrs& what) = nullptr;
  // The epilogue that a launch with one input is.
  std::optional<Epilogue> (*as_epilogue)(const AttrBytes& attrs) = nullptr;
  // Whether a launch is the sum of its two inputs in f32.
  bool (*is_sum)(const AttrBytes& attrs) = nullptr;
  // Makes the epilogue part of the attributes. False, and nothing changed, where the kernel does not take it.
  bool (*take_epilogue)(AttrBytes& attrs, const Epilogue&) = nullptr;
  // The same for a tensor that is added to the result before the epilogue: it becomes the launch's last input.
  bool (*take_residual)(AttrBytes& attrs) = nullptr;
  const MergeRule* merge = nullptr;
  const SeparableRule* separable = nullptr;
  bool is_depthwise = false;  // of `separable`
};

// take_epilogue and take_residual for attributes of a type, by functions on them.
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
