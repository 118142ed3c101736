#include "serve/embedder.h"

#include <algorithm>

#include "base/check.h"
#include "serve/api_error.h"

namespace graft::serve {

Embedder::Embedder(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
                   const SessionOptions& options, std::size_t queue)
    : tokenizer_(std::move(tokenizer)), encoder_(program, tokenizer_, options), queue_(queue) {
  const std::vector<std::string> names = program->method_names();
  const bool forward = std::ranges::find(names, "forward") != names.end();
  most_tokens_ = program->method(forward ? "forward" : names.at(0)).inputs.at(0).dims.at(1).max;
  if (const auto limit = tokenizer_->truncation())
    most_tokens_ = std::min(most_tokens_, static_cast<std::int64_t>(*limit));
}

Embedder::Ids Embedder::encode(const std::string& text, bool add_special) const {
  return tokenizer_->encode(text, {.add_special = add_special});
}

void Embedder::check(const Ids& ids, const std::string& path, const std::string& param) const {
  const std::int64_t count = std::ssize(ids);
  if (count == 0) bad_request(param, "'", path, "' has no tokens");
  if (count > most_tokens_)
    throw ApiError(400, str("'", path, "' is too large: it has ", count, " tokens, the model takes ", most_tokens_),
                   param, "context_length_exceeded");
}

void Embedder::embed(std::vector<Ids> texts, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done) {
  queue_.submit([this, texts = std::move(texts), deadline, cancel, on_done = std::move(on_done)] {
    std::vector<std::vector<float>> vectors;
    std::exception_ptr error;
    try {
      RunOptions options;
      options.deadline = deadline;
      options.cancel = &cancel;
      for (const Ids& ids : texts) {
        GRAFT_CHECK(Cancelled, !cancel.cancelled(), "the client has gone");
        vectors.push_back(encoder_.embed_ids({&ids, 1}, options));
      }
    } catch (...) {
      error = std::current_exception();
    }
    on_done(vectors, error);
  });
}

}  // namespace graft::serve
