#include "package/compose.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/utf8.h"

namespace graft {
namespace {

constexpr std::string_view kWriteBack = "aten::copy_";

std::optional<DType> to_dtype(et::ScalarType type) {
  switch (type) {
    case et::ScalarType::BYTE:
      return DType::u8;
    case et::ScalarType::CHAR:
      return DType::i8;
    case et::ScalarType::SHORT:
      return DType::i16;
    case et::ScalarType::INT:
      return DType::i32;
    case et::ScalarType::LONG:
      return DType::i64;
    case et::ScalarType::HALF:
      return DType::f16;
    case et::ScalarType::FLOAT:
      return DType::f32;
    case et::ScalarType::DOUBLE:
      return DType::f64;
    case et::ScalarType::BOOL:
      return DType::b8;
    case et::ScalarType::BFLOAT16:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

std::string text_of(const flatbuffers::String* text) {
  if (text == nullptr) return {};
  GRAFT_CHECK(InvalidProgram, is_utf8(text->string_view()), "a string of ", text->size(), " bytes is not UTF-8");
  return text->str();
}

template <typename T>
std::size_t size_of(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

// Thrown when only ExecuTorch can run the method.
struct NeedsExecuTorch {
  std::string refusal;
};

template <typename... Parts>
[[noreturn]] void needs_executorch(const Parts&... parts) {
  throw NeedsExecuTorch{str(parts...)};
}

// Turns one execution plan into a graph.
class Composer {
 public:
  Composer(const et::ExecutionPlan& plan, const PlanSurroundings& around) : plan_(plan), around_(around) {}

  ir::Program run() {
    read_instructions();
    if (call_ != nullptr) {
      read_blob();
    } else {
      out_.major = ir::kFormatMajor;
      out_.minor = ir::kFormatMinor;
      out_.methods.emplace_back();
    }
    graph().name = text_of(plan_.name());
    blob_outputs_ = std::move(graph().outputs);
    blob_inputs_ = std::move(graph().inputs);
    graph().outputs.clear();
    graph().inputs.clear();
    read_plan_inputs();
    if (call_ != nullptr) connect_call();
    add_unused_inputs();
    add_outputs();
    apply_substitutions();
    graph().user_input_names = std::move(input_names_);
    if (const auto* specs = plan_.container_meta_type()) {
      graph().in_spec = text_of(specs->encoded_inp_str());
      graph().out_spec = text_of(specs->encoded_out_str());
    }
    return std::move(out_);
  }

 private:
  using Index = std::uint32_t;  // of an EValue
  struct WriteBack {
    Index target;
    Index source;
  };

  ir::Method& graph() { return out_.methods[0]; }

  Index check_index(std::int32_t index, std::string_view what) const {
    const std::size_t count = size_of(plan_.values());
    GRAFT_CHECK(InvalidProgram, index >= 0 && static_cast<std::size_t>(index) < count, what, ": there are ", count,
                " values, found index ", index);
    return static_cast<Index>(index);
  }

  const et::EValue& value(Index index) const { return *plan_.values()->Get(index); }

  // --- instructions: one call of graft's delegate, then copies into inputs; anything else is refused ---

  void read_instructions() {
    const std::size_t chains = size_of(plan_.chains());
    if (chains != 1) needs_executorch(chains, " chains of instructions");
    const auto* instructions = plan_.chains()->Get(0)->instructions();
    std::set<std::string> outside;
    std::size_t calls = 0;
    for (std::size_t i = 0; i < size_of(instructions); ++i) {
      const et::Instruction& instruction = *instructions->Get(static_cast<Index>(i));
      if (const auto* call = instruction.instr_args_as_DelegateCall()) {
        const et::BackendDelegate& delegate = delegate_of(*call);
        const std::string id = text_of(delegate.id());
        if (id != kBackendId) {
          outside.insert(str("delegate ", id));
          continue;
        }
        ++calls;
        call_ = call;
      } else if (const auto* kernel = instruction.instr_args_as_KernelCall()) {
        const std::string name = kernel_name(*kernel);
        if (name != kWriteBack || calls == 0 || !read_write_back(*kernel)) outside.insert(name);
      } else {
        outside.insert(et::EnumNameInstructionArguments(instruction.instr_args_type()));
      }
    }
    if (!outside.empty()) {
      std::string names;
      for (const std::string& name : outside) names += (names.empty() ? "" : ", ") + name;
      needs_executorch(names);
    }
    if (calls > 1) needs_executorch(calls, " calls of ", kBackendId, " instead of one");
  }

  const et::BackendDelegate& delegate_of(const et::DelegateCall& call) const {
    const std::size_t count = size_of(plan_.delegates());
    GRAFT_CHECK(InvalidProgram, call.delegate_index() >= 0 && static_cast<std::size_t>(call.delegate_index()) < count,
                "there are ", count, " delegates, found index ", call.delegate_index());
    return *plan_.delegates()->Get(static_cast<Index>(call.delegate_index()));
  }

  std::string kernel_name(const et::KernelCall& kernel) const {
    const std::size_t count = size_of(plan_.operators());
    GRAFT_CHECK(InvalidProgram, kernel.op_index() >= 0 && static_cast<std::size_t>(kernel.op_index()) < count,
                "there are ", count, " operators, found index ", kernel.op_index());
    const et::Operator& op = *plan_.operators()->Get(static_cast<Index>(kernel.op_index()));
    const std::string overload = text_of(op.overload());
    return overload.empty() ? text_of(op.name()) : text_of(op.name()) + "." + overload;
  }

  // ExecuTorch writes a mutated input back with aten::copy_(input, new value, non_blocking, input).
  bool read_write_back(const et::KernelCall& kernel) {
    if (size_of(kernel.args()) != 4) return false;
    const Index target = check_index(kernel.args()->Get(0), kWriteBack);
    const Index source = check_index(kernel.args()->Get(1), kWriteBack);
    if (check_index(kernel.args()->Get(3), kWriteBack) != target) return false;
    write_backs_.push_back({target, source});
    return true;
  }

  // --- the delegate's blob ---

  void read_blob() {
    try {
      out_ = ir::parse(around_.processed(delegate_of(*call_)));
      ir::verify(out_, UINT64_MAX);  // the load has the limit
    } catch (const InvalidProgram& error) {
      throw InvalidProgram(str("the delegate's program: ", error.what()));
    }
    GRAFT_CHECK(InvalidProgram, out_.methods.size() == 1, "the delegate's program must have one method, found ",
                out_.methods.size());
  }

  // --- inputs ---

  void read_plan_inputs() {
    const std::size_t count = size_of(plan_.inputs());
    inputs_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Index index = check_index(plan_.inputs()->Get(static_cast<Index>(i)), str("input ", i));
      inputs_[i].evalue = index;
      const bool fresh = input_of_.try_emplace(index, static_cast<Index>(i)).second;
      GRAFT_CHECK(InvalidProgram, fresh || value(index).val_as_Tensor() == nullptr, "input ", i,
                  " is the same tensor as input ", input_of_[index]);
      input_names_.push_back(str("input_", i));
    }
  }

  struct PlanInput {
    Index evalue = 0;
    std::optional<ir::ValueId> value;  // in the graph
  };

  // Connects the arguments of the call: first the delegate's user inputs by position, then its outputs.
  void connect_call() {
    std::vector<std::optional<ir::ValueId>> users(count_users());
    for (const ir::Input& input : blob_inputs_)
      if (input.kind == ir::InputKind::user) users[input.index] = input.value;
    std::vector<const ir::Output*> results;
    for (const ir::Output& output : blob_outputs_)
      if (output.kind != ir::OutputKind::state_mutation) results.push_back(&output);
    const auto* args = call_->args();
    GRAFT_CHECK(InvalidProgram, size_of(args) == users.size() + results.size(), "the delegate's program has ",
                users.size(), " inputs and ", results.size(), " outputs, its call has ", size_of(args), " arguments");
    for (const ir::Input& input : blob_inputs_)
      if (input.kind != ir::InputKind::user) graph().inputs.push_back(input);
    const std::vector<std::string> names = std::move(graph().user_input_names);
    for (std::size_t i = 0; i < users.size(); ++i) {
      const Index index = check_index(args->Get(static_cast<Index>(i)), str("argument ", i, " of the delegate"));
      const auto found = input_of_.find(index);
      if (found != input_of_.end()) blob_position_[static_cast<Index>(i)] = found->second;
      if (users[i]) connect_input(i, *users[i], index, i < names.size() ? names[i] : "");
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::size_t at = users.size() + i;
      const Index index = check_index(args->Get(static_cast<Index>(at)), str("argument ", at, " of the delegate"));
      GRAFT_CHECK(InvalidProgram, input_of_.find(index) == input_of_.end(), "output ", i,
                  " of the delegate is an input of the method");
      GRAFT_CHECK(InvalidProgram, results_.try_emplace(index, &results[i]->arg).second, "output ", i,
                  " of the delegate overwrites another one");
    }
  }

  std::size_t count_users() {
    if (!graph().user_input_names.empty()) return graph().user_input_names.size();
    std::size_t count = 0;
    for (const ir::Input& input : blob_inputs_) count += input.kind == ir::InputKind::user;
    return count;
  }

  void connect_input(std::size_t position, ir::ValueId id, Index index, const std::string& name) {
    const std::string what = str("input ", position, " of the delegate");
    const ir::Value& expected = graph().values[id];
    const auto found = input_of_.find(index);
    check_kind(expected, value(index), found != input_of_.end(), what);
    if (found != input_of_.end()) {
      PlanInput& input = inputs_[found->second];
      if (input.value) {
        substitutes_[id] = ir::Arg::of_value(*input.value);
        return;
      }
      input.value = id;
      if (!name.empty()) input_names_[found->second] = name;
      graph().inputs.push_back({id, ir::InputKind::user, found->second});
      return;
    }
    if (const et::Tensor* tensor = value(index).val_as_Tensor()) {
      const auto weight = constant_weight(*tensor);
      if (!weight) needs_executorch(what, " is a buffer that ExecuTorch owns");
      graph().inputs.push_back({id, ir::InputKind::weight, *weight});
      return;
    }
    const auto number = constant(value(index));
    GRAFT_CHECK(InvalidProgram, number.has_value(), what, " is of a kind that it cannot be");
    substitutes_[id] = *number;
  }

  // Checks that an EValue can be bound to a value of the delegate.
  static void check_kind(const ir::Value& expected, const et::EValue& found, bool is_method_input,
                         const std::string& what) {
    const auto rule = [&](bool holds, const auto&... parts) {
      GRAFT_CHECK(InvalidProgram, holds, what, ": the graph expects ", expected.str(), ", the package passes ",
                  parts...);
    };
    const std::string kind = et::EnumNameKernelTypes(found.val_type());
    // ExecuTorch stores a method input that is a symbolic number as Null.
    const bool symbolic = is_method_input && found.val_type() == et::KernelTypes::Null;
    switch (expected.kind) {
      case ir::ValueKind::integer:
        rule(symbolic || found.val_as_Int() != nullptr, kind);
        break;
      case ir::ValueKind::real:
        rule(symbolic || found.val_as_Double() != nullptr, kind);
        break;
      case ir::ValueKind::boolean:
        rule(found.val_as_Bool() != nullptr, kind);
        break;
      case ir::ValueKind::tensor: {
        const et::Tensor* tensor = found.val_as_Tensor();
        rule(tensor != nullptr, kind);
        rule(to_dtype(tensor->scalar_type()) == expected.dtype, "a tensor of scalar type ",
             et::EnumNameScalarType(tensor->scalar_type()));
        rule(size_of(tensor->sizes()) == expected.dims.size(), "a tensor of rank ", size_of(tensor->sizes()));
        break;
      }
    }
  }

  // Inputs that the delegate does not read are still inputs of the method, which may return them.
  void add_unused_inputs() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].value) continue;
      const et::EValue& from = value(inputs_[i].evalue);
      ir::Value made;
      made.name = input_names_[i];
      if (from.val_type() == et::KernelTypes::Null || from.val_as_String() != nullptr) continue;
      if (const et::Tensor* tensor = from.val_as_Tensor()) {
        const auto dtype = to_dtype(tensor->scalar_type());
        if (!dtype) needs_executorch("input ", i, " of scalar type ", et::EnumNameScalarType(tensor->scalar_type()));
        made.dtype = *dtype;
        made.dims = dims_of(*tensor, str("input ", i));
      } else if (const et::Int* integer = from.val_as_Int()) {
        // Like ExecuTorch, accepts only the value that the program was exported with.
        made.kind = ir::ValueKind::integer;
        made.dtype = DType::i64;
        made.dims.push_back({integer->int_val(), integer->int_val(), {}});
      } else if (const et::Bool* boolean = from.val_as_Bool()) {
        made.kind = ir::ValueKind::boolean;
        made.dtype = DType::b8;
        made.dims.push_back({boolean->bool_val(), boolean->bool_val(), {}});
      } else if (from.val_as_Double() != nullptr) {
        made.kind = ir::ValueKind::real;
        made.dtype = DType::f64;
      } else {
        needs_executorch("input ", i, " of kind ", et::EnumNameKernelTypes(from.val_type()));
      }
      inputs_[i].value = add_value(std::move(made));
      graph().inputs.push_back({*inputs_[i].value, ir::InputKind::user, static_cast<Index>(i)});
    }
  }

