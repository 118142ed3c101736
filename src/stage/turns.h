#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace graft::stage {

// One at a time, in the order in which they came.
class Turns {
 public:
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {
      std::unique_lock lock(turns_.mutex_);
      const std::uint64_t own = turns_.last_++;
      turns_.changed_.wait(lock, [&] { return turns_.now_ == own; });
    }
    ~Turn() {
      {
        const std::lock_guard lock(turns_.mutex_);
        ++turns_.now_;
      }
      turns_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t now_ = 0, last_ = 0;
};

}  // namespace graft::stage
