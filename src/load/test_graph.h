#pragma once

// Test only: programs built by hand, one method, without a file.

#include <cstring>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "graft/graft.h"
#include "ir/program.h"
#include "load/program_impl.h"

namespace graft::test {

inline ir::Dim fixed(std::int64_t size) { return {size, size, {}}; }
inline ir::Dim dynamic(std::int64_t min, std::int64_t max, std::string expr) { return {min, max, std::move(expr)}; }

inline ir::Arg of_int(std::int64_t v) { return ir::Arg::of_integer(v); }
inline ir::Arg of_real(double v) { return {ir::Arg::Kind::real, 0, v, {}, {}}; }
inline ir::Arg of_none() { return {}; }
inline ir::Arg of_list(std::vector<ir::Arg> items) { return {ir::Arg::Kind::list, 0, 0, {}, std::move(items)}; }
inline ir::Arg of_ints(std::initializer_list<std::int64_t> values) {
  std::vector<ir::Arg> items;
  for (std::int64_t v : values) items.push_back(of_int(v));
  return of_list(std::move(items));
}

// from, from + 1, ...
inline std::vector<float> counting(std::size_t n, float from = 0) {
  std::vector<float> out(n);
  std::iota(out.begin(), out.end(), from);
  return out;
}

// A copy of the elements of an f32 tensor.
inline std::vector<float> floats(const Value& value) {
  const auto* data = static_cast<const float*>(value.tensor.data);
  return {data, data + value.tensor.shape.numel()};
}

class GraphBuilder {
 public:
  using Args = std::vector<std::pair<std::string, ir::Arg>>;

  explicit GraphBuilder(std::string name = "forward") {
    program_.major = ir::kFormatMajor;
    program_.methods.emplace_back();
    method().name = std::move(name);
  }

  ir::ValueId input(std::string label, DType dtype, std::vector<ir::Dim> dims) {
    const ir::ValueId id = value(label, ir::ValueKind::tensor, dtype, std::move(dims));
    method().inputs.push_back({id, ir::InputKind::user, users_++});
    method().user_input_names.push_back(std::move(label));
    return id;
  }

  ir::ValueId weight(std::string key, const std::vector<float>& data, const Shape& shape) {
    const ir::ValueId id = weight(std::move(key), DType::f32, shape);
    std::memcpy(weights_.back().second.data(), data.data(), data.size() * sizeof(float));
    return id;
  }
  // A weight of zeros.
  ir::ValueId weight(std::string key, DType dtype, const Shape& shape) {
    auto& bytes = weights_.emplace_back(key, std::vector<std::byte>(TensorDesc(dtype, shape).byte_count())).second;
    ir::Weight w;
    w.key = w.fqn = key;
    w.dtype = dtype;
    w.shape = shape;
    w.byte_size = bytes.size();
    program_.weights.push_back(w);
    std::vector<ir::Dim> dims;
    for (std::int64_t size : shape.sizes()) dims.push_back(fixed(size));
    const ir::ValueId id = value(std::move(key), ir::ValueKind::tensor, dtype, std::move(dims));
    method().inputs.push_back({id, ir::InputKind::weight, static_cast<std::uint32_t>(program_.weights.size() - 1)});
    return id;
  }

  ir::ValueId state(std::string fqn, DType dtype, const Shape& shape) {
    ir::State s;
    s.fqn = fqn;
    s.dtype = dtype;
    s.shape = shape;
    program_.states.push_back(s);
    std::vector<ir::Dim> dims;
    for (std::int64_t size : shape.sizes()) dims.push_back(fixed(size));
    const ir::ValueId id = value(std::move(fqn), ir::ValueKind::tensor, dtype, std::move(dims));
    method().inputs.push_back({id, ir::InputKind::state, static_cast<std::uint32_t>(program_.states.size() - 1)});
    return id;
  }

