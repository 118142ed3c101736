#include "batch/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "base/check.h"

namespace graft::batch {
namespace {

constexpr double kDrawSeconds = 0.2, kLineSeconds = 10;
constexpr std::size_t kBar = 24;

// "0:33", "1:02:03"
std::string time_text(double seconds) {
  const auto all = static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 3.6e8));
  char text[64];
  if (all >= 3600)
    std::snprintf(text, sizeof text, "%llu:%02llu:%02llu", static_cast<unsigned long long>(all / 3600),
                  static_cast<unsigned long long>(all / 60 % 60), static_cast<unsigned long long>(all % 60));
  else
    std::snprintf(text, sizeof text, "%llu:%02llu", static_cast<unsigned long long>(all / 60),
                  static_cast<unsigned long long>(all % 60));
  return text;
}

std::string rate_text(double rate) {
  char text[64];
  std::snprintf(text, sizeof text, rate < 10 ? "%.2f" : rate < 1000 ? "%.1f" : "%.0f", rate);
  return text;
}

}  // namespace

Progress::Progress(std::uint64_t total, std::uint64_t done, bool terminal)
    : total_(total), earlier_(done), terminal_(terminal), done_(done) {}

Progress::~Progress() {
  try {
    if (drawn_) {
      show();
      std::cerr << '\n';
    }
  } catch (...) {  // without memory the last line is missing
  }
}

void Progress::add(std::uint64_t rows) {
  done_ += rows;
  const double since = seconds_since(shown_);
  if (since >= (terminal_ ? kDrawSeconds : kLineSeconds)) show();
}

void Progress::show() {
  shown_ = Clock::now();
  const std::string text = line(total_, earlier_, done_, errors_, seconds_since(start_), terminal_);
  if (terminal_)
    std::cerr << '\r' << text << "\x1b[K" << std::flush;
  else
    std::cerr << text << '\n';
  drawn_ = terminal_;
}

std::string Progress::line(std::uint64_t total, std::uint64_t earlier, std::uint64_t done, std::uint64_t errors,
                           double seconds, bool bar) {
  const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const double rate = seconds > 0 ? static_cast<double>(done - earlier) / seconds : 0;
  std::string out = str(static_cast<int>(100 * part), "% ");
  if (out.size() < 5) out.insert(0, 5 - out.size(), ' ');
  if (bar) {
    const auto filled = static_cast<std::size_t>(std::lround(part * kBar));
    out += '[' + std::string(filled, '#') + std::string(kBar - filled, ' ') + "] ";
  }
  out += str(done, '/', total, " rows, ", rate_text(rate), " rows/s, ",
             rate > 0 ? time_text(static_cast<double>(total - done) / rate) : "?", " left");
  if (errors > 0) out += str(", ", errors, errors == 1 ? " error" : " errors");
  return out;
}

}  // namespace graft::batch
