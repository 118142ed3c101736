#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "stage/channel.h"

namespace graft::stage {

// How often a stage at work says so, and for how long it may say nothing until it is taken for lost.
inline constexpr auto kBeat = std::chrono::milliseconds(500);
inline constexpr double kSilentSeconds = 5;

// Tells a driver that its stage is at work, by messages of Kind::working from a thread of its own. While it is, nothing
// else may be sent.
class GRAFT_API Beat {
 public:
  explicit Beat(Channel& channel);
  ~Beat();
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

  void start();
  // No message follows.
  void stop() noexcept;

 private:
  void run();

  Channel& channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool working_ = false, resting_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace graft::stage