  static std::vector<ir::Dim> dims_of(const et::Tensor& tensor, const std::string& what) {
    std::vector<ir::Dim> dims;
    GRAFT_CHECK(InvalidProgram, size_of(tensor.sizes()) <= static_cast<std::size_t>(kMaxRank), what, ": at most ",
                kMaxRank, " dimensions, found ", size_of(tensor.sizes()));
    for (std::size_t d = 0; d < size_of(tensor.sizes()); ++d) {
      const std::int64_t size = tensor.sizes()->Get(static_cast<Index>(d));
      GRAFT_CHECK(InvalidProgram, size >= 0, what, ": size of dimension ", d, " must not be negative, found ", size);
      switch (tensor.shape_dynamism()) {
        case et::TensorShapeDynamism::STATIC:
          dims.push_back({size, size, {}});
          break;
        case et::TensorShapeDynamism::DYNAMIC_BOUND:
          dims.push_back({0, size, {}});
          break;
        default:
          dims.push_back({0, ir::kUnbounded, {}});
      }
    }
    return dims;
  }

  ir::ValueId add_value(ir::Value made) {
    graph().values.push_back(std::move(made));
    return static_cast<ir::ValueId>(graph().values.size() - 1);
  }

  // --- outputs ---

  void add_outputs() {
    for (const ir::Output& output : blob_outputs_) {
      if (output.kind == ir::OutputKind::state_mutation) {
        graph().outputs.push_back(output);
      } else if (output.kind == ir::OutputKind::input_mutation) {
        const auto target = blob_position_.find(output.index);
        if (target == blob_position_.end())
          needs_executorch("the delegate writes to an input that the method does not have");
        add_write_back(target->second, output.arg);
      }
    }
    for (const WriteBack& write_back : write_backs_) {
      const auto target = input_of_.find(write_back.target);
      const auto source = results_.find(write_back.source);
      if (target == input_of_.end() || source == results_.end() || !source->second->is_value())
        needs_executorch(kWriteBack);
      add_write_back(target->second, *source->second);
    }
    const auto* outputs = plan_.outputs();
    Index position = 0;
    for (std::size_t i = count_returned_write_backs(); i < size_of(outputs); ++i) {
      const std::string what = str("output ", i);
      graph().outputs.push_back(
          {ir::OutputKind::user, output_arg(check_index(outputs->Get(static_cast<Index>(i)), what), what), position++});
    }
  }

