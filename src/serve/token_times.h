#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "serve/call.h"

namespace graft::serve {

// When the tokens of one text came, for the metrics.
class TokenTimes {
 public:
  // `tokens`: those of the text so far. Gives the seconds from the request to the first one, when that has just come.
  std::optional<double> count(Call& call, const std::string& model, std::size_t tokens);

 private:
  std::size_t counted_ = 0;
  Clock::time_point last_;
};

}  // namespace graft::serve
