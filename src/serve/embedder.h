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

  // The tokens of a text, special ones included. Throws ApiError (400) for more than the encoder reads, which would cut
  // off the rest. `path`: what the text is called; `param`: the field that has it.
  std::int64_t tokens(const std::string& text, const std::string& path, const std::string& param) const;
  // `on_done` is called once, on the embedder's thread, unless this throws Busy or the embedder ends before.
  void embed(std::vector<std::string> texts, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  TextEncoder encoder_;
  std::int64_t most_tokens_ = 0;
  WorkQueue queue_;
};

}  // namespace graft::serve