  void add_write_back(Index input, const ir::Arg& arg) {
    if (!inputs_[input].value) needs_executorch("writing to an input that is no tensor");
    const ir::Value& target = graph().values[*inputs_[input].value];
    const ir::Value& source = graph().values[arg.value()];
    // aten::copy_ would convert; the graph's outputs do not.
    if (source.kind != ir::ValueKind::tensor || target.kind != ir::ValueKind::tensor || source.dtype != target.dtype ||
        source.rank() != target.rank())
      needs_executorch(kWriteBack, " from ", source.str(), " to ", target.str());
    graph().outputs.push_back({ir::OutputKind::input_mutation, arg, input});
  }

  // ExecuTorch returns the inputs it wrote back before the outputs proper; the method's out_spec does not count them.
  std::size_t count_returned_write_backs() const {
    std::size_t count = 0;
    while (count < write_backs_.size() && count < size_of(plan_.outputs()) &&
           plan_.outputs()->Get(static_cast<Index>(count)) == static_cast<std::int64_t>(write_backs_[count].target))
      ++count;
    return count;
  }

  ir::Arg output_arg(Index index, const std::string& what) {
    if (const auto result = results_.find(index); result != results_.end()) return *result->second;
    if (const auto input = input_of_.find(index); input != input_of_.end() && inputs_[input->second].value)
      return ir::Arg::of_value(*inputs_[input->second].value);
    if (const et::Tensor* tensor = value(index).val_as_Tensor()) {
      if (const auto known = constant_outputs_.find(index); known != constant_outputs_.end())
        return ir::Arg::of_value(known->second);
      const auto weight = constant_weight(*tensor);
      if (!weight) needs_executorch(what, " is a buffer that ExecuTorch owns");
      const ir::Weight& made = out_.weights[*weight];
      ir::Value constant_value;
      constant_value.name = str("constant_", graph().values.size());
      constant_value.dtype = made.dtype;
      for (std::int64_t size : made.shape.sizes()) constant_value.dims.push_back({size, size, {}});
      const ir::ValueId id = add_value(std::move(constant_value));
      graph().inputs.push_back({id, ir::InputKind::weight, *weight});
      constant_outputs_[index] = id;
      return ir::Arg::of_value(id);
    }
    auto arg = constant(value(index));
    if (!arg) needs_executorch(what, " of kind ", et::EnumNameKernelTypes(value(index).val_type()));
    return *arg;
  }

