#include "op/user.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/op.h"
#include "kernel/kernel.h"
#include "lowering/lowering.h"

namespace graft {
namespace {

constexpr std::size_t kMostTensors = 32, kMostNumbers = 32;
constexpr std::size_t kMostScratchBytes = std::size_t{1} << 62;

struct Entry {
  OpDefinition definition;
  Operator op;
};

// The only process-wide table here: registrations hold for all programs, as in PyTorch's registry.
struct Registry {
  std::shared_mutex mutex;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> entries;
  std::set<void*> libraries;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

const Entry* find_entry(std::string_view target) {
  Registry& r = registry();
  const std::shared_lock lock(r.mutex);
  const auto it = r.entries.find(target);
  return it == r.entries.end() ? nullptr : it->second.get();
}

const OpDefinition& definition_of(std::string_view target) {
  const Entry* entry = find_entry(target);
  GRAFT_ASSERT(entry != nullptr);  // entries are never removed
  return entry->definition;
}

template <typename Node>
void check_argument(const Node& node, std::string_view argument) {
  const auto& names = node.arg_names();
  GRAFT_CHECK(InvalidArgument, std::ranges::find(names, argument) != names.end(), node.target(), " has no argument '",
              argument, "'");
}

class NodeAdapter final : public OpNode {
 public:
  explicit NodeAdapter(const NodeView& node) : node_(node) {}
  std::vector<std::string> arguments() const override { return node_.arg_names(); }
  bool has(std::string_view argument) const override {
    check_argument(node_, argument);
    return node_.has(argument);
  }
  bool is_tensor(std::string_view argument) const override { return has(argument) && node_.is_tensor(argument); }
  DType dtype(std::string_view tensor) const override { return value(tensor).dtype; }
  int rank(std::string_view tensor) const override { return value(tensor).rank(); }
  std::size_t output_count() const override { return node_.output_count(); }
  DType output_dtype(std::size_t i) const override { return output(i).dtype; }
  int output_rank(std::size_t i) const override { return output(i).rank(); }

 private:
  const ir::Value& value(std::string_view tensor) const {
    GRAFT_CHECK(InvalidArgument, is_tensor(tensor), node_.target(), ": argument '", tensor, "' is no tensor");
    return node_.tensor(tensor);
  }
  const ir::Value& output(std::size_t i) const {
    GRAFT_CHECK(InvalidArgument, i < node_.output_count(), node_.target(), " has ", node_.output_count(),
                " outputs, asked for number ", i);
    return node_.output(i);
  }
  const NodeView& node_;
};

class CallAdapter final : public OpCall {
 public:
  CallAdapter(const Call& call, int threads) : call_(call), threads_(threads) {}
  std::vector<std::string> arguments() const override { return call_.arg_names(); }
  int threads() const override { return threads_; }
  bool has(std::string_view argument) const override {
    check_argument(call_, argument);
    return call_.has(argument);
  }
  Shape shape(std::string_view tensor) const override {
    GRAFT_CHECK(InvalidArgument, has(tensor) && call_.is_tensor(tensor), call_.target(), ": argument '", tensor,
                "' is no tensor");
    return call_.tensor(tensor).shape();
  }
  std::int64_t integer(std::string_view argument) const override { return present(argument).integer(argument); }
  double real(std::string_view argument) const override { return present(argument).real(argument); }
  std::string text(std::string_view argument) const override { return std::string(present(argument).text(argument)); }
  std::vector<std::int64_t> integers(std::string_view argument) const override {
    return present(argument).integers(argument);
  }

