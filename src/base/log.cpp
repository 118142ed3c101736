#include "base/log.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "base/rethrow.h"
#include "ggml.h"
#include "graft/graft.h"

namespace graft {
namespace {

constexpr std::string_view kLevels[] = {"error", "warning", "info", "debug"};

// -1: silent. GRAFT_LOG is a level's name; any other text means "info".
int stderr_level() {
  static const int level = [] {
    const char* text = std::getenv("GRAFT_LOG");
    if (!text || !*text || std::string_view(text) == "0") return -1;
    for (int i = 0; i < 4; ++i)
      if (kLevels[i] == text) return i;
    return 2;
  }();
  return level;
}

struct Sink {
  std::mutex mutex;
  std::shared_ptr<const LogCallback> callback;
};

Sink& sink() {
  static Sink* s = new Sink;  // outlives every thread that may still log at exit
  return *s;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogCallback> callback;
  {
    const std::lock_guard lock(sink().mutex);
    callback = sink().callback;
  }
  const auto index = static_cast<std::size_t>(level);
  if (callback) {
    (*callback)(kLevels[index], message);
  } else if (static_cast<int>(index) <= stderr_level()) {
    std::fprintf(stderr, "graft: %s: %.*s\n", kLevels[index].data(), static_cast<int>(message.size()), message.data());
  }
}

void set_log_callback(LogCallback callback) try {
  const std::lock_guard lock(sink().mutex);
  sink().callback = callback ? std::make_shared<const LogCallback>(std::move(callback)) : nullptr;
} catch (...) {
  rethrow_typed();
}

void install_ggml_log() {
  static const bool installed = [] {
    ggml_log_set(
        [](ggml_log_level level, const char* text, void*) {
          try {
            std::string line = std::string("ggml: ") + text;
            while (!line.empty() && line.back() == '\n') line.pop_back();
            log(level == GGML_LOG_LEVEL_ERROR  ? LogLevel::error
                : level == GGML_LOG_LEVEL_WARN ? LogLevel::warning
                : level == GGML_LOG_LEVEL_INFO ? LogLevel::info
                                               : LogLevel::debug,
                line);
          } catch (...) {  // logging must not end the process
          }
        },
        nullptr);
    return true;
  }();
  (void)installed;
}

}  // namespace graft
