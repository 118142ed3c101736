#include "session/call_values.h"

#include <cstdint>
#include <string>

#include "base/check.h"

namespace graft {

std::string_view kind_name(Value::Kind kind) {
  constexpr std::string_view names[] = {"None", "a tensor", "an integer", "a float", "a bool", "a text"};
  return names[static_cast<std::size_t>(kind)];
}

bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % byte_size(dtype) == 0;
}

Value to_value(const Scalar& scalar) {
  switch (scalar.kind) {
    case ir::ValueKind::real:
      return Value::of(scalar.f);
    case ir::ValueKind::boolean:
      return Value::of(scalar.i != 0);
    default:
      return Value::of(scalar.i);
  }
}

Value number_of(const PlanOutput& output) {
  if (output.is_none) return {};
  if (!output.is_text) return to_value(output.scalar);
  Value text;
  text.kind = Value::Kind::text;
  text.text = output.text;
  return text;
}

void check_output_count(const LoadedMethod& method, std::size_t given) {
  GRAFT_CHECK(InvalidArgument, given == method.user_outputs.size(), "method '", method.info.name, "' returns ",
              method.user_outputs.size(), " outputs, got room for ", given);
}

void check_output_alignment(const LoadedMethod& method, std::size_t i, const TensorView& given) {
  GRAFT_CHECK(InvalidArgument, is_aligned(given.data, given.dtype), "output ", i, " of method '", method.info.name,
              "' must be aligned to ", byte_size(given.dtype), " bytes, its address is ", given.data);
}

void check_output(const LoadedMethod& method, std::size_t i, const Value& output, const TensorDesc& wanted) {
  const TensorView& given = output.tensor;
  GRAFT_CHECK(InvalidArgument,
              output.kind == Value::Kind::tensor && given.dtype == wanted.dtype && given.shape == wanted.shape,
              "output ", i, " of method '", method.info.name, "' must be a tensor ", wanted.str(), ", got ",
              output.kind == Value::Kind::tensor ? TensorDesc(given.dtype, given.shape).str()
                                                 : std::string(kind_name(output.kind)));
  GRAFT_CHECK(InvalidArgument, given.data || wanted.numel() == 0, "output ", i, " of method '", method.info.name, "' (",
              wanted.str(), ") has no memory: its pointer is null");
  check_output_alignment(method, i, given);
}

}  // namespace graft
