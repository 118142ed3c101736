#pragma once

#include <string_view>

namespace graft {

enum class LogLevel { error, warning, info, debug };

// To the callback of set_log_callback, else to stderr when GRAFT_LOG names this level or a finer one, else nowhere.
void log(LogLevel level, std::string_view message);

// Routes ggml's messages to this log, once per process; ggml prints to stderr otherwise.
void install_ggml_log();

}  // namespace graft
