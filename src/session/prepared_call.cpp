#include "session/prepared_call.h"

#include "base/check.h"
#include "session/call_values.h"

namespace graft {

void PreparedCall::describe(const ProgramImpl& program, std::uint32_t method_index, std::span<const Value> values,
                            Counters& counters) {
  index = method_index;
  method = &program.methods[index];
  given = values;
  sizes.clear();
  entry = nullptr;
  const MethodInfo& info = method->info;
  GRAFT_CHECK(InvalidArgument, values.size() == info.inputs.size(), "method '", info.name, "' takes ",
              info.inputs.size(), " inputs, got ", values.size());
  counters.inputs_described += values.size();
  inputs.resize(values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = values[i];
    InputDesc& desc = inputs[i];
    desc = InputDesc{};
    desc.is_tensor = value.kind == Value::Kind::tensor;
    if (info.inputs[i].kind == Value::Kind::none) {  // a constant since export: nothing reads it
      desc.is_tensor = false;
      continue;
    }
    switch (value.kind) {
      case Value::Kind::tensor:
        desc.desc = TensorDesc(value.tensor.dtype, value.tensor.shape);
        break;
      case Value::Kind::integer:
        desc.scalar = Scalar::of(value.i);
        break;
      case Value::Kind::boolean:
        desc.scalar = Scalar::of(value.i != 0);
        break;
      case Value::Kind::real:
        desc.scalar = Scalar::of(value.f);
        break;
      default:
        throw InvalidArgument(
            str("input ", i, " of method '", info.name, "' must be a tensor or a number, got ", kind_name(value.kind)));
    }
    // A Python caller may give 2 for a float.
    if (info.inputs[i].kind == Value::Kind::real) desc.scalar = Scalar::of(desc.scalar.to_double());
  }
}

}  // namespace graft
