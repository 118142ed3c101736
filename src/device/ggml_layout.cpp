#include "device/ggml_layout.h"

#include <algorithm>

#include "base/check.h"

namespace graft {
namespace {

ggml_type ggml_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return GGML_TYPE_F32;
    case DType::f16:
      return GGML_TYPE_F16;
    case DType::bf16:
      return GGML_TYPE_BF16;
    case DType::f64:
      return GGML_TYPE_F64;
    case DType::i16:
      return GGML_TYPE_I16;
    case DType::i32:
      return GGML_TYPE_I32;
    case DType::i64:
      return GGML_TYPE_I64;
    case DType::i8:
    case DType::u8:
    case DType::b8:
      return GGML_TYPE_I8;
  }
  GRAFT_ASSERT(false);
  return GGML_TYPE_COUNT;
}

}  // namespace

GgmlLayout ggml_layout(const TensorDesc& desc) {
  GgmlLayout out{ggml_type_of(desc.dtype), {1, 1, 1, 1}, {}};
  const std::size_t element = byte_size(desc.dtype);
  std::size_t next = element;
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    const int d = desc.rank() - 1 - i;
    if (d >= 0) out.ne[i] = desc.shape[d];
    // The stride of a dimension of size 1 is arbitrary; ggml's checks want the row-major one.
    out.nb[i] =
        d >= 0 && out.ne[i] != 1 ? static_cast<std::size_t>(desc.strides[static_cast<std::size_t>(d)]) * element : next;
    next = out.nb[i] * static_cast<std::size_t>(out.ne[i]);
  }
  return out;
}

GgmlLayout ggml_layout(const Tensor& tensor) {
  GgmlLayout out = ggml_layout(tensor.desc);
  if (!tensor.stored) return out;
  GRAFT_ASSERT(tensor.stored->kind == Stored::Kind::blocks);
  out.type = static_cast<ggml_type>(tensor.stored->block);
  // Strides are in values, rows in whole blocks.
  out.nb[0] = ggml_type_size(out.type);
  for (int i = 1; i < GGML_MAX_DIMS; ++i)
    out.nb[i] = ggml_row_size(out.type, static_cast<std::int64_t>(out.nb[i] / sizeof(float)));
  return out;
}

std::optional<int> destination_source(ggml_op op) {
  if (op == GGML_OP_CPY) return 1;
  if (op == GGML_OP_SET_ROWS) return 2;
  return std::nullopt;
}

bool same_layout(const ggml_tensor& tensor, const GgmlLayout& layout) {
  return tensor.type == layout.type && std::equal(layout.ne, layout.ne + GGML_MAX_DIMS, tensor.ne) &&
         std::equal(layout.nb, layout.nb + GGML_MAX_DIMS, tensor.nb);
}

GgmlLayout bytes_layout(std::int64_t bytes) {
  const auto n = static_cast<std::size_t>(bytes);
  return {GGML_TYPE_I8, {bytes, 1, 1, 1}, {1, n, n, n}};
}

ggml_tensor* new_tensor(ggml_context* context, const GgmlLayout& layout) {
  ggml_tensor* tensor = ggml_new_tensor(context, layout.type, GGML_MAX_DIMS, layout.ne);
  std::copy(layout.nb, layout.nb + GGML_MAX_DIMS, tensor->nb);
  return tensor;
}

}  // namespace graft
