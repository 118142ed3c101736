#include "serve/log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>

namespace graft::serve {
namespace {

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char date[32], out[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(out, sizeof out, "%s.%03dZ", date, static_cast<int>(ms % 1000));
  return out;
}

}  // namespace

void log_event(const char* level, const char* event, const Json& fields) {
  Json line = {{"time", now_text()}, {"level", level}, {"event", event}};
  line.update(fields);
  const std::string text = dump(line) + "\n";
  // One write per line, so that lines of threads do not mix. A log that cannot be written must not stop the server.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace graft::serve
