#include "ir/program.h"

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

}  // namespace

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
