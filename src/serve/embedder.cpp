#include "serve/embedder.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "serve/api_error.h"

namespace graft::serve {

struct Embedder::Job {
  std::vector<Ids> texts;
  Clock::time_point deadline;
  CancelToken cancel;
  OnDone on_done;
  std::vector<std::vector<float>> vectors;  // of the texts
  std::vector<std::size_t> waiting;         // texts that have none yet
  bool ended = false;
};

struct Embedder::Place {
  std::shared_ptr<Job> job;
  std::size_t text = 0;
};

Embedder::Embedder(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
                   const SessionOptions& options, std::size_t queue)
    : tokenizer_(std::move(tokenizer)), program_(program, tokenizer_, options), queue_(queue) {}

Embedder::Ids Embedder::encode(const std::string& text, bool add_special) const {
  return tokenizer_->encode(text, {.add_special = add_special});
}

void Embedder::check(const Ids& ids, const std::string& path, const std::string& param) const {
  const std::int64_t count = std::ssize(ids);
  if (count == 0) bad_request(param, "'", path, "' has no tokens");
  if (count > program_.max_tokens())
    throw ApiError(400,
                   str("'", path, "' is too large: it has ", count, " tokens, the model takes ", program_.max_tokens()),
                   param, "context_length_exceeded");
}

void Embedder::embed(std::vector<Ids> texts, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done) {
  const auto job = std::make_shared<Job>();
  job->vectors.resize(texts.size());
  job->waiting.resize(texts.size());
  std::iota(job->waiting.begin(), job->waiting.end(), std::size_t{0});
  job->texts = std::move(texts);
  job->deadline = deadline;
  job->cancel = cancel;
  job->on_done = std::move(on_done);
  const std::lock_guard lock(mutex_);
  queue_.submit([this, job] { finish(job); });
  jobs_.push_back(job);
}

void Embedder::finish(const std::shared_ptr<Job>& job) {
  while (!job->ended) {
    if (job->cancel.cancelled())
      end_job(job, std::make_exception_ptr(Cancelled("the client has gone")));
    else if (job->waiting.empty())
      end_job(job, nullptr);
    else
      run(next_run(job));
  }
}

std::vector<Embedder::Place> Embedder::next_run(const std::shared_ptr<Job>& job) {
  const std::size_t tokens = job->texts[job->waiting.front()].size();
  const std::size_t most = program_.texts_at_once(tokens, SIZE_MAX);
  std::vector<Place> places;
  const std::lock_guard lock(mutex_);
  for (auto other = jobs_.begin(); other != jobs_.end() && places.size() < most; ++other) {
    if ((*other)->cancel.cancelled()) continue;
    for (const std::size_t text : (*other)->waiting)
      if (places.size() < most && (*other)->texts[text].size() == tokens) places.push_back({*other, text});
  }
  places.resize(program_.texts_at_once(tokens, places.size()));
  return places;
}

void Embedder::run(const std::vector<Place>& places) {
  const std::shared_ptr<Job>& first = places.front().job;
  const bool several = std::ranges::any_of(places, [&](const Place& place) { return place.job != first; });
  RunOptions options;
  options.deadline = first->deadline;
  if (!several) options.cancel = &first->cancel;
  std::vector<Ids> texts;
  for (const auto& [job, text] : places) {
    options.deadline = std::max(*options.deadline, job->deadline);
    texts.push_back(job->texts[text]);
  }
  try {
    const TensorView output = program_.run(texts, options);
    {
      const std::lock_guard lock(mutex_);
      ++stats_.runs;
      stats_.rows += texts.size();
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& [job, text] = places[i];
      llm::append_embedding(output, static_cast<std::int64_t>(i), std::ssize(texts[i]), job->vectors[text]);
      std::erase(job->waiting, text);
    }
  } catch (...) {
    if (!several) return end_job(first, std::current_exception());
    for (const Place& place : places)  // each call has its own error, or none
      if (!place.job->ended) run({place});
    return;
  }
  for (const Place& place : places)
    if (place.job->waiting.empty() && !place.job->ended) end_job(place.job, nullptr);
}

void Embedder::end_job(const std::shared_ptr<Job>& job, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(jobs_, job);
    ++stats_.calls;
  }
  job->ended = true;
  try {
    std::exchange(job->on_done, nullptr)(job->vectors, error);
  } catch (...) {  // what it holds gives its answer
  }
}

Runner::Stats Embedder::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Embedder::end() {
  queue_.end();
  const std::lock_guard lock(mutex_);
  jobs_.clear();
}

}  // namespace graft::serve
