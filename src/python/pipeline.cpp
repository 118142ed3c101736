#include "graft/pipeline.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace graft {

namespace {

// Each job is a Python function that runs the model, fulfils a Python future, and raises nothing.
class PythonPipeline {
 public:
  PythonPipeline(std::vector<std::shared_ptr<Session>> sessions, int workers, std::size_t capacity)
      : pipeline_(std::make_unique<Pipeline>(std::move(sessions), PipelineOptions{workers, capacity})) {}
  // The threads end when their jobs are done, which needs the GIL: it is released while waiting.
  ~PythonPipeline() {
    const nb::gil_scoped_release release;
    pipeline_.reset();
  }
  PythonPipeline(const PythonPipeline&) = delete;
  PythonPipeline& operator=(const PythonPipeline&) = delete;

  bool submit(std::size_t session, nb::object function, bool wait) {
    // Freed with the GIL held, on whatever thread.
    const std::shared_ptr<nb::object> kept(new nb::object(std::move(function)), [](nb::object* object) {
      const nb::gil_scoped_acquire acquire;
      delete object;
    });
    const auto work = [kept](Session&) {
      const nb::gil_scoped_acquire acquire;
      (*kept)();
    };
    const nb::gil_scoped_release release;
    if (!wait) return pipeline_->try_submit(session, work).has_value();
    pipeline_->submit(session, work);
    return true;
  }

  Pipeline& pipeline() { return *pipeline_; }

 private:
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace

void bind_pipeline(nb::module_& m) {
  nb::class_<PythonPipeline>(m, "Pipeline")
      .def(nb::init<std::vector<std::shared_ptr<Session>>, int, std::size_t>(), nb::arg("sessions"), nb::arg("workers"),
           nb::arg("capacity"))
      .def("submit", &PythonPipeline::submit, nb::arg("session"), nb::arg("function"), nb::arg("wait"))
      .def("drain",
           [](PythonPipeline& p) {
             const nb::gil_scoped_release release;
             p.pipeline().drain();
           })
      .def("shutdown",
           [](PythonPipeline& p) {
             const nb::gil_scoped_release release;
             p.pipeline().shutdown();
           })
      .def("counters", [](PythonPipeline& p) {
        const PipelineCounters c = p.pipeline().counters();
        nb::dict d;
        d["submitted"] = c.submitted;
        d["finished"] = c.finished;
        d["waiting"] = c.waiting;
        d["running"] = c.running;
        d["most_waiting"] = c.most_waiting;
        return d;
      });
}

}  // namespace graft
