#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "llm/text_program.h"
#include "serve/runner.h"
#include "serve/work_queue.h"

namespace graft::serve {

// A text encoder for many threads. Texts of the same number of tokens run together, whichever calls they are of; a
// vector does not depend on that.
class Embedder {
 public:
  using OnDone = std::function<void(const std::vector<std::vector<float>>& vectors, std::exception_ptr error)>;

  // Throws InvalidArgument for a program that is no text encoder.
  Embedder(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
           const SessionOptions& options, std::size_t queue);

  using Ids = std::vector<std::int64_t>;

  Ids encode(const std::string& text, bool add_special = true) const;
  std::int64_t vocabulary() const { return tokenizer_->size(); }
  // Throws ApiError (400) for more tokens than the encoder reads, which would cut off the rest, and for none. `path`:
  // what the text is called; `param`: the field that has it.
  void check(const Ids& ids, const std::string& path, const std::string& param) const;
  // `on_done` is called once, on the embedder's thread, unless this throws Busy or the embedder ends before.
  void embed(std::vector<Ids> texts, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done);

  Runner::Stats stats() const;
  // As WorkQueue::end().
  void end();

 private:
  struct Job;
  struct Place;  // of a text: its call, and which of its texts

  void finish(const std::shared_ptr<Job>& job);
  std::vector<Place> next_run(const std::shared_ptr<Job>& job);
  void run(const std::vector<Place>& places);
  void end_job(const std::shared_ptr<Job>& job, std::exception_ptr error);

  std::shared_ptr<const Tokenizer> tokenizer_;
  llm::TextProgram program_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Job>> jobs_;  // that have texts to run, in the order of their calls
  Runner::Stats stats_;
  WorkQueue queue_;
};

}  // namespace graft::serve
