#include "graft/flow.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "python/values.h"
#include "python/waiting.h"

namespace nb = nanobind;

namespace graft {
namespace {

// Freed with the GIL held, on whatever thread.
std::shared_ptr<nb::object> held(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* kept) {
            const nb::gil_scoped_acquire acquire;
            delete kept;
          }};
}

// What a function of a stage raised.
struct Raised {
  explicit Raised(std::shared_ptr<nb::object> raised) : exception(std::move(raised)) {}
  virtual ~Raised() = default;
  std::shared_ptr<nb::object> exception;
};
template <typename E>
struct RaisedAs final : E, Raised {
  RaisedAs(const std::string& message, std::shared_ptr<nb::object> raised) : E(message), Raised(std::move(raised)) {}
};

// graft's exceptions keep their type; others are an ExecutionError.
[[noreturn]] void throw_raised(const nb::python_error& error) {
  const std::string text = nb::str(error.value()).c_str();
  const auto exception = held(nb::borrow(error.value()));
  const nb::module_ errors = nb::module_::import_("graft.errors");
  const auto is = [&](const char* name) { return nb::isinstance(error.value(), errors.attr(name)); };
  if (is("InvalidArgument")) throw RaisedAs<InvalidArgument>(text, exception);
  if (is("InvalidProgram")) throw RaisedAs<InvalidProgram>(text, exception);
  if (is("Unsupported")) throw RaisedAs<Unsupported>(text, exception);
  if (is("NotFound")) throw RaisedAs<NotFound>(text, exception);
  if (is("SystemError")) throw RaisedAs<SystemError>(text, exception);
  if (is("Busy")) throw RaisedAs<Busy>(text, exception);
  if (is("Cancelled")) throw RaisedAs<Cancelled>(text, exception);
  if (is("ExecutionError")) throw RaisedAs<ExecutionError>(text, exception);
  throw RaisedAs<ExecutionError>(str("raised ", nb::cast<std::string>(error.type().attr("__name__")), ": ", text),
                                 exception);
}

// A value as Python gives it: (what to_value takes, the object that keeps its memory, or None).
Value owned_value(nb::handle pair) {
  const auto fields = nb::cast<nb::tuple>(pair);
  Value value = to_value(fields[0]);
  if (!fields[1].is_none()) value.owner = held(nb::borrow(fields[1]));
  return value;
}

std::vector<Value> owned_values(const nb::list& pairs) {
  std::vector<Value> out;
  for (const nb::handle pair : pairs) out.push_back(owned_value(pair));
  return out;
}

using Function = std::shared_ptr<nb::object>;

// The function of a stage gets a list of inputs, each a value or a list. It returns the list of outputs as pairs, or,
// for a fan-out, an iterator of such lists.
std::function<void(FlowCall&)> function_of(Function function, std::size_t inputs, bool fan_out) {
  return [function = std::move(function), inputs, fan_out](FlowCall& call) {
    const nb::gil_scoped_acquire acquire;
    try {
      nb::list args;
      for (std::size_t i = 0; i < inputs; ++i) {
        if (!call.is_list(i)) {
          args.append(to_array(call.input(i)));
          continue;
        }
        nb::list items;
        for (const Value& item : call.items(i)) items.append(to_array(item));
        args.append(items);
      }
      const auto set = [&](nb::handle outputs) {
        std::vector<Value> values = owned_values(nb::cast<nb::list>(outputs));
        for (std::size_t o = 0; o < values.size(); ++o) call.set(o, std::move(values[o]));
      };
      const nb::object result = (*function)(args);
      if (!fan_out) return set(result);
      for (const nb::handle item : result) {
        set(item);
        const nb::gil_scoped_release release;
        call.emit();
      }
    } catch (const nb::python_error& error) {
      throw_raised(error);
    }
  };
}

