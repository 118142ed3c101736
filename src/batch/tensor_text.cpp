#include "batch/tensor_text.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "batch/row.h"
#include "serve/v2/tensors.h"

namespace graft::batch {
namespace {

template <typename T>
void append(std::string& out, T value, const std::string& name) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? "true" : "false";
  } else {
    if constexpr (std::is_floating_point_v<T>)
      if (!std::isfinite(value)) bad_row("'", name, "' holds NaN or infinity, which JSON cannot carry");
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof digits, value);
    const std::string_view text(digits, static_cast<std::size_t>(end.ptr - digits));
    out += text;
    // Readers take a number without a fraction for an integer, which has no -0.
    if (std::is_floating_point_v<T> && text.find_first_of(".e") == text.npos) out += ".0";
  }
}

template <typename T>
void append_nested(std::string& out, const T*& data, const Shape& shape, int dim, const std::string& name) {
  if (dim == shape.rank()) return append(out, *data++, name);
  out += '[';
  for (std::int64_t i = 0; i < shape[dim]; ++i) {
    if (i > 0) out += ',';
    append_nested(out, data, shape, dim + 1, name);
  }
  out += ']';
}

template <typename T>
std::string text_of(const TensorView& tensor, int from, std::int64_t place, const std::string& name) {
  std::int64_t size = 1;
  for (int dim = from; dim < tensor.shape.rank(); ++dim) size *= tensor.shape[dim];
  const T* data = static_cast<const T*>(tensor.data) + place * size;
  std::string out;
  append_nested(out, data, tensor.shape, from, name);
  return out;
}

}  // namespace

bool has_text(DType dtype) { return dtype != DType::f16 && dtype != DType::bf16; }

std::string tensor_text(const TensorView& tensor, int from, std::int64_t place, const std::string& name) {
  switch (tensor.dtype) {
    case DType::f32:
      return text_of<float>(tensor, from, place, name);
    case DType::f64:
      return text_of<double>(tensor, from, place, name);
    case DType::i8:
      return text_of<std::int8_t>(tensor, from, place, name);
    case DType::u8:
      return text_of<std::uint8_t>(tensor, from, place, name);
    case DType::i16:
      return text_of<std::int16_t>(tensor, from, place, name);
    case DType::i32:
      return text_of<std::int32_t>(tensor, from, place, name);
    case DType::i64:
      return text_of<std::int64_t>(tensor, from, place, name);
    case DType::b8:
      return text_of<bool>(tensor, from, place, name);
    default:
      bad_row("'", name, "' is ", serve::v2_name(tensor.dtype), ", which JSON cannot carry");
  }
}

}  // namespace graft::batch
