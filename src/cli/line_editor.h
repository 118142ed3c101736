#pragma once

#include <memory>
#include <optional>
#include <string>

namespace graft::cli {

// Reads lines: from a terminal with editing and history, from a pipe verbatim.
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
