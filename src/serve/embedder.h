#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "graft/llm.h"
#include "serve/work_queue.h"

namespace graft::serve {

// A TextEncoder for many threads.
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

  // As WorkQueue::end().
  void end() { queue_.end(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  TextEncoder encoder_;
  std::int64_t most_tokens_ = 0;
  WorkQueue queue_;
};

}  // namespace graft::serve
