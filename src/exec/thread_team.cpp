#include "exec/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/spin.h"

namespace graft {

bool& this_thread_computes() {
  thread_local bool computes = false;
  return computes;
}

int PoolLoad::fair_part(int now, int wanted) const {
  const int others = single.load(std::memory_order_relaxed);
  const int part = std::max(1, (cpus - others) / std::max(1, runs.load(std::memory_order_relaxed)));
  const int free = cpus - others - threads.load(std::memory_order_relaxed);
  if (free < 0) return std::min({wanted, now, part});
  return std::min({wanted, now + free, part + 1});
}

void Worker::wake() {
  if (!asleep.load(std::memory_order_seq_cst)) return;
  wakes.fetch_add(1, std::memory_order_release);
  wakes.notify_one();
}

void Worker::join(ThreadTeam* to, int as) {
  index.store(as, std::memory_order_relaxed);
  // Pairs with the waits: either the worker going to sleep sees the team, or wake() sees that it sleeps.
  team.store(to, std::memory_order_seq_cst);
  wake();
}

void Worker::loop() {
  this_thread_computes() = true;
  for (;;) {
    ThreadTeam* const mine = team.load(std::memory_order_seq_cst);
    if (mine == nullptr) {
      const std::uint32_t seen = wakes.load(std::memory_order_acquire);
      asleep.store(true, std::memory_order_seq_cst);
      if (team.load(std::memory_order_seq_cst) == nullptr) wakes.wait(seen, std::memory_order_acquire);
      asleep.store(false, std::memory_order_relaxed);
      continue;
    }
    const std::uint64_t word = mine->open_.load(std::memory_order_acquire);
    const int as = index.load(std::memory_order_relaxed);
    const ThreadTeam::OpenStep step = ThreadTeam::OpenStep::of(word);
    if (as < std::min(step.threads, mine->granted.load(std::memory_order_relaxed))) mine->take_tasks(step, as);
    mine->wait(word, *this);
  }
}

void ThreadTeam::attach(Worker& worker) {
  workers_[static_cast<std::size_t>(attached++)].store(&worker, std::memory_order_relaxed);
  worker.join(this, attached);
}

Worker& ThreadTeam::detach() { return *workers_[static_cast<std::size_t>(--attached)].load(std::memory_order_relaxed); }

ThreadTeam::OpenStep ThreadTeam::OpenStep::of(std::uint64_t word) {
  return {word >> (kThreadBits + kTaskBits), static_cast<int>(word >> kThreadBits & ((1u << kTaskBits) - 1)),
          static_cast<int>(word & ((1u << kThreadBits) - 1))};
}

std::uint64_t ThreadTeam::OpenStep::word() const {
  return (epoch << kTaskBits | static_cast<std::uint64_t>(tasks_per_thread)) << kThreadBits |
         static_cast<std::uint64_t>(threads);
}

void ThreadTeam::publish(OpenStep step) {
  // Pairs with wait(): either the worker going to sleep sees the step, or this sees that it sleeps.
  open_.store(step.word(), std::memory_order_seq_cst);
  if (step.tasks_per_thread == 0 || sleeping_.load(std::memory_order_seq_cst) == 0) return;
  const int others = granted.load(std::memory_order_relaxed) - 1;
  for (int i = 0; i < others; ++i) workers_[static_cast<std::size_t>(i)].load(std::memory_order_relaxed)->wake();
}

namespace {

ThreadTeam*& team_between_steps() {
  thread_local ThreadTeam* team = nullptr;
  return team;
}

}  // namespace

ThreadTeam* ThreadTeam::between_steps() { return team_between_steps(); }

// Begins the next step, or ends the run.
void ThreadTeam::advance() {
  finished_.store(0, std::memory_order_relaxed);
  team_between_steps() = this;
  const int tasks = run_.work->next();
  team_between_steps() = nullptr;
  // The run that it is part of goes on: nothing is published.
  if (tasks == 0 && run_.over != nullptr) return run_.over->store(true, std::memory_order_release);
  if (const int now = granted.load(std::memory_order_relaxed); tasks > 0 && load_.fair(now, planned) != now)
    owner_.adapt(*this);
  else
    spare_steps = 0;
  publish({OpenStep::of(open_.load(std::memory_order_relaxed)).epoch + 1, tasks, run_.threads});
}

// Runs untaken tasks of the step, first those of this thread: its caches may hold their data from the step before.
void ThreadTeam::take_tasks(OpenStep step, int thread) {
  const int all = step.threads * step.tasks_per_thread;
  for (int i = 0; i < step.threads; ++i) {
    const int owner = thread + i < step.threads ? thread + i : thread + i - step.threads;
    for (int k = 0; k < step.tasks_per_thread; ++k) {
      std::atomic<std::uint64_t>& taken = tasks_[static_cast<std::size_t>(owner)].taken[k];
      std::uint64_t last = taken.load(std::memory_order_relaxed);
      if (last >= step.epoch || !taken.compare_exchange_strong(last, step.epoch, std::memory_order_acq_rel)) continue;
      // The step cannot end before this task does, so data of the run may be read from here on.
      run_.work->task(owner * step.tasks_per_thread + k, all);
      if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == all) return advance();
    }
  }
}

// On a worker: waits until there is another step, or it has another team.
void ThreadTeam::wait(std::uint64_t word, Worker& self) {
  const auto changed = [&] {
    return open_.load(std::memory_order_seq_cst) != word || self.team.load(std::memory_order_seq_cst) != this;
  };
  // After the run of this team, the CPU is left to other runs.
  const bool over = OpenStep::of(word).tasks_per_thread == 0;
  const int rounds = load_.crowded() || (over && !load_.alone()) ? 0 : over ? kIdleSpinRounds : kSpinRounds;
  if (spin_until(rounds, changed)) return;
  const std::uint32_t wakes = self.wakes.load(std::memory_order_acquire);
  self.asleep.store(true, std::memory_order_seq_cst);
  sleeping_.fetch_add(1, std::memory_order_seq_cst);
  if (!changed()) self.wakes.wait(wakes, std::memory_order_acquire);
  sleeping_.fetch_sub(1, std::memory_order_relaxed);
  self.asleep.store(false, std::memory_order_relaxed);
}

void ThreadTeam::run(PoolWork& work) {
  run_ = {&work, planned, nullptr};
  advance();
  for (;;) {
    const std::uint64_t word = open_.load(std::memory_order_acquire);
    const OpenStep step = OpenStep::of(word);
    if (step.tasks_per_thread == 0) return;
    take_tasks(step, 0);
    const auto changed = [&] { return open_.load(std::memory_order_acquire) != word; };
    if (!spin_until(load_.crowded() ? 0 : kSpinRounds, changed))
      while (!changed()) sched_yield();
  }
}

void ThreadTeam::run_within(PoolWork& work, int threads) {
  std::atomic<bool> over{false};
  const Run outer = std::exchange(run_, {&work, threads, &over});
  advance();
  while (!over.load(std::memory_order_acquire)) {
    const std::uint64_t word = open_.load(std::memory_order_acquire);
    take_tasks(OpenStep::of(word), 0);
    const auto changed = [&] {
      return open_.load(std::memory_order_acquire) != word || over.load(std::memory_order_acquire);
    };
    if (!spin_until(load_.crowded() ? 0 : kSpinRounds, changed))
      while (!changed()) sched_yield();
  }
  run_ = outer;
  finished_.store(0, std::memory_order_relaxed);
  team_between_steps() = this;
}

}  // namespace graft
