#include "ir/program.h"

#include <type_traits>

#include "base/check.h"

namespace graft::ir {
namespace {

std::string dim_text(const Dim& dim) {
  if (dim.is_static()) return std::to_string(dim.min);
  std::string out = dim.expr.empty() ? "" : dim.expr + " in ";
  out += std::to_string(dim.min) + "..";
  return dim.max == kUnbounded ? out : out + std::to_string(dim.max);
}

std::string_view kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::tensor:
      return "tensor";
    case ValueKind::integer:
      return "int";
    case ValueKind::real:
      return "float";
    case ValueKind::boolean:
      return "bool";
  }
  return "unknown";
}

// Heap memory of an object: the elements of a vector and what they own, the characters of a long string. (A class, so
// that the overloads see one another.)
struct Outside {
  static std::size_t held(const std::string& text) {
    const auto* self = reinterpret_cast<const char*>(&text);
    const bool inside = text.data() >= self && text.data() < self + sizeof(text);
    return inside ? 0 : text.capacity() + 1;
  }
  static std::size_t held(const Dim& dim) { return held(dim.expr); }
  static std::size_t held(const Producer& producer) { return held(producer.name) + held(producer.version); }
  template <typename T>
  static std::size_t held(const std::vector<T>& items) {
    std::size_t bytes = items.capacity() * sizeof(T);
    if constexpr (!std::is_arithmetic_v<T>)
      for (const T& item : items) bytes += held(item);
    return bytes;
  }
  static std::size_t held(const Arg& arg) { return held(arg.s) + held(arg.items); }
  static std::size_t held(const Value& value) { return held(value.name) + held(value.dims); }
  static std::size_t held(const Op& op) { return held(op.target) + held(op.arg_names); }
  static std::size_t held(const Node& node) {
    return held(node.name) + held(node.args) + held(node.outputs) + held(node.origin);
  }
  static std::size_t held(const Weight& w) { return held(w.key) + held(w.fqn) + held(w.block_type) + held(w.sha256); }
  static std::size_t held(const State& state) { return held(state.fqn); }
  static std::size_t held(const Input&) { return 0; }
  static std::size_t held(const Output& output) { return held(output.arg); }
  static std::size_t held(const Method& m) {
    return held(m.name) + held(m.values) + held(m.nodes) + held(m.inputs) + held(m.outputs) + held(m.in_spec) +
           held(m.out_spec) + held(m.user_input_names);
  }
};

}  // namespace

std::size_t host_bytes(const Program& p) {
  return sizeof(p) + Outside::held(p.producers) + Outside::held(p.ops) + Outside::held(p.weights) +
         Outside::held(p.states) + Outside::held(p.methods) + Outside::held(p.subgraphs);
}

std::string Value::str() const {
  if (kind != ValueKind::tensor) {
    const std::string out(kind_name(kind));
    return dims.empty() ? out : out + " " + dim_text(dims.front());
  }
  std::string out(graft::name(dtype));
  out += "[";
  for (std::size_t d = 0; d < dims.size(); ++d) out += (d ? ", " : "") + dim_text(dims[d]);
  return out + "]";
}

const Method& Program::method(std::string_view name) const {
  std::string there;
  for (const Method& m : methods) {
    if (m.name == name) return m;
    there += (there.empty() ? "" : ", ") + m.name;
  }
  throw NotFound(graft::str("no method '", name, "'; there are: ", there.empty() ? "none" : there));
}

}  // namespace graft::ir