std::vector<FlowPort> ports_of(const nb::list& ports) {
  std::vector<FlowPort> out;
  for (const nb::handle item : ports) {  // (name, None or (dtype, [(min, max)]))
    const auto fields = nb::cast<nb::tuple>(item);
    FlowPort& port = out.emplace_back();
    port.name = nb::cast<std::string>(fields[0]);
    if (fields[1].is_none()) continue;
    const auto type = nb::cast<nb::tuple>(fields[1]);
    ValueInfo info;
    info.dtype = static_cast<DType>(nb::cast<int>(type[0]));
    for (const nb::handle range : nb::cast<nb::list>(type[1])) {
      const auto [min, max] = nb::cast<std::pair<std::int64_t, std::int64_t>>(range);
      info.dims.push_back({min, max, ""});
    }
    port.type = std::move(info);
  }
  return out;
}

// (name, sessions, method) or (name, function, inputs, outputs, workers, fan_out, fan_in).
FlowStage stage_of(const nb::tuple& fields, std::vector<Function>& functions) {
  FlowStage stage;
  stage.name = nb::cast<std::string>(fields[0]);
  if (fields.size() == 3) {
    stage.sessions = nb::cast<std::vector<std::shared_ptr<Session>>>(fields[1]);
    stage.method = nb::cast<std::string>(fields[2]);
    return stage;
  }
  stage.inputs = ports_of(nb::cast<nb::list>(fields[2]));
  stage.outputs = ports_of(nb::cast<nb::list>(fields[3]));
  stage.workers = nb::cast<int>(fields[4]);
  stage.fan_out = nb::cast<bool>(fields[5]);
  stage.fan_in = nb::cast<bool>(fields[6]);
  functions.push_back(held(nb::borrow(fields[1])));
  stage.function = function_of(functions.back(), stage.inputs.size(), stage.fan_out);
  return stage;
}

// A run that was submitted.
class FlowRun {
 public:
  FlowRun(std::shared_future<FlowOutputs> run, std::vector<bool> lists)
      : run_(std::move(run)), lists_(std::move(lists)) {}

  // Seconds; below 0: until it is done.
  bool wait(double seconds) const {
    return wait_with_signals(
        seconds, [&](std::chrono::milliseconds most) { return run_.wait_for(most) == std::future_status::ready; });
  }
  nb::list results() {
    take();
    nb::list out;
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      nb::list items;
      for (const Value& value : outputs_[o]) items.append(to_array(value));
      out.append(lists_[o] ? nb::object(items) : nb::object(items[0]));
    }
    return out;
  }
  // What a function raised and made the run fail, or None.
  nb::object cause() {
    try {
      take();
    } catch (const Error& error) {
      try {
        std::rethrow_if_nested(error);
      } catch (const Raised& raised) {
        return *raised.exception;
      } catch (const std::exception&) {  // of a method
      }
    }
    return nb::none();
  }

 private:
  // The flow's thread that ended the run may hold the shared state for a moment longer: the values are moved out of it,
  // so that they are freed with this. With the GIL held.
  void take() {
    const FlowOutputs& made = run_.get();
    if (!std::exchange(taken_, true)) outputs_ = std::move(const_cast<FlowOutputs&>(made));
  }

  std::shared_future<FlowOutputs> run_;
  FlowOutputs outputs_;
  bool taken_ = false;
  std::vector<bool> lists_;
};

class PythonFlow {
 public:
  PythonFlow(std::vector<std::string> inputs, const nb::list& stages, const nb::dict& connections,
             std::vector<std::string> outputs, std::size_t runs, std::size_t items) {
    FlowGraph graph;
    graph.inputs = std::move(inputs);
    for (const nb::handle stage : stages) graph.stages.push_back(stage_of(nb::cast<nb::tuple>(stage), functions_));
    for (const auto& [to, from] : connections)
      graph.connections[nb::cast<std::string>(to)] = nb::cast<std::string>(from);
    graph.outputs = std::move(outputs);
    const std::size_t count = graph.outputs.size();
    flow_ = std::make_unique<Flow>(std::move(graph), FlowOptions{runs, items});
    for (std::size_t o = 0; o < count; ++o) lists_.push_back(flow_->is_list(o));
  }
  ~PythonFlow() { close(); }
  PythonFlow(const PythonFlow&) = delete;
  PythonFlow& operator=(const PythonFlow&) = delete;