  // A node with one tensor result.
  ir::ValueId node(const std::string& target, const Args& args, DType dtype, std::vector<ir::Dim> dims) {
    const std::string name = "n" + std::to_string(method().nodes.size());
    return add(target, args, value(name, ir::ValueKind::tensor, dtype, std::move(dims)));
  }
  // Another result of the node that was added last.
  ir::ValueId further_result(DType dtype, std::vector<ir::Dim> dims) {
    ir::Node& last = method().nodes.back();
    const std::string name = last.name + "_" + std::to_string(last.outputs.size());
    last.outputs.push_back(value(name, ir::ValueKind::tensor, dtype, std::move(dims)));
    return last.outputs.back();
  }
  // A node with an integer result.
  ir::ValueId scalar(const std::string& target, const Args& args) {
    const std::string name = "s" + std::to_string(method().nodes.size());
    return add(target, args, value(name, ir::ValueKind::integer, DType::i64, {}));
  }

  void output(ir::ValueId id) {
    ir::Output out;
    out.arg = ir::Arg::of_value(id);
    out.index = outputs_++;
    method().outputs.push_back(out);
  }
  void mutate_state(std::uint32_t state, ir::ValueId id) {
    ir::Output out;
    out.kind = ir::OutputKind::state_mutation;
    out.arg = ir::Arg::of_value(id);
    out.index = state;
    method().outputs.push_back(out);
  }

  ir::Program& program() { return program_; }
  ir::Method& method() { return program_.methods[0]; }

  // The builder must outlive the program: its weights are not copied, and its graph is read again after shrink().
  std::shared_ptr<const Program> build(const LoadOptions& options = {}) {
    ir::verify(program_);
    const auto again = [this](std::size_t) { return program_; };
    return Internal::program(build_program({program_}, finder(), again, options, "test"));
  }
  // With the methods of other builders besides, whose weights are among this one's.
  std::shared_ptr<const Program> build_with(std::initializer_list<const GraphBuilder*> others) {
    std::vector<ir::Program> programs{program_};
    for (const GraphBuilder* other : others) programs.push_back(other->program_);
    for (const ir::Program& program : programs) ir::verify(program);
    const auto again = [programs](std::size_t i) { return programs[i]; };
    return Internal::program(build_program(programs, finder(), again, {}, "test"));
  }

 private:
  FindWeight finder() const {
    return [this](const ir::Weight& weight) -> FoundWeight {
      for (const auto& [name, bytes] : weights_)
        if (name == weight.key) return {bytes, FoundWeight::Origin::package, "the test"};
      throw NotFound("no weight '" + weight.key + "'");
    };
  }
  ir::ValueId value(std::string name, ir::ValueKind kind, DType dtype, std::vector<ir::Dim> dims) {
    method().values.push_back({std::move(name), kind, dtype, std::move(dims)});
    return static_cast<ir::ValueId>(method().values.size() - 1);
  }
  ir::ValueId add(const std::string& target, const Args& args, ir::ValueId result) {
    ir::Op op;
    op.target = target;
    ir::Node node;
    node.op = static_cast<std::uint32_t>(program_.ops.size());
    node.name = method().values[result].name;
    for (const auto& [name, arg] : args) {
      op.arg_names.push_back(name);
      node.args.push_back(arg);
    }
    node.outputs = {result};
    program_.ops.push_back(std::move(op));
    method().nodes.push_back(std::move(node));
    return result;
  }

  ir::Program program_;
  std::vector<std::pair<std::string, std::vector<std::byte>>> weights_;
  std::uint32_t users_ = 0;
  std::uint32_t outputs_ = 0;
};

// A tensor value over the caller's vector.
template <typename T>
Value tensor(std::vector<T>& data, DType dtype, const Shape& shape) {
  return Value::of(TensorView{data.data(), dtype, shape});
}
inline Value tensor(std::vector<float>& data, const Shape& shape) { return tensor(data, DType::f32, shape); }

}  // namespace graft::test
