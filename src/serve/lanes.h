#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "serve/engine.h"

namespace graft::serve {

// The engines of a model. A model in one piece has one. One in stages has as many as stages, which share its rows:
// while the texts of one are in a stage, those of another are in the next.
class Lanes {
 public:
  using RequestId = Engine::RequestId;

  // `options.rows` are those of all lanes together. Throws what Engine throws.
  Lanes(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options, std::size_t queue,
        const PrefixCacheOptions& prefix_cache = {}, std::int64_t prompt_lookup = 0);

  // As Engine's functions of these names. A request goes to the lane with the fewest texts.
  RequestId submit(std::vector<Job> jobs, Clock::time_point deadline, Engine::OnProgress on_progress);
  void end();
  void cancel(RequestId id);
  EngineStats stats() const;
  const LanguageModel& model() const { return engines_.front()->model(); }
  std::int64_t capacity() const { return engines_.front()->capacity(); }
  std::int64_t rows() const;
  std::uint64_t state_bytes() const;

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace graft::serve
