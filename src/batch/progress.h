#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace graft::batch {

// What a run has done, on stderr: a bar that is drawn again on a terminal, elsewhere a line now and then.
class Progress {
 public:
  // `done`: rows of `total` that earlier runs have computed.
  Progress(std::uint64_t total, std::uint64_t done, bool terminal);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::uint64_t rows);
  void add_errors(std::uint64_t rows) { errors_ += rows; }

  // " 42% [######      ] 420/1000 rows, 17.5 rows/s, 0:33 left, 2 errors"; `seconds` since the run began.
  static std::string line(std::uint64_t total, std::uint64_t earlier, std::uint64_t done, std::uint64_t errors,
                          double seconds, bool bar);

 private:
  void show();

  const std::uint64_t total_, earlier_;
  const bool terminal_;
  std::uint64_t done_, errors_ = 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
  bool drawn_ = false;
};

}  // namespace graft::batch
