#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace graft {

// A thread that ends waiting runs of a queue at their deadline or when they are cancelled. It starts with the first run
// that has either (WaitLimit).
class WaitWatcher {
 public:
  // Ends the runs that must not wait any longer and returns when to look again: max() for when watch() is called, any
  // time in the past for at once. Called with the queue's mutex locked; may unlock it in between, to free what the runs
  // held.
  using Look = std::function<Clock::time_point(std::unique_lock<std::mutex>& lock, Clock::time_point now)>;

  // `mutex`: the queue's; outlives the watcher.
  WaitWatcher(std::mutex& mutex, Look look);
  ~WaitWatcher() { stop(); }
  WaitWatcher(const WaitWatcher&) = delete;
  WaitWatcher& operator=(const WaitWatcher&) = delete;

  // There is another run with a limit. With the mutex locked; throws SystemError if the thread cannot be started.
  void watch();
  // Ends the thread; nothing waits any more. Without the mutex.
  void stop();

 private:
  void loop();

  std::mutex& mutex_;
  Look look_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace graft
