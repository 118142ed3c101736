#include "serve/timings.h"

#include <string>

namespace graft::serve {

Json Timings::json(std::size_t prompt_tokens, std::size_t cached, std::size_t new_tokens) const {
  Json json = {{"cache_n", cached}};
  const auto add = [&](const std::string& name, std::size_t count, double seconds) {
    const auto tokens = static_cast<double>(count);
    json[name + "_n"] = count;
    json[name + "_ms"] = 1e3 * seconds;
    json[name + "_per_token_ms"] = count > 0 ? 1e3 * seconds / tokens : 0;
    json[name + "_per_second"] = seconds > 0 ? tokens / seconds : 0;
  };
  add("prompt", prompt_tokens - cached, first_ ? seconds_between(arrived_, *first_) : 0);
  add("predicted", new_tokens, first_ ? seconds_between(*first_, last_) : 0);
  return json;
}

}  // namespace graft::serve