  // --- constants ---

  static std::optional<ir::Arg> constant(const et::EValue& from) {
    ir::Arg arg;
    if (from.val_type() == et::KernelTypes::Null) return arg;
    if (const et::Int* integer = from.val_as_Int()) {
      arg.kind = ir::Arg::Kind::integer;
      arg.i = integer->int_val();
    } else if (const et::Bool* boolean = from.val_as_Bool()) {
      arg.kind = ir::Arg::Kind::boolean;
      arg.i = boolean->bool_val() ? 1 : 0;
    } else if (const et::Double* real = from.val_as_Double()) {
      arg.kind = ir::Arg::Kind::real;
      arg.f = real->double_val();
    } else if (const et::String* string = from.val_as_String()) {
      arg.kind = ir::Arg::Kind::string;
      arg.s = text_of(string->string_val());
    } else {
      return std::nullopt;
    }
    return arg;
  }

  // Index of the weight made for a constant tensor; nullopt if the tensor is no constant.
  std::optional<Index> constant_weight(const et::Tensor& tensor) {
    const et::ExtraTensorInfo* extra = tensor.extra_tensor_info();
    const bool external = extra != nullptr && extra->location() == et::TensorDataLocation::EXTERNAL;
    if (tensor.allocation_info() != nullptr) return std::nullopt;
    const auto dtype = to_dtype(tensor.scalar_type());
    if (!dtype) needs_executorch("a constant of scalar type ", et::EnumNameScalarType(tensor.scalar_type()));
    for (std::size_t d = 0; d < size_of(tensor.dim_order()); ++d)
      if (tensor.dim_order()->Get(static_cast<Index>(d)) != d)
        needs_executorch("a constant that is not stored row-major");
    GRAFT_CHECK(InvalidProgram, tensor.storage_offset() == 0, "a constant at storage offset ", tensor.storage_offset());
    ir::Weight weight;
    weight.dtype = *dtype;
    std::uint64_t bytes = byte_size(*dtype);
    for (const ir::Dim& dim : dims_of(tensor, "a constant")) {
      GRAFT_CHECK(InvalidProgram, dim.is_static(), "a constant with dynamic sizes");
      weight.shape.push_back(dim.min);
      GRAFT_CHECK(InvalidProgram, !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim.min), &bytes),
                  "the size of a constant does not fit 64 bits");
    }
    weight.byte_size = bytes;
    // Buffer 0 means no data: only an empty constant has it.
    if (!external && tensor.data_buffer_idx() == 0 && bytes > 0) return std::nullopt;
    if (external) {
      weight.key = text_of(extra->fully_qualified_name());
    } else {
      weight.key = str("graft.pte.constant.", tensor.data_buffer_idx(), ".", bytes);
      around_.add(weight.key,
                  bytes == 0 ? std::span<const std::byte>{} : around_.pte.constant(tensor.data_buffer_idx(), bytes));
    }
    weight.fqn = extra != nullptr && extra->fully_qualified_name() != nullptr ? text_of(extra->fully_qualified_name())
                                                                              : weight.key;
    out_.weights.push_back(std::move(weight));
    return static_cast<Index>(out_.weights.size() - 1);
  }

  // --- values of the delegate's graph that the package replaces by a constant or another value ---

  void apply_substitutions() {
    if (substitutes_.empty()) return;
    for (ir::Node& node : graph().nodes)
      for (ir::Arg& arg : node.args) substitute(arg);
    for (ir::Output& output : graph().outputs) substitute(output.arg);
  }

  void substitute(ir::Arg& arg) const {  // as deep as ir::verify allows lists to nest
    for (ir::Arg& item : arg.items) substitute(item);
    if (!arg.is_value()) return;
    const auto found = substitutes_.find(arg.value());
    if (found != substitutes_.end()) arg = ir::Arg(found->second);
  }

  const et::ExecutionPlan& plan_;
  const PlanSurroundings& around_;
  const et::DelegateCall* call_ = nullptr;
  std::vector<WriteBack> write_backs_;
  ir::Program out_;
  std::vector<ir::Input> blob_inputs_;
  std::vector<ir::Output> blob_outputs_;
  std::vector<PlanInput> inputs_;
  std::vector<std::string> input_names_;
  std::unordered_map<Index, Index> input_of_;          // EValue: position of the input
  std::unordered_map<Index, Index> blob_position_;     // position of the delegate's input: the method's input
  std::unordered_map<Index, const ir::Arg*> results_;  // EValue: the delegate's result written to it
  std::unordered_map<ir::ValueId, ir::Arg> substitutes_;
  std::unordered_map<Index, ir::ValueId> constant_outputs_;  // EValue: the value made for it
};

