#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <iostream>

#include "cli/text.h"

namespace graft::cli {
namespace {

constexpr int kHistory = 1000;

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string prompt;

  ~Terminal() {
    if (history) history_end(history);
    if (editor) el_end(editor);
  }
  static char* prompt_of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Terminal*>(self)->prompt.data();
  }
};

LineEditor::LineEditor(const char* prompt) {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) return;
  std::setlocale(LC_CTYPE, "");  // the editor counts characters, not bytes
  terminal_ = std::make_unique<Terminal>();
  terminal_->prompt = prompt;
  terminal_->editor = el_init("graft", stdin, stdout, stderr);
  terminal_->history = history_init();
  if (!terminal_->editor || !terminal_->history) fail<SystemError>("cannot edit lines on this terminal");
  history(terminal_->history, &terminal_->event, H_SETSIZE, kHistory);
  EditLine* editor = terminal_->editor;
  el_set(editor, EL_CLIENTDATA, terminal_.get());
  el_set(editor, EL_PROMPT, Terminal::prompt_of);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, history, terminal_->history);
  // While a line is edited, Ctrl-C is a key and sends no signal.
  el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
  el_set(editor, EL_BIND, "^C", "em-kill-line", nullptr);
}

LineEditor::~LineEditor() = default;

std::optional<std::string> LineEditor::read() {
  std::string line;
  if (!terminal_) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  int count = 0;
  const char* got = el_gets(terminal_->editor, &count);
  if (!got || count <= 0) {
    if (count < 0 && errno == EINTR) return "";
    return std::nullopt;
  }
  line.assign(got, static_cast<std::size_t>(count));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  if (!line.empty()) history(terminal_->history, &terminal_->event, H_ENTER, line.c_str());
  return line;
}

}  // namespace graft::cli
