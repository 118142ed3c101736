#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/graft.h"
#include "graft/op.h"
#include "load/program_impl.h"
#include "plan/inputs.h"

namespace graft {
namespace {

constexpr std::size_t kMostTensors = 32;  // among the arguments or the results of an operator

// A method as an operator. Its sessions are kept between runs: as many as have run at the same time.
class MethodOp {
 public:
  MethodOp(std::string target, std::shared_ptr<const Program> program, std::string method)
      : target_(std::move(target)), method_(std::move(method)), program_(std::move(program)) {
    GRAFT_CHECK(InvalidArgument, program_ != nullptr, target_, ": expected a program, found none");
    index_ = impl().find(method_);
    const auto check = [&](bool good, std::string_view found) {
      GRAFT_CHECK(Unsupported, good, "method '", method_, "' cannot be operator ", target_, ": ", found);
    };
    const LoadedMethod& loaded = impl().methods[index_];
    check(loaded.steps.empty(), "it runs in segments");
    check(loaded.states.empty(), "it has mutable buffers");
    check(!impl().on_device, "its program runs on a device");
    check(loaded.info.inputs.size() <= kMostTensors && loaded.info.outputs.size() <= kMostTensors,
          "it has too many inputs or outputs");
    for (const std::vector<ValueInfo>* values : {&loaded.info.inputs, &loaded.info.outputs})
      for (const ValueInfo& value : *values)
        check(value.kind == Value::Kind::tensor, str("expected only tensors, found '", value.name, "'"));
    const std::shared_ptr<const ir::Program> graph = impl().graph(index_);
    for (const ir::Output& output : graph->methods[0].outputs)
      check(output.kind == ir::OutputKind::user, "it changes its inputs");
  }

  std::string refuse(const OpNode& node) const {
    const std::vector<std::string> arguments = node.arguments();
    const MethodInfo& method = info();
    if (arguments.size() != method.inputs.size())
      return str("method '", method_, "' takes ", method.inputs.size(), " tensors, not ", arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!node.is_tensor(arguments[i])) return str("argument '", arguments[i], "' is no tensor");
      if (std::string problem = mismatch(method.inputs[i], node.dtype(arguments[i]), node.rank(arguments[i]));
          !problem.empty())
        return str("argument '", arguments[i], "': ", problem);
    }
    if (node.output_count() != method.outputs.size())
      return str("method '", method_, "' returns ", method.outputs.size(), " tensors, not ", node.output_count());
    for (std::size_t i = 0; i < method.outputs.size(); ++i)
      if (std::string problem = mismatch(method.outputs[i], node.output_dtype(i), node.output_rank(i));
          !problem.empty())
        return str("result ", i, ": ", problem);
    return {};
  }

  std::shared_ptr<const Plan> plan(const OpCall& call) const {
    std::vector<InputDesc> inputs;
    const std::vector<std::string> arguments = call.arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i)
      inputs.push_back({true, TensorDesc(info().inputs[i].dtype, call.shape(arguments[i])), {}});
    impl().check_inputs(index_, inputs);
    std::vector<std::int64_t> key;
    append_plan_key(inputs, key);
    return impl().plan(index_, inputs, key, call.threads(), {}, {}).plan;
  }

  std::vector<Shape> shapes(const OpCall& call) const {
    const std::shared_ptr<const Plan> found = plan(call);
    std::vector<Shape> shapes;
    for (const std::uint32_t i : impl().methods[index_].user_outputs) shapes.push_back(found->outputs[i].desc.shape);
    return shapes;
  }

  void run(const OpRun& call) {
    std::array<Value, kMostTensors> inputs, outputs;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) inputs[i] = Value::of(call.inputs[i]);
    for (std::size_t i = 0; i < call.outputs.size(); ++i) outputs[i] = Value::of(call.outputs[i]);
    RunOptions options;
    options.arena = call.scratch;
    const Borrowed session(*this, call.threads);
    session->run_into(method_, std::span(inputs).first(call.inputs.size()),
                      std::span(outputs).first(call.outputs.size()), options);
  }

 private:
  struct Idle {
    int threads;
    std::unique_ptr<Session> session;
  };

  // A session for the time of a run. One that failed is kept too: its next run is right.
  class Borrowed {
   public:
    Borrowed(MethodOp& op, int threads) : op_(op), idle_(op.take(threads)) {}
    ~Borrowed() {
      const std::lock_guard lock(op_.mutex_);
      op_.idle_.push_back(std::move(idle_));  // has the capacity
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Session* operator->() const { return idle_.session.get(); }

   private:
    MethodOp& op_;
    Idle idle_;
  };

  Idle take(int threads) {
    const std::lock_guard lock(mutex_);
    for (auto it = idle_.rbegin(); it != idle_.rend(); ++it) {
      if (it->threads != threads) continue;
      std::swap(*it, idle_.back());
      Idle taken = std::move(idle_.back());
      idle_.pop_back();
      return taken;
    }
    idle_.reserve(++made_);
    SessionOptions options;
    options.threads = threads;
    return {threads, std::make_unique<Session>(program_, options)};
  }

  static std::string mismatch(const ValueInfo& expected, DType dtype, int rank) {
    const int expected_rank = static_cast<int>(expected.dims.size());
    if (expected.dtype == dtype && expected_rank == rank) return {};
    return str("expected ", name(expected.dtype), " of rank ", expected_rank, ", found ", name(dtype), " of rank ",
               rank);
  }
  const ProgramImpl& impl() const { return Internal::of(*program_); }
  const MethodInfo& info() const { return impl().methods[index_].info; }

  std::string target_, method_;
  std::shared_ptr<const Program> program_;
  std::uint32_t index_ = 0;
  std::mutex mutex_;
  std::vector<Idle> idle_;  // most recently used last
  std::size_t made_ = 0;
};

}  // namespace

void register_op(const std::string& target, std::shared_ptr<const Program> program, const std::string& method) try {
  const auto op = std::make_shared<MethodOp>(target, std::move(program), method);
  OpDefinition definition;
  definition.target = target;
  definition.refuse = [op](const OpNode& node) { return op->refuse(node); };
  definition.shape = [op](const OpCall& call) { return op->shapes(call); };
  definition.scratch_bytes = [op](const OpCall& call) { return static_cast<std::size_t>(op->plan(call)->arena_bytes); };
  definition.run = [op](const OpRun& call) { op->run(call); };
  register_op(std::move(definition));
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
