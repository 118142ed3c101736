#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ggml.h"
#include "graft/tensor.h"
#include "lowering/tensor.h"

namespace graft {

// A tensor as ggml describes it: sizes innermost first, strides in bytes, always four of each.
struct GgmlLayout {
  ggml_type type;
  std::int64_t ne[GGML_MAX_DIMS];
  std::size_t nb[GGML_MAX_DIMS];
};

// The rank must be at most 4.
GgmlLayout ggml_layout(const TensorDesc& desc);
// The same, or of a tensor in ggml's blocks, whose dtype is f32, in whole blocks.
GgmlLayout ggml_layout(const Tensor& tensor);
// Which source of an op that writes into another tensor is that tensor: its result is a view of it.
std::optional<int> destination_source(ggml_op op);
bool same_layout(const ggml_tensor& tensor, const GgmlLayout& layout);
// `bytes` contiguous bytes.
GgmlLayout bytes_layout(std::int64_t bytes);

// A tensor with exactly this layout, of a context that allocates no data.
ggml_tensor* new_tensor(ggml_context* context, const GgmlLayout& layout);

}  // namespace graft
