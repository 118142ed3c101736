#pragma once

#include <memory>
#include <optional>
#include <string>

namespace graft::cli {

// Lines from a person with editing and a history, or from a pipe as they are.
class LineEditor {
 public:
  explicit LineEditor(const char* prompt);
  ~LineEditor();
  // Without the newline; empty at the end of the input. Ctrl-C at the prompt clears the line.
  std::optional<std::string> read();

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null for a pipe
};

}  // namespace graft::cli
