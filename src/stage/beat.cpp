#include "stage/beat.h"

#include <exception>

namespace graft::stage {

Beat::Beat(Channel& channel) : channel_(channel), thread_([this] { run(); }) {}

Beat::~Beat() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// Runs that follow each other wake nobody: between them the thread waits for the next beat.
void Beat::start() {
  const std::lock_guard lock(mutex_);
  working_ = true;
  if (resting_) changed_.notify_one();
}

void Beat::stop() noexcept {
  const std::lock_guard lock(mutex_);
  working_ = false;
}

void Beat::run() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    resting_ = !working_;
    if (resting_) changed_.wait(lock, [this] { return ended_ || working_; });
    resting_ = false;
    if (changed_.wait_for(lock, kBeat, [this] { return ended_; }) || !working_) continue;
    try {
      channel_.send(Kind::working, {}, 0, Wait::seconds(kSilentSeconds));
    } catch (const std::exception&) {  // the driver is gone, or a message is half sent
      channel_.socket().shut_down();
      working_ = false;
    }
  }
}

}  // namespace graft::stage
