#include <algorithm>

#include "base/check.h"
#include "op/operator.h"

namespace graft {
namespace {

const ir::Arg kNone;

// nullptr if the schema has no argument of that name.
const ir::Arg* find_arg(const ir::Program& program, const ir::Node& node, std::string_view name) {
  const std::vector<std::string>& names = program.op_of(node).arg_names;
  for (std::size_t i = 0; i < names.size() && i < node.args.size(); ++i)
    if (names[i] == name) return &node.args[i];
  return nullptr;
}

const ir::Arg& arg_of(const ir::Program& program, const ir::Node& node, std::string_view name) {
  const ir::Arg* arg = find_arg(program, node, name);
  return arg ? *arg : kNone;
}

}  // namespace

std::string_view NodeView::target() const { return program_.op_of(node_).target; }
const ir::Arg& NodeView::arg(std::string_view name) const { return arg_of(program_, node_, name); }
bool NodeView::has(std::string_view name) const { return arg(name).kind != ir::Arg::Kind::none; }

bool NodeView::is_tensor(std::string_view name) const {
  const ir::Arg& a = arg(name);
  return a.is_value() && method_.values[a.value()].kind == ir::ValueKind::tensor;
}

const ir::Value& NodeView::tensor(std::string_view name) const {
  GRAFT_CHECK(InvalidProgram, is_tensor(name), target(), ": argument ", name, " of node ", node_.name,
              " must be a tensor");
  return method_.values[arg(name).value()];
}

std::vector<const ir::Value*> NodeView::tensors(std::string_view name) const {
  std::vector<const ir::Value*> out;
  for (const ir::Arg& item : arg(name).items) out.push_back(item.is_value() ? &method_.values[item.value()] : nullptr);
  return out;
}

std::optional<std::int64_t> NodeView::constant(std::string_view name) const {
  const ir::Arg& a = arg(name);
  if (a.kind == ir::Arg::Kind::integer || a.kind == ir::Arg::Kind::boolean) return a.i;
  return std::nullopt;
}

const ir::Value& NodeView::output(std::size_t i) const {
  GRAFT_ASSERT(i < node_.outputs.size());
  return method_.values[node_.outputs[i]];
}

namespace {

bool names(const ir::Arg& arg, ir::ValueId id) {
  return (arg.is_value() && arg.value() == id) ||
         std::any_of(arg.items.begin(), arg.items.end(), [id](const ir::Arg& item) { return names(item, id); });
}

}  // namespace

bool NodeView::output_is_read(std::size_t i) const {
  const ir::ValueId id = node_.outputs[i];
  const auto by = [id](const ir::Node& node) {
    return std::any_of(node.args.begin(), node.args.end(), [id](const ir::Arg& arg) { return names(arg, id); });
  };
  return std::any_of(method_.nodes.begin(), method_.nodes.end(), by) ||
         std::any_of(method_.outputs.begin(), method_.outputs.end(),
                     [id](const ir::Output& output) { return names(output.arg, id); });
}

Shape Call::least_shape(std::size_t i) const {
  Shape shape;
  for (const ir::Dim& dim : method_.values[node_.outputs[i]].dims) shape.push_back(dim.min);
  return shape;
}

std::string_view Call::target() const { return program_.op_of(node_).target; }
const ir::Arg& Call::arg(std::string_view name) const { return arg_of(program_, node_, name); }
bool Call::has(std::string_view name) const { return arg(name).kind != ir::Arg::Kind::none; }

bool Call::is_tensor(std::string_view name) const {
  const ir::Arg& a = arg(name);
  return a.is_value() && bindings_[a.value()].tensor.has_value();
}

const Tensor& Call::tensor(std::string_view name) const {
  GRAFT_CHECK(InvalidProgram, is_tensor(name), target(), ": argument ", name, " of node ", node_.name,
              " must be a tensor");
  return *bindings_[arg(name).value()].tensor;
}

std::optional<Tensor> Call::optional_tensor(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return tensor(name);
}

std::vector<Tensor> Call::tensors(std::string_view name) const {
  std::vector<Tensor> out;
  for (std::optional<Tensor>& t : optional_tensors(name)) {
    GRAFT_CHECK(InvalidProgram, t.has_value(), target(), ": argument ", name, " of node ", node_.name,
                " must hold tensors only");
    out.push_back(*t);
  }
  return out;
}

std::vector<std::optional<Tensor>> Call::optional_tensors(std::string_view name) const {
  std::vector<std::optional<Tensor>> out;
  const ir::Arg& a = arg(name);
  GRAFT_CHECK(InvalidProgram, a.kind == ir::Arg::Kind::list, target(), ": argument ", name, " of node ", node_.name,
              " must be a list of tensors");
  for (const ir::Arg& item : a.items) {
    if (item.kind == ir::Arg::Kind::none) {
      out.push_back(std::nullopt);
      continue;
    }
    GRAFT_CHECK(InvalidProgram, item.is_value() && bindings_[item.value()].tensor.has_value(), target(), ": argument ",
                name, " of node ", node_.name, " must be a list of tensors");
    out.push_back(bindings_[item.value()].tensor);
  }
  return out;
}

Scalar Call::scalar_of(const ir::Arg& a) const {
  switch (a.kind) {
    case ir::Arg::Kind::integer:
      return Scalar::of(a.i);
    case ir::Arg::Kind::boolean:
      return Scalar::of(a.i != 0);
    case ir::Arg::Kind::real:
      return Scalar::of(a.f);
    case ir::Arg::Kind::value:
      if (!bindings_[a.value()].tensor) return bindings_[a.value()].scalar;
      break;
    default:
      break;
  }
  throw InvalidProgram(str(target(), ": an argument of node ", node_.name, " must be a number"));
}

std::vector<Binding> Call::items(std::string_view name) const {
  std::vector<Binding> out;
  for (const ir::Arg& item : arg(name).items) {
    if (item.kind == ir::Arg::Kind::none) continue;
    if (item.is_value() && bindings_[item.value()].tensor)
      out.push_back({bindings_[item.value()].tensor, {}});
    else
      out.push_back({std::nullopt, scalar_of(item)});
  }
  return out;
}

Scalar Call::scalar(std::string_view name) const { return scalar_of(arg(name)); }

std::int64_t Call::integer(std::string_view name) const {
  const Scalar s = scalar(name);
  GRAFT_CHECK(InvalidProgram, !s.is_real(), target(), ": argument ", name, " of node ", node_.name,
              " must be an integer, got ", s.f);
  return s.i;
}

double Call::real(std::string_view name) const { return scalar(name).to_double(); }

bool Call::boolean(std::string_view name) const {
  const Scalar s = scalar(name);
  GRAFT_CHECK(InvalidProgram, !s.is_real() && (s.i == 0 || s.i == 1), target(), ": argument ", name, " of node ",
              node_.name, " must be a bool, got ", s.to_double());
  return s.i != 0;
}

std::string_view Call::text(std::string_view name) const {
  GRAFT_CHECK(InvalidProgram, arg(name).kind == ir::Arg::Kind::string, target(), ": argument ", name, " of node ",
              node_.name, " must be a text");
  return arg(name).s;
}

std::vector<std::int64_t> Call::integers(std::string_view name) const {
  const ir::Arg& a = arg(name);
  if (a.kind != ir::Arg::Kind::list) return {integer(name)};
  std::vector<std::int64_t> out;
  out.reserve(a.items.size());
  for (const ir::Arg& item : a.items) {
    const Scalar s = scalar_of(item);
    GRAFT_CHECK(InvalidProgram, !s.is_real(), target(), ": argument ", name, " of node ", node_.name,
                " must hold integers, got ", s.f);
    out.push_back(s.i);
  }
  return out;
}

std::vector<double> Call::reals(std::string_view name) const {
  const ir::Arg& a = arg(name);
  if (a.kind != ir::Arg::Kind::list) return {real(name)};
  std::vector<double> out;
  out.reserve(a.items.size());
  for (const ir::Arg& item : a.items) out.push_back(scalar_of(item).to_double());
  return out;
}

DType Call::output_dtype(std::size_t i) const {
  GRAFT_ASSERT(i < node_.outputs.size());
  return method_.values[node_.outputs[i]].dtype;
}

}  // namespace graft
