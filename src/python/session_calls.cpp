#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "graft/adapter.h"
#include "graft/graft.h"
#include "python/adapters.h"
#include "python/values.h"
#include "python/waiting.h"

// Calls of a session: their options, runs in the background, plans.
namespace nb = nanobind;

namespace graft {
namespace {

// RunOptions and what they point to.
class CallOptions {
 public:
  // `arena`: (address, bytes), or None. `profile`: a list that gets the timings, or None. `check`: "", "nan" or
  // "finite". `observe`: called with node, kernel, outputs and results of each launch, or None. `torch`: what it gets
  // are torch tensors, else numpy arrays. `adapters`: a list of those of the batch's rows, or one for all.
  CallOptions(double timeout, const CancelToken* cancel, int priority, const nb::object& arena = nb::none(),
              std::vector<std::int64_t> kv_rows = {}, nb::object profile = nb::none(), const std::string& check = "",
              nb::object observe = nb::none(), bool torch = true, const nb::list& adapters = nb::list())
      : kv_rows_(std::move(kv_rows)),
        adapters_(adapters_of(adapters)),
        profile_(std::move(profile)),
        observe_(std::move(observe)),
        torch_(torch) {
    options_.cancel = cancel;
    options_.priority = priority;
    GRAFT_CHECK(InvalidArgument, check.empty() || check == "nan" || check == "finite",
                "check must be 'nan' or 'finite', got '", check, "'");
    options_.check = check.empty() ? Check::none : check == "nan" ? Check::nan : Check::finite;
    if (!observe_.is_none()) options_.observe = [this](const ObservedLaunch& launch) { show(launch); };
    options_.deadline = deadline_after(timeout);
    if (!arena.is_none()) {
      const auto fields = nb::cast<nb::tuple>(arena);
      options_.arena = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(fields[0])),  // NOLINT
                        nb::cast<std::size_t>(fields[1])};
    }
    options_.kv_rows = kv_rows_;
    for (const auto& adapter : adapters_) rows_.push_back(adapter.get());
    options_.adapters = rows_;
    if (!profile_.is_none()) options_.profile = &timings_;
  }
  CallOptions(const CallOptions&) = delete;
  CallOptions& operator=(const CallOptions&) = delete;

  const RunOptions& get() const { return options_; }
  // With the GIL held.
  void report() const {
    if (profile_.is_none()) return;
    auto list = nb::cast<nb::list>(profile_);
    for (const NodeTiming& t : timings_) list.append(nb::make_tuple(t.node, t.kernel, t.start_ns, t.end_ns));
  }

 private:
  std::vector<std::int64_t> kv_rows_;
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::vector<const Adapter*> rows_;
  void show(const ObservedLaunch& launch) const;

  nb::object profile_;
  nb::object observe_;
  bool torch_;
  std::vector<NodeTiming> timings_;
  RunOptions options_;
};

// `place(i, dtype, sizes)` gives the address of memory for output i, a tensor, once its sizes are known.
nb::list run(Session& session, const std::string& method, const nb::list& inputs, const nb::object& place,
             double timeout, const CancelToken* cancel, int priority, const nb::object& arena,
             std::vector<std::int64_t> kv_rows, nb::object profile, const std::string& check, nb::object observe,
             bool torch, const nb::list& adapters) {
  const std::vector<Value> in = to_values(inputs);
  const CallOptions options(timeout, cancel, priority, arena, std::move(kv_rows), std::move(profile), check,
                            std::move(observe), torch, adapters);
  const auto place_tensors = [&](std::span<Value> outputs) {
    const nb::gil_scoped_acquire acquire;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].kind != Value::Kind::tensor) continue;
      const auto fields = nb::cast<nb::tuple>(from_value(outputs[i]));
      const auto address = nb::cast<std::uintptr_t>(place(i, fields[1], fields[2]));
      outputs[i].tensor.data = reinterpret_cast<void*>(address);  // NOLINT
    }
  };
  std::vector<Value> out;
  {
    const nb::gil_scoped_release release;
    out = session.run_into(method, in, std::cref(place_tensors), options.get());
  }
  options.report();
  nb::list values;
  for (const Value& value : out) values.append(from_value(value));
  return values;
}

// On memory of its own.
Value copy_of(const TensorView& tensor) {
  auto copy = std::make_shared<std::vector<std::byte>>(TensorDesc(tensor.dtype, tensor.shape).byte_count());
  if (!copy->empty()) std::memcpy(copy->data(), tensor.data, copy->size());
  Value value = Value::of(tensor);
  value.tensor.data = copy->data();
  value.owner = std::move(copy);
  return value;
}