 private:
  const Call& present(std::string_view argument) const {
    GRAFT_CHECK(InvalidArgument, has(argument), call_.target(), ": argument '", argument, "' is None");
    return call_;
  }
  const Call& call_;
  int threads_;
};

Refusal refuse_user(const NodeView& node) {
  for (std::size_t i = 0; i < node.output_count(); ++i)
    if (node.output(i).kind != ir::ValueKind::tensor) return str("output ", i, " is no tensor");
  const OpDefinition& definition = definition_of(node.target());
  return definition.refuse ? call_back([&] { return definition.refuse(NodeAdapter(node)); }) : Refusal();
}

std::vector<Shape> user_shape(const Call& call) {
  std::vector<Shape> shapes = call_back([&] { return definition_of(call.target()).shape(CallAdapter(call, 1)); });
  GRAFT_CHECK(InvalidArgument, shapes.size() == call.output_count(), call.target(), ": the shape rule gives ",
              shapes.size(), " outputs, the program has ", call.output_count());
  return shapes;
}

struct UserAttrs {
  const OpDefinition* definition = nullptr;
  std::size_t scratch_bytes = 0;
  int threads = 1;
  std::size_t number_count = 0;
  std::array<OpNumber, kMostNumbers> numbers{};
};

TensorView view_of(const void* data, const TensorDesc& desc) {
  return {const_cast<void*>(data), desc.dtype, desc.shape};
}

void run_user(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<UserAttrs>();
  std::array<TensorView, kMostTensors> inputs, outputs;
  for (std::size_t i = 0; i < ctx.input_descs.size(); ++i) inputs[i] = view_of(ctx.inputs[i], ctx.input_descs[i]);
  for (std::size_t i = 0; i < ctx.output_descs.size(); ++i) outputs[i] = view_of(ctx.outputs[i], ctx.output_descs[i]);
  const OpRun run{{inputs.data(), ctx.input_descs.size()},
                  {outputs.data(), ctx.output_descs.size()},
                  {attrs.numbers.data(), attrs.number_count},
                  {ctx.scratch_bytes, attrs.scratch_bytes},
                  ctx.task,
                  ctx.tasks,
                  attrs.threads};
  attrs.definition->run(run);  // exceptions are errors of the run
}

const Kernel kUserOp{
    .name = "user_op", .run = run_user, .parallel_from = std::numeric_limits<std::int64_t>::max(), .of_user = true};
const Kernel kParallelUserOp{.name = "user_op", .run = run_user, .of_user = true};

void take_arguments(const Call& call, Lowering& lowering, std::vector<Tensor>& inputs, UserAttrs& attrs) {
  const auto number = [&](const Scalar& s) {
    GRAFT_CHECK(Unsupported, attrs.number_count < kMostNumbers, call.target(), ": more than ", kMostNumbers,
                " numbers among the arguments");
    attrs.numbers[attrs.number_count++] = {s.to_double(), s.is_real() ? 0 : s.i};
  };
  for (const std::string& name : call.arg_names()) {
    if (!call.has(name)) continue;
    const ir::Arg& arg = call.arg(name);
    if (call.is_tensor(name)) {
      inputs.push_back(lowering.contiguous(call.tensor(name)));
    } else if (arg.kind == ir::Arg::Kind::list) {
      for (const Binding& item : call.items(name))
        item.tensor ? inputs.push_back(lowering.contiguous(*item.tensor)) : number(item.scalar);
    } else if (arg.kind == ir::Arg::Kind::integer || arg.kind == ir::Arg::Kind::real ||
               arg.kind == ir::Arg::Kind::boolean || arg.is_value()) {
      number(call.scalar(name));
    }
  }
  GRAFT_CHECK(Unsupported, inputs.size() <= kMostTensors, call.target(), ": more than ", kMostTensors,
              " tensors among the arguments");
}

std::vector<Tensor> lower_user(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  GRAFT_CHECK(Unsupported, shapes.size() <= kMostTensors, call.target(), ": more than ", kMostTensors, " outputs");
  UserAttrs attrs;
  attrs.definition = &definition_of(call.target());
  attrs.threads = lowering.max_threads();
  if (attrs.definition->scratch_bytes)
    attrs.scratch_bytes = call_back([&] { return attrs.definition->scratch_bytes(CallAdapter(call, attrs.threads)); });
  GRAFT_CHECK(Unsupported, attrs.scratch_bytes <= kMostScratchBytes, call.target(), ": expected at most ",
              kMostScratchBytes, " bytes of scratch memory, found ", attrs.scratch_bytes);
  std::vector<Tensor> inputs, outputs;
  take_arguments(call, lowering, inputs, attrs);
  for (std::size_t i = 0; i < shapes.size(); ++i) outputs.push_back(lowering.allocate(call.output_dtype(i), shapes[i]));
  const bool empty = std::ranges::all_of(outputs, [](const Tensor& t) { return t.numel() == 0; });
  if (!empty)
    lowering.launch(attrs.definition->parallel ? kParallelUserOp : kUserOp, std::move(inputs), outputs, attrs,
                    static_cast<std::int64_t>(attrs.scratch_bytes));
  return outputs;
}

}  // namespace

OpNode::~OpNode() = default;
OpCall::~OpCall() = default;

const Operator* find_user_operator(std::string_view target) {
  const Entry* entry = find_entry(target);
  return entry == nullptr ? nullptr : &entry->op;
}

std::vector<const Operator*> user_operators() {
  Registry& r = registry();
  const std::shared_lock lock(r.mutex);
  std::vector<const Operator*> out;
  for (const auto& [target, entry] : r.entries) out.push_back(&entry->op);
  return out;
}

void register_op(OpDefinition definition) try {
  const std::string target = definition.target;
  GRAFT_CHECK(InvalidArgument,
              std::ranges::count(target, '.') == 2 && !target.starts_with('.') && !target.ends_with('.') &&
                  target.find("..") == std::string::npos,
              "expected a target 'namespace.name.overload', found '", target, "'");
  GRAFT_CHECK(InvalidArgument, definition.shape && definition.run, target, ": expected a shape rule and a kernel");
  GRAFT_CHECK(InvalidArgument, !find_operator(target) && !find_scalar_operator(target), target,
              " is an operator of graft, or was registered before");
  auto entry = std::make_unique<Entry>(Entry{std::move(definition), {}});
  entry->op = {entry->definition.target, refuse_user, user_shape, lower_user, true};
  Registry& r = registry();
  const std::unique_lock lock(r.mutex);
  GRAFT_CHECK(InvalidArgument, r.entries.try_emplace(target, std::move(entry)).second, target,
              " was registered before");
} catch (...) {
  rethrow_typed();
}

void load_ops(const std::string& path) try {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  GRAFT_CHECK(SystemError, library != nullptr, "library of operators '", path, "' does not load: ", dlerror());
  Registry& r = registry();
  {
    const std::unique_lock lock(r.mutex);
    if (!r.libraries.insert(library).second) return;
  }
  using Register = void();
  auto* run = reinterpret_cast<Register*>(dlsym(library, "graft_register_ops"));
  GRAFT_CHECK(NotFound, run != nullptr, "library '", path, "' has no function graft_register_ops()");
  call_back([&] { run(); });
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
