#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lowering/dependencies.h"
#include "lowering/tasks.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// What a barrier costs, in units of relative_work(): at 1, half the work is saved and a barrier is paid for it.
constexpr double kBarrier = 0.5;
// A launch with more work than this for each thread gains nothing from running beside another.
constexpr double kMostWorkPerThread = 4;
// A group ends here: between groups a run can be cancelled, and memory of its launches can be used again.
constexpr std::size_t kMostLaunchesPerBranch = 32;
// Ready launches looked at for one group.
constexpr std::size_t kMostCandidates = 64;

// List scheduling: from the launches that are ready, the first one and those that can run beside it make a group.
class BranchGrouper {
 public:
  BranchGrouper(LaunchSequence& sequence, int threads)
      : sequence_(sequence), threads_(threads), count_(sequence.commit_begin), dependencies_(sequence, count_) {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const Launch& launch = sequence_.launches[i];
      work_.push_back(may_join_a_group(launch) ? relative_work(launch) : kAlone);
      if (!launch.serial && work_[i] > kMostWorkPerThread * threads_) work_[i] = kAlone;
      if (dependencies_.waits[i] == 0) ready_.insert(i);
    }
  }

  std::size_t run() {
    order_.reserve(count_);
    while (!ready_.empty()) {
      std::vector<Candidate> candidates;
      if (work_[*ready_.begin()] != kAlone) candidates = choose();
      if (candidates.empty()) {
        schedule(next_alone());
        continue;
      }
      LaunchGroup& group = sequence_.groups.emplace_back();
      for (const Candidate& candidate : candidates) {
        const auto begin = static_cast<std::uint32_t>(order_.size());
        for (const std::uint32_t i : candidate.launches) schedule(i);
        group.branches.push_back({begin, static_cast<std::uint32_t>(order_.size()), candidate.tasks, candidate.work});
      }
    }
    GRAFT_ASSERT(order_.size() == count_);
    if (!sequence_.groups.empty()) reorder(sequence_, order_);
    return sequence_.groups.size();
  }

 private:
  static constexpr double kAlone = std::numeric_limits<double>::infinity();

  struct Candidate {
    std::vector<std::uint32_t> launches;
    int tasks = 1;
    double work = 0;
  };

  // The first ready launch, but while others are ready too, not one that takes a single thread long, such as one
  // direction of a recurrent net: it waits for something to run beside.
  std::uint32_t next_alone() const {
    for (const std::uint32_t i : ready_)
      if (work_[i] == kAlone || work_[i] < 1 || !sequence_.launches[i].serial) return i;
    return *ready_.begin();
  }

  // Launches that write anything but intermediate tensors keep their place: states must be whole when a run stops, and
  // outputs may share memory with inputs. So do kernels of the user, which may share data.
  bool may_join_a_group(const Launch& launch) const {
    return launch.kernel != nullptr && !launch.on_device && !launch.kernel->of_user &&
           std::ranges::all_of(launch.outputs, [&](const Tensor& t) {
             return sequence_.buffers[t.buffer].memory == MemoryKind::arena;
           });
  }

  void schedule(std::uint32_t i) {
    ready_.erase(i);
    order_.push_back(i);
    for (const std::uint32_t next : dependencies_.after[i])
      if (--dependencies_.waits[next] == 0) ready_.insert(next);
  }

  // A launch and, when one thread runs it, those that follow from it alone and that one thread runs too.
  Candidate candidate_from(std::uint32_t first) const {
    Candidate candidate;
    candidate.work = work_[first];
    candidate.launches.push_back(first);
    if (!sequence_.launches[first].serial) {
      candidate.tasks = std::min(threads_, 1 + static_cast<int>(2 * candidate.work));
      return candidate;
    }
    std::map<std::uint32_t, std::uint32_t> arrived;  // by launch: how many it waited for are in the candidate
    std::set<std::uint32_t> next;
    for (std::size_t k = 0; k < candidate.launches.size() && candidate.launches.size() < kMostLaunchesPerBranch; ++k) {
      for (const std::uint32_t i : dependencies_.after[candidate.launches[k]])
        if (++arrived[i] == dependencies_.waits[i] && work_[i] != kAlone && sequence_.launches[i].serial)
          next.insert(i);
      if (next.empty() || k + 1 < candidate.launches.size()) continue;
      candidate.work += work_[*next.begin()];
      candidate.launches.push_back(*next.begin());
      next.erase(next.begin());
    }
    return candidate;
  }

  // By falling work; empty when the first ready launch gains nothing from others beside it.
  std::vector<Candidate> choose() const {
    std::vector<Candidate> candidates;
    int tasks = 0;
    std::size_t seen = 0;
    for (const std::uint32_t i : ready_) {
      if (++seen > kMostCandidates) break;
      if (work_[i] == kAlone) continue;
      Candidate candidate = candidate_from(i);
      if (tasks + candidate.tasks > max_tasks(threads_)) break;
      tasks += candidate.tasks;
      candidates.push_back(std::move(candidate));
    }
    if (candidates.size() < 2) return {};
    std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::work);
    return gain(candidates) > 0 ? candidates : std::vector<Candidate>();
  }

  // What is saved against one launch after the other, in units of relative_work().
  double gain(const std::vector<Candidate>& candidates) const {
    double one_by_one = 0, all = 0, longest = 0;
    for (const Candidate& candidate : candidates) {
      const bool serial = sequence_.launches[candidate.launches[0]].serial;
      one_by_one += serial ? candidate.work : candidate.work / threads_ + kBarrier;
      all += candidate.work;
      longest = std::max(longest, candidate.work / candidate.tasks);
    }
    return one_by_one - std::max(all / threads_, longest) - kBarrier;
  }

  LaunchSequence& sequence_;
  const int threads_;
  const std::size_t count_;
  Dependencies dependencies_;
  std::vector<double> work_;  // by launch; kAlone: runs beside no other
  std::set<std::uint32_t> ready_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

std::size_t group_branches(LaunchSequence& sequence, int threads) {
  GRAFT_ASSERT(sequence.groups.empty());
  return BranchGrouper(sequence, threads).run();
}

}  // namespace graft
