#include "serve/token_times.h"

namespace graft::serve {

std::optional<double> TokenTimes::count(Call& call, const std::string& model, std::size_t tokens) {
  if (tokens == counted_) return std::nullopt;
  const auto now = Clock::now();
  std::optional<double> first;
  if (counted_ == 0) {
    first = seconds_between(call.request().start, now);
    call.metrics().first_token(model, *first);
  } else {
    const std::size_t more = tokens - counted_;
    for (std::size_t i = 0; i < more; ++i)
      call.metrics().between_tokens(model, seconds_between(last_, now) / static_cast<double>(more));
  }
  counted_ = tokens;
  last_ = now;
  return first;
}

}  // namespace graft::serve
