#include "python/values.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"

namespace nb = nanobind;

namespace graft {

Value to_value(nb::handle object) {
  if (object.is_none()) return {};
  if (nb::isinstance<nb::bool_>(object)) return Value::of(nb::cast<bool>(object));
  if (nb::isinstance<nb::int_>(object)) return Value::of(nb::cast<std::int64_t>(object));
  if (nb::isinstance<nb::float_>(object)) return Value::of(nb::cast<double>(object));
  if (nb::isinstance<nb::str>(object)) {
    Value v;
    v.kind = Value::Kind::text;
    v.text = nb::cast<std::string>(object);
    return v;
  }
  const auto fields = nb::cast<nb::tuple>(object);
  TensorView tensor;
  tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(fields[0]));  // NOLINT: an address from torch
  const auto dtype = nb::cast<std::size_t>(fields[1]);
  GRAFT_CHECK(InvalidArgument, dtype < kDTypeCount, "unknown dtype number ", dtype);
  tensor.dtype = static_cast<DType>(dtype);
  for (nb::handle size : nb::cast<nb::tuple>(fields[2])) tensor.shape.push_back(nb::cast<std::int64_t>(size));
  return Value::of(tensor);
}

nb::object from_value(const Value& value) {
  switch (value.kind) {
    case Value::Kind::none:
      return nb::none();
    case Value::Kind::integer:
      return nb::int_(value.i);
    case Value::Kind::boolean:
      return nb::bool_(value.i != 0);
    case Value::Kind::real:
      return nb::float_(value.f);
    case Value::Kind::text:
      return nb::str(value.text.c_str(), value.text.size());
    case Value::Kind::tensor:
      break;
  }
  nb::list sizes;
  for (std::int64_t size : value.tensor.shape.sizes()) sizes.append(size);
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(value.tensor.data), static_cast<int>(value.tensor.dtype),
                        nb::tuple(sizes));
}

nb::object to_array(const Value& value, bool torch) {
  if (value.kind != Value::Kind::tensor) return from_value(value);
  const TensorView& t = value.tensor;
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : t.shape.sizes()) sizes.push_back(static_cast<std::size_t>(size));
  const nb::capsule owner(new std::shared_ptr<void>(value.owner),
                          [](void* kept) noexcept { delete static_cast<std::shared_ptr<void>*>(kept); });
  const nb::dlpack::dtype dtype = kDlpackDTypes[static_cast<std::size_t>(t.dtype)];
  if (torch) return nb::cast(nb::ndarray<nb::pytorch>(t.data, sizes.size(), sizes.data(), owner, nullptr, dtype));
  // numpy itself has no bfloat16.
  const bool bf16 = t.dtype == DType::bf16;
  nb::object array = nb::cast(nb::ndarray<nb::numpy>(t.data, sizes.size(), sizes.data(), owner, nullptr,
                                                     bf16 ? nb::dtype<std::uint16_t>() : dtype));
  if (!bf16) return array;
  try {
    return array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
    throw Unsupported("a tensor is bfloat16, which numpy does not have: pip install ml_dtypes, or pass torch tensors");
  }
}

std::vector<Value> to_values(const nb::list& objects) {
  std::vector<Value> out;
  out.reserve(objects.size());
  for (nb::handle object : objects) out.push_back(to_value(object));
  return out;
}

}  // namespace graft
