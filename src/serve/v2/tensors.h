#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graft/graft.h"
#include "serve/json_fields.h"

// Tensors as the Open Inference Protocol writes them.
namespace graft::serve {

// "FP32", "BOOL", ...
std::string_view v2_name(DType dtype);
std::optional<DType> v2_dtype(std::string_view name);
// The type and sizes of an input or output: numbers are tensors of one element. -1: a size that may vary.
std::string_view v2_name(const ValueInfo& info);
std::vector<std::int64_t> v2_shape(const ValueInfo& info);

// The elements of "data", a list that may be nested as the sizes say, as bytes. Throws ApiError (400) for elements that
// the type does not hold, for another number than `count`, and for FP16 and BF16, which have no JSON form.
std::vector<std::byte> bytes_of(const Json& data, DType dtype, std::int64_t count, const std::string& path);
// The flat list of a tensor's elements. Throws ApiError (400) for what JSON cannot say: FP16 and BF16, NaN, infinities.
Json json_of(const TensorView& tensor, const std::string& name);

}  // namespace graft::serve
