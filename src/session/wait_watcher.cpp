#include "session/wait_watcher.h"

#include <utility>

#include "base/thread.h"
#include "exec/run_control.h"

namespace graft {

WaitWatcher::WaitWatcher(std::mutex& mutex, Look look) : mutex_(mutex), look_(std::move(look)) {}

void WaitWatcher::watch() {
  if (!thread_.joinable()) thread_ = start_thread("the thread that ends waiting runs", [this] { loop(); });
  changed_.notify_one();
}

void WaitWatcher::loop() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    Clock::time_point next;
    try {
      next = look_(lock, Clock::now());
    } catch (...) {  // without memory for the error of a run: again a little later
      if (!lock.owns_lock()) lock.lock();
      next = Clock::now() + kCancelPoll;
    }
    if (stopped_) return;
    if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

void WaitWatcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace graft
