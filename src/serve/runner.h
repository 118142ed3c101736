#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "graft/graft.h"
#include "serve/work_queue.h"

namespace graft::serve {

// Runs one method of a program for many threads, one call at a time, in the order of the calls.
class Runner {
 public:
  using OnDone = std::function<void(const std::vector<Value>& outputs, std::exception_ptr error)>;

  // The method "forward", or the only one. Throws InvalidArgument for a program with several others.
  Runner(std::shared_ptr<const Program> program, const SessionOptions& options, std::size_t queue);

  const MethodInfo& method() const { return *method_; }
  const std::shared_ptr<const Program>& program() const { return program_; }
  // `on_done` is called once, on the runner's thread, unless this throws Busy or the runner ends before. A program with
  // states starts each call with those of its load.
  void run(std::vector<Value> inputs, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done);
  std::size_t waiting() const { return queue_.waiting(); }
  std::uint64_t state_bytes() const { return state_bytes_; }  // of mutable buffers

 private:
  std::shared_ptr<const Program> program_;
  Session session_;
  const MethodInfo* method_ = nullptr;
  bool has_states_ = false;
  std::uint64_t state_bytes_ = 0;
  WorkQueue queue_;
};

}  // namespace graft::serve
