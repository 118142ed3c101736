#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace graft::llm {

// Holds text back while it may be the beginning of a stop string.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // What may be shown of the text so far and was not yet. After a stop string nothing is.
  std::string add(std::string_view text);
  // What was held back, at the end.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace graft::llm
