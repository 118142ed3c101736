#include "llm/stop.h"

#include <algorithm>
#include <utility>

namespace graft::llm {

std::string StopStrings::add(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  std::size_t end = std::string::npos;
  for (const std::string& stop : strings_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;  // length of the longest suffix that is a prefix of a stop string
  for (const std::string& stop : strings_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        keep = n;
        break;
      }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace graft::llm
