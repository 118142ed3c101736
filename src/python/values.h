#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <vector>

#include "graft/graft.h"

namespace graft {

// A tensor is the tuple (address, dtype, sizes); numbers, strings and None are passed as themselves.
Value to_value(nanobind::handle object);
nanobind::object from_value(const Value& value);
std::vector<Value> to_values(const nanobind::list& objects);
// A torch tensor, or a numpy array, on the memory that the value owns; numbers as themselves. numpy needs the package
// ml_dtypes for bf16.
nanobind::object to_array(const Value& value, bool torch = true);

// DLPack's names of the dtypes, in the order of DType.
inline constexpr std::array<nanobind::dlpack::dtype, kDTypeCount> kDlpackDTypes = {
    nanobind::dtype<float>(),
    {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float), 16, 1},
    {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Bfloat), 16, 1},
    nanobind::dtype<double>(),
    nanobind::dtype<std::int8_t>(),
    nanobind::dtype<std::uint8_t>(),
    nanobind::dtype<std::int16_t>(),
    nanobind::dtype<std::int32_t>(),
    nanobind::dtype<std::int64_t>(),
    nanobind::dtype<bool>(),
};

}  // namespace graft
