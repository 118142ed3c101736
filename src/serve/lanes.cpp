#include "serve/lanes.h"

#include <algorithm>
#include <limits>

namespace graft::serve {
namespace {

// Adds those of another lane.
void add(EngineStats& to, const EngineStats& more) {
  to.waiting += more.waiting;
  to.running += more.running;
  GenerationStats& all = to.generation;
  all.prompt_tokens += more.generation.prompt_tokens;
  all.reused_tokens += more.generation.reused_tokens;
  all.new_tokens += more.generation.new_tokens;
  all.decode_runs += more.generation.decode_runs;
  all.drafted_tokens += more.generation.drafted_tokens;
  all.accepted_tokens += more.generation.accepted_tokens;
  all.prefill_seconds += more.generation.prefill_seconds;
  all.decode_seconds += more.generation.decode_seconds;
}

}  // namespace

Lanes::Lanes(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options, std::size_t queue,
             const PrefixCacheOptions& prefix_cache, std::int64_t prompt_lookup) {
  const std::int64_t stages = model->info().stage ? model->info().stage->stages : 1;
  const std::int64_t lanes = std::clamp<std::int64_t>(stages, 1, options.rows), rows = options.rows;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    options.rows = rows * (lane + 1) / lanes - rows * lane / lanes;
    engines_.push_back(std::make_unique<Engine>(model, options, queue, prefix_cache, prompt_lookup));
  }
}

Lanes::RequestId Lanes::submit(std::vector<Job> jobs, Clock::time_point deadline, Engine::OnProgress on_progress) {
  std::size_t best = 0, fewest = std::numeric_limits<std::size_t>::max();
  for (std::size_t lane = 0; lane < engines_.size(); ++lane) {
    const EngineStats stats = engines_[lane]->stats();
    const std::size_t texts = stats.waiting + stats.running;
    if (texts < fewest) best = lane;
    fewest = std::min(fewest, texts);
  }
  return engines_[best]->submit(std::move(jobs), deadline, std::move(on_progress)) * engines_.size() + best;
}

void Lanes::end() {
  for (const auto& engine : engines_) engine->end();
}

void Lanes::cancel(RequestId id) { engines_[id % engines_.size()]->cancel(id / engines_.size()); }

EngineStats Lanes::stats() const {
  EngineStats out = engines_.front()->stats();
  for (std::size_t lane = 1; lane < engines_.size(); ++lane) {
    const EngineStats more = engines_[lane]->stats();
    add(out, more);
    out.cache_use += more.cache_use;
  }
  out.cache_use /= static_cast<double>(engines_.size());
  return out;
}

std::int64_t Lanes::rows() const {
  std::int64_t rows = 0;
  for (const auto& engine : engines_) rows += engine->rows();
  return rows;
}

std::uint64_t Lanes::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& engine : engines_) bytes += engine->state_bytes();
  return bytes;
}

}  // namespace graft::serve
