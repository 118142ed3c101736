#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "serve/json_fields.h"

namespace graft::serve {

// How long an answer took, as the "timings" of llama-server say it.
class Timings {
 public:
  explicit Timings(Clock::time_point arrived) : arrived_(arrived) {}
  // A token has come.
  void token() {
    last_ = Clock::now();
    if (!first_) first_ = last_;
  }
  // The prompt's time is that from the request's arrival to its first token, waiting for a row included. `cached`: of
  // the prompt's tokens, those that were not computed.
  Json json(std::size_t prompt_tokens, std::size_t cached, std::size_t new_tokens) const;

 private:
  Clock::time_point arrived_, last_;
  std::optional<Clock::time_point> first_;
};

}  // namespace graft::serve