PackageInterface interface_of(const et::ExecutionPlan& plan) {
  PackageInterface out;
  const auto check = [&](std::int32_t index, std::string_view what, std::uint32_t i) {
    GRAFT_CHECK(InvalidProgram, index >= 0 && static_cast<std::size_t>(index) < size_of(plan.values()), what, " ", i,
                ": there are ", size_of(plan.values()), " values, found index ", index);
    return index;
  };
  std::map<std::int32_t, std::uint32_t> position;
  for (std::uint32_t i = 0; i < size_of(plan.inputs()); ++i) {
    const std::int32_t index = check(plan.inputs()->Get(i), "input", i);
    const et::EValue& from = *plan.values()->Get(static_cast<std::uint32_t>(index));
    position[index] = i;
    PackageInterface::Input& input = out.inputs.emplace_back();
    input.kind = from.val_type() == et::KernelTypes::NONE ? "Null" : et::EnumNameKernelTypes(from.val_type());
    if (const et::Tensor* tensor = from.val_as_Tensor()) {
      input.dtype = to_dtype(tensor->scalar_type());
      input.rank = size_of(tensor->sizes());
    }
  }
  for (std::uint32_t i = 0; i < size_of(plan.outputs()); ++i) {
    const auto input = position.find(check(plan.outputs()->Get(i), "output", i));
    out.outputs.push_back(input == position.end() ? std::nullopt : std::optional(input->second));
  }
  if (const auto* specs = plan.container_meta_type()) {
    out.in_spec = text_of(specs->encoded_inp_str());
    out.out_spec = text_of(specs->encoded_out_str());
  }
  return out;
}

}  // namespace

PackageMethod compose(const et::ExecutionPlan& plan, const PlanSurroundings& around) {
  PackageMethod method;
  method.name = text_of(plan.name());
  try {
    method.interface = interface_of(plan);
    method.program = Composer(plan, around).run();
    method.fully_delegated = true;
  } catch (const NeedsExecuTorch& left) {
    method.program = {};
    method.refusal = left.refusal;
  } catch (const InvalidProgram& error) {
    throw InvalidProgram(str("method '", method.name, "': ", error.what()));
  }
  return method;
}

}  // namespace graft
