#include "exec/run_control.h"

#include "plan/plan.h"

namespace graft {

const RunControl*& RunControl::around_this_thread() {
  thread_local const RunControl* control = nullptr;
  return control;
}

bool RunControl::should_stop() {
  if (error.failed()) return true;
  if (cancel && cancel->load(std::memory_order_relaxed)) return true;
  if (outer != nullptr && outer->stop_requested()) return true;
  if (has_deadline && Clock::now() >= deadline) {
    timed_out = true;
    return true;
  }
  return false;
}

bool RunControl::stop_requested() const {
  return error.failed() || (cancel && cancel->load(std::memory_order_relaxed)) ||
         (has_deadline && Clock::now() >= deadline) || (outer != nullptr && outer->stop_requested());
}

void RunProgress::start(std::vector<Clock::time_point>* stamps) {
  stamps_ = stamps;
  if (stamps_) stamps_->reserve(stamps_->size() + plan_.launches.size());
  finished_ = 0;
  stopped_ = false;
}

bool RunProgress::after_launch() {
  if (stamps_) stamps_->push_back(Clock::now());  // capacity was reserved: no allocation
  ++finished_;
  stopped_ = finished_ < plan_.launches.size() && !is_committing() && control_.should_stop();
  return !stopped_;
}

void RunProgress::after_launches(std::size_t end) {
  if (stamps_) stamps_->insert(stamps_->end(), end - finished_, Clock::now());
  finished_ = end;
}

bool RunProgress::poll() {
  stopped_ = !is_committing() && control_.should_stop();
  return !stopped_;
}

bool RunProgress::is_committing() const { return finished_ > plan_.commit_begin; }

bool RunProgress::succeeded() const { return finished_ == plan_.launches.size() && !control_.error.failed(); }

}  // namespace graft
