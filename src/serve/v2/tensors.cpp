#include "serve/v2/tensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr std::string_view kNames[kDTypeCount] = {"FP32",  "FP16",  "BF16",  "FP64",  "INT8",
                                                  "UINT8", "INT16", "INT32", "INT64", "BOOL"};

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

template <typename T>
void append_integer(std::vector<std::byte>& bytes, const Json& element, const std::string& path) {
  const bool whole = element.is_number_integer();
  const bool large = whole && element.is_number_unsigned() && element.get<std::uint64_t>() > INT64_MAX;
  const auto value = whole ? element.get<std::int64_t>() : 0;
  if (!whole || large || value < std::int64_t{std::numeric_limits<T>::min()} ||
      value > std::int64_t{std::numeric_limits<T>::max()})
    bad_request(path, "'", path, "' must hold integers from ", std::int64_t{std::numeric_limits<T>::min()}, " to ",
                std::int64_t{std::numeric_limits<T>::max()}, ", found ",
                element.is_number() ? element.dump() : kind_of(element));
  append(bytes, static_cast<T>(value));
}

void append_element(std::vector<std::byte>& bytes, const Json& element, DType dtype, const std::string& path) {
  switch (dtype) {
    case DType::f32:
    case DType::f64: {
      if (!element.is_number()) bad_request(path, "'", path, "' must hold numbers, found ", kind_of(element));
      const auto value = element.get<double>();
      if (dtype == DType::f64) return append(bytes, value);
      if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
        bad_request(path, "'", path, "' holds ", element.dump(), ", which FP32 cannot");
      return append(bytes, static_cast<float>(value));
    }
    case DType::i8:
      return append_integer<std::int8_t>(bytes, element, path);
    case DType::u8:
      return append_integer<std::uint8_t>(bytes, element, path);
    case DType::i16:
      return append_integer<std::int16_t>(bytes, element, path);
    case DType::i32:
      return append_integer<std::int32_t>(bytes, element, path);
    case DType::i64:
      return append_integer<std::int64_t>(bytes, element, path);
    case DType::b8:
      if (!element.is_boolean()) bad_request(path, "'", path, "' must hold booleans, found ", kind_of(element));
      return append(bytes, static_cast<std::uint8_t>(element.get<bool>()));
    default:
      bad_request(path, "'", path, "' is ", v2_name(dtype), ", which JSON cannot carry: send it as binary data");
  }
}

void append_list(std::vector<std::byte>& bytes, const Json& data, DType dtype, const std::string& path) {
  for (const Json& element : data) {
    if (element.is_array())
      append_list(bytes, element, dtype, path);
    else
      append_element(bytes, element, dtype, path);
  }
}

template <typename T>
Json list_of(const TensorView& tensor) {
  Json list = Json::array();
  const auto* data = static_cast<const T*>(tensor.data);
  for (std::int64_t i = 0; i < tensor.shape.numel(); ++i) list.push_back(data[i]);
  return list;
}

template <typename T>
Json finite_list_of(const TensorView& tensor, const std::string& name) {
  const auto* data = static_cast<const T*>(tensor.data);
  for (std::int64_t i = 0; i < tensor.shape.numel(); ++i)
    if (!std::isfinite(data[i]))
      throw ApiError(400, "output '" + name + "' holds NaN or infinity, which JSON cannot carry: ask for binary data");
  return list_of<T>(tensor);
}

}  // namespace

std::string_view v2_name(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

std::optional<DType> v2_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDTypeCount; ++i)
    if (kNames[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

std::string_view v2_name(const ValueInfo& info) {
  switch (info.kind) {
    case Value::Kind::tensor:
      return v2_name(info.dtype);
    case Value::Kind::integer:
      return "INT64";
    case Value::Kind::real:
      return "FP64";
    case Value::Kind::boolean:
      return "BOOL";
    default:
      return "BYTES";
  }
}

std::vector<std::int64_t> v2_shape(const ValueInfo& info) {
  if (info.kind != Value::Kind::tensor) return {1};
  std::vector<std::int64_t> shape;
  for (const DimInfo& dim : info.dims) shape.push_back(dim.min == dim.max ? dim.min : -1);
  return shape;
}

std::vector<std::byte> bytes_of(const Json& data, DType dtype, std::int64_t count, const std::string& path) {
  if (!data.is_array()) bad_request(path, "'", path, "' must be an array, found ", kind_of(data));
  std::vector<std::byte> bytes;
  append_list(bytes, data, dtype, path);
  const std::size_t found = bytes.size() / byte_size(dtype);
  if (found != static_cast<std::size_t>(count))
    bad_request(path, "'", path, "' has ", found, " elements, the shape says ", count);
  return bytes;
}

Json json_of(const TensorView& tensor, const std::string& name) {
  switch (tensor.dtype) {
    case DType::f32:
      return finite_list_of<float>(tensor, name);
    case DType::f64:
      return finite_list_of<double>(tensor, name);
    case DType::i8:
      return list_of<std::int8_t>(tensor);
    case DType::u8:
      return list_of<std::uint8_t>(tensor);
    case DType::i16:
      return list_of<std::int16_t>(tensor);
    case DType::i32:
      return list_of<std::int32_t>(tensor);
    case DType::i64:
      return list_of<std::int64_t>(tensor);
    case DType::b8:
      return list_of<bool>(tensor);
    default:
      throw ApiError(
          400, str("output '", name, "' is ", v2_name(tensor.dtype), ", which JSON cannot carry: ask for binary data"));
  }
}

}  // namespace graft::serve