// A Python exception becomes the run's error: its text and class.
void CallOptions::show(const ObservedLaunch& launch) const {
  const nb::gil_scoped_acquire acquire;
  const auto text = [](std::string_view name) { return nb::str(name.data(), name.size()); };
  nb::list outputs, results;
  for (const TensorView& tensor : launch.outputs) outputs.append(to_array(copy_of(tensor), torch_));
  for (const ObservedResult& result : launch.results)
    results.append(nb::make_tuple(text(result.node), result.index, to_array(copy_of(result.value), torch_)));
  try {
    observe_(text(launch.node), launch.kernel, outputs, results);
  } catch (const nb::python_error& error) {
    throw ExecutionError(str("observe raised ", nb::cast<std::string>(error.type().attr("__name__")), ": ",
                             nb::str(error.value()).c_str()));
  }
}

// A run that was submitted. The inputs' memory and the token are kept until it ends, for which the destructor waits.
class SubmittedRun {
 public:
  SubmittedRun(Session& session, const std::string& method, const nb::list& inputs, double timeout,
               const CancelToken* cancel, int priority, nb::object keep, const nb::list& adapters)
      : options_(timeout, cancel, priority, nb::none(), {}, nb::none(), "", nb::none(), true, adapters),
        keep_(std::move(keep)),
        run_(session.submit(method, to_values(inputs), options_.get()).share()) {}
  ~SubmittedRun() {
    const nb::gil_scoped_release release;
    run_.wait();
  }
  SubmittedRun(const SubmittedRun&) = delete;
  SubmittedRun& operator=(const SubmittedRun&) = delete;

  // Seconds; below 0: until it is done.
  bool wait(double seconds) const {
    return wait_with_signals(
        seconds, [&](std::chrono::milliseconds most) { return run_.wait_for(most) == std::future_status::ready; });
  }
  nb::list results(bool torch) const {
    nb::list out;
    for (const Value& value : run_.get()) out.append(to_array(value, torch));
    return out;
  }

 private:
  CallOptions options_;
  nb::object keep_;
  std::shared_future<std::vector<Value>> run_;
};

nb::dict plan(Session& session, const std::string& method, const nb::list& inputs) {
  const PlanInfo info = session.plan(method, to_values(inputs));
  nb::list allocations;
  for (const AllocationInfo& a : info.allocations) {
    nb::dict d;
    d["memory"] = nb::str(a.memory.data(), a.memory.size());
    d["index"] = a.index;
    d["bytes"] = a.bytes;
    d["entries"] = a.entries;
    d["address"] = reinterpret_cast<std::uintptr_t>(a.base);  // NOLINT
    allocations.append(d);
  }
  nb::dict d;
  d["arena_bytes"] = info.arena_bytes;
  d["metadata_bytes"] = info.metadata_bytes;
  d["launches"] = info.launches;
  d["allocations"] = allocations;
  return d;
}

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<Arena>(m, "Arena").def(nb::init<>()).def_prop_ro("bytes", &Arena::bytes);
  nb::class_<States>(m, "States").def(nb::init<>());
}

void bind_session_calls(nb::module_& m, nb::class_<Session>& session) {
  nb::class_<SubmittedRun>(m, "SubmittedRun")
      .def("wait", &SubmittedRun::wait, nb::arg("seconds"))
      .def("results", &SubmittedRun::results, nb::arg("torch"));
  session
      .def("run", &run, nb::arg("method"), nb::arg("inputs"), nb::arg("place"), nb::arg("timeout") = 0.0,
           nb::arg("cancel").none() = nb::none(), nb::arg("priority") = 0, nb::arg("arena").none() = nb::none(),
           nb::arg("kv_rows") = std::vector<std::int64_t>(), nb::arg("profile").none() = nb::none(),
           nb::arg("check") = "", nb::arg("observe").none() = nb::none(), nb::arg("torch") = true,
           nb::arg("adapters") = nb::list())
      .def(
          "run_into",
          [](Session& s, const std::string& method, const nb::list& inputs, const nb::list& outputs, double timeout,
             const CancelToken* cancel, const nb::list& adapters) {
            const std::vector<Value> in = to_values(inputs);
            std::vector<Value> out = to_values(outputs);
            const CallOptions options(timeout, cancel, 0, nb::none(), {}, nb::none(), "", nb::none(), true, adapters);
            const nb::gil_scoped_release release;
            s.run_into(method, in, out, options.get());
          },
          nb::arg("method"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("timeout") = 0.0,
          nb::arg("cancel").none() = nb::none(), nb::arg("adapters") = nb::list())
      .def(
          "submit",
          [](Session& s, const std::string& method, const nb::list& inputs, double timeout, const CancelToken* cancel,
             int priority, nb::object keep, const nb::list& adapters) {
            return std::make_unique<SubmittedRun>(s, method, inputs, timeout, cancel, priority, std::move(keep),
                                                  adapters);
          },
          nb::arg("method"), nb::arg("inputs"), nb::arg("timeout"), nb::arg("cancel").none(), nb::arg("priority"),
          nb::arg("keep"), nb::arg("adapters") = nb::list(), nb::keep_alive<0, 1>())
      .def("plan", &plan, nb::arg("method"), nb::arg("inputs"))
      .def("freeze_input", &Session::freeze_input, nb::arg("method"), nb::arg("input"));
}

}  // namespace graft