  // None when there is no room and it may not wait.
  std::unique_ptr<FlowRun> submit(const nb::list& inputs, double timeout, const CancelToken* cancel, int priority,
                                  bool may_wait) {
    const std::vector<Value> values = owned_values(inputs);
    RunOptions options;
    options.deadline = deadline_after(timeout);
    options.priority = priority;
    options.cancel = cancel;
    std::optional<std::future<FlowOutputs>> run;
    wait_with_signals(may_wait ? -1 : 0, [&](std::chrono::milliseconds most) {
      run = flow_->try_submit(values, options, most);
      return run.has_value();
    });
    if (!run) return nullptr;
    return std::make_unique<FlowRun>(run->share(), lists_);
  }

  // Frees all of it. The threads end when their runs are done, which may need the GIL: it is released while waiting.
  void close() {
    {
      const nb::gil_scoped_release release;
      flow_.reset();
    }
    functions_.clear();
  }

  void drain() {
    wait_with_signals(-1, [&](std::chrono::milliseconds most) { return flow_->drain_for(most); });
  }

  Flow& flow() { return *flow_; }

  // For the garbage collector: functions may refer to the flow.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    for (const Function& function : nb::inst_ptr<PythonFlow>(self)->functions_) Py_VISIT(function->ptr());
    return 0;
  }
  static int clear(PyObject* self) {
    nb::inst_ptr<PythonFlow>(self)->close();
    return 0;
  }

 private:
  std::vector<Function> functions_;  // those of the stages
  std::vector<bool> lists_;
  std::unique_ptr<Flow> flow_;
};

nb::dict to_dict(const FlowCounters& c) {
  nb::dict stages;
  for (const FlowStageCounters& s : c.stages) {
    nb::dict stage;
    stage["calls"] = s.calls;
    stage["waiting"] = s.waiting;
    stage["most_waiting"] = s.most_waiting;
    stages[nb::str(s.name.c_str(), s.name.size())] = stage;
  }
  nb::dict d;
  d["submitted"] = c.submitted;
  d["finished"] = c.finished;
  d["failed"] = c.failed;
  d["running"] = c.running;
  d["most_running"] = c.most_running;
  d["buffers"] = c.buffers;
  d["buffer_bytes"] = c.buffer_bytes;
  d["copies"] = c.copies;
  d["stages"] = stages;
  return d;
}

PyType_Slot kFlowSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&PythonFlow::traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(&PythonFlow::clear)},
                            {0, nullptr}};

}  // namespace

void bind_flow(nb::module_& m) {
  nb::class_<FlowRun>(m, "FlowRun")
      .def("wait", &FlowRun::wait, nb::arg("seconds"))
      .def("results", &FlowRun::results)
      .def("cause", &FlowRun::cause);
  nb::class_<PythonFlow>(m, "Flow", nb::type_slots(kFlowSlots))
      .def(nb::init<std::vector<std::string>, const nb::list&, const nb::dict&, std::vector<std::string>, std::size_t,
                    std::size_t>(),
           nb::arg("inputs"), nb::arg("stages"), nb::arg("connections"), nb::arg("outputs"), nb::arg("runs"),
           nb::arg("items"))
      .def("submit", &PythonFlow::submit, nb::arg("inputs"), nb::arg("timeout"), nb::arg("cancel").none(),
           nb::arg("priority"), nb::arg("may_wait"))
      .def("drain", &PythonFlow::drain)
      .def("shutdown",
           [](PythonFlow& flow) {
             const nb::gil_scoped_release release;
             flow.flow().shutdown();
           })
      .def("counters", [](PythonFlow& flow) {
        const auto counters = [&] {
          const nb::gil_scoped_release release;
          return flow.flow().counters();
        };
        return to_dict(counters());
      });
}

}  // namespace graft
