#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace graft::llm {

// Holds text back while it may be the start of a stop string.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // Returns the text that can be shown now: none once a stop string was found.
  std::string add(std::string_view text);
  // Returns the text still held back, at the end.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace graft::llm
