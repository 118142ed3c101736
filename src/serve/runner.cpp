#include "serve/runner.h"

#include <algorithm>

#include "base/check.h"

namespace graft::serve {
namespace {

const MethodInfo& method_of(const Program& program) {
  const std::vector<std::string> names = program.method_names();
  const bool forward = std::ranges::find(names, "forward") != names.end();
  GRAFT_CHECK(InvalidArgument, forward || names.size() == 1, "the program has ", names.size(),
              " methods, and none of them is called forward");
  return program.method(forward ? "forward" : names[0]);
}

}  // namespace

Runner::Runner(std::shared_ptr<const Program> program, const SessionOptions& options, std::size_t queue)
    : program_(std::move(program)), session_(program_, options), method_(&method_of(*program_)), queue_(queue) {
  has_states_ = !session_.states().empty();
  state_bytes_ = session_.counters().state_bytes;
}

void Runner::run(std::vector<Value> inputs, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done) {
  queue_.submit([this, inputs = std::move(inputs), deadline, cancel, on_done = std::move(on_done)] {
    std::vector<Value> outputs;
    std::exception_ptr error;
    try {
      RunOptions options;
      options.deadline = deadline;
      options.cancel = &cancel;
      GRAFT_CHECK(Cancelled, !cancel.cancelled(), "the client has gone");
      if (has_states_) session_.reset();
      outputs = session_.run(method_->name, inputs, options);
    } catch (...) {
      error = std::current_exception();
    }
    on_done(outputs, error);
  });
}

}  // namespace graft::serve
