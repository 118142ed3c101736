#pragma once

#include <cstddef>
#include <string_view>

#include "graft/graft.h"
#include "load/program_impl.h"

// Values of a call: a plan's numbers as values for the caller, and checks of the outputs that a caller gives.
namespace graft {

std::string_view kind_name(Value::Kind kind);  // "a tensor"

bool is_aligned(const void* data, DType dtype);

Value to_value(const Scalar& scalar);
// A result that is not a tensor.
Value number_of(const PlanOutput& output);

// A tensor that has memory.
inline bool has_memory(const Value& value) { return value.kind == Value::Kind::tensor && value.tensor.data; }

// What the caller gives for a method's outputs: throw InvalidArgument naming the output.
void check_output_count(const LoadedMethod& method, std::size_t given);
void check_output(const LoadedMethod& method, std::size_t i, const Value& output, const TensorDesc& wanted);
void check_output_alignment(const LoadedMethod& method, std::size_t i, const TensorView& given);

}  // namespace graft
