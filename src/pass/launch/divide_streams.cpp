#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "lowering/dependencies.h"
#include "lowering/tasks.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// Work is counted in units of what a device takes for a launch that does nothing, some 4 microseconds.
constexpr double kBytesPerUnit = 4 << 20;
constexpr double kOperationsPerUnit = 64e6;
// A launch with more work than this fills the device: it gains nothing from running beside another.
constexpr double kMostWork = 4;
// From the end of a launch to the begin of one in another stream that waits for it.
constexpr double kEvent = 1;
// What the host and the device spend on an event, whether or not a stream has to wait.
constexpr double kCostOfEvent = 0.5;
// Counted work is rough: streams are for more.
constexpr double kLeastGain = 1;
// A section ends here: memory of its launches can be used again.
constexpr std::size_t kMostLaunches = 64;

double device_work(const Launch& launch) {
  double work = 1 + static_cast<double>(touched_bytes(launch)) / kBytesPerUnit;
  if (launch.ggml_op != GGML_OP_MUL_MAT) return work;
  const Tensor& rows = launch.inputs[0];
  const auto depth = static_cast<double>(rows.size(rows.rank() - 1));
  return work + 2 * static_cast<double>(launch.outputs[0].numel()) * depth / kOperationsPerUnit;
}

// List scheduling: launches by falling length of the longest path that begins with them, each in the stream in which it
// can begin first.
class Section {
 public:
  // `launches`: in the order of the sequence.
  Section(const Dependencies& dependencies, const std::vector<double>& work, std::vector<std::uint32_t> launches,
          std::size_t streams)
      : launches_(std::move(launches)), before_(launches_.size()), work_(launches_.size()), end_(launches_.size()) {
    for (std::size_t k = 0; k < launches_.size(); ++k) {
      work_[k] = work[launches_[k]];
      for (const std::uint32_t next : dependencies.after[launches_[k]]) {
        const auto at = std::ranges::lower_bound(launches_, next);
        if (at != launches_.end() && *at == next)
          before_[static_cast<std::size_t>(at - launches_.begin())].push_back(k);
      }
    }
    schedule(streams);
    find_waits();
  }

  // What is saved against one launch after the other.
  double gain() const {
    double all = 0, last = 0;
    std::size_t events = 0;
    std::array<bool, kMaxStreams> used{};
    for (std::size_t k = 0; k < launches_.size(); ++k) {
      all += work_[k];
      last = std::max(last, end_[k] + (places_[k].stream != 0 ? kEvent : 0));
      events += places_[k].waits.size();
      used[places_[k].stream] = true;
    }
    for (std::size_t s = 1; s < kMaxStreams; ++s) events += used[s] ? 2 : 0;  // where the section begins and ends
    return all - last - kCostOfEvent * static_cast<double>(events);
  }

  // The launches in the order in which they begin, to stand in the sequence from `begin` on.
  std::vector<std::uint32_t> order() const {
    std::vector<std::uint32_t> out;
    for (const std::size_t k : order_) out.push_back(launches_[k]);
    return out;
  }
  StreamSection section(std::uint32_t begin) const {
    StreamSection out{begin, {}};
    std::vector<std::uint32_t> moved(launches_.size());
    for (std::size_t n = 0; n < order_.size(); ++n) moved[order_[n]] = begin + static_cast<std::uint32_t>(n);
    for (const std::size_t k : order_) {
      StreamPlace& place = out.places.emplace_back(places_[k]);
      for (std::uint32_t& awaited : place.waits) awaited = moved[awaited];
    }
    return out;
  }

 private:
  void schedule(std::size_t streams) {
    std::vector<double> path = work_;
    for (std::size_t k = launches_.size(); k-- > 0;)
      for (const std::size_t earlier : before_[k]) path[earlier] = std::max(path[earlier], work_[earlier] + path[k]);
    std::vector<std::size_t> by_path(launches_.size());
    std::iota(by_path.begin(), by_path.end(), std::size_t{0});
    std::ranges::stable_sort(by_path, std::ranges::greater(), [&](std::size_t k) { return path[k]; });
    std::array<double, kMaxStreams> free;  // when the stream can begin its next launch
    free.fill(kEvent);
    free[0] = 0;
    std::vector<double> begin(launches_.size());
    places_.resize(launches_.size());
    for (const std::size_t k : by_path) {
      // Of streams in which it begins at the same time, that of the input which is ready last.
      std::size_t best = 0, home = 0;
      double last = -1;
      for (const std::size_t earlier : before_[k])
        if (end_[earlier] > last) {
          last = end_[earlier];
          home = places_[earlier].stream;
        }
      for (std::size_t s = 0; s < streams; ++s) {
        double at = free[s];
        for (const std::size_t earlier : before_[k])
          at = std::max(at, end_[earlier] + (places_[earlier].stream != s ? kEvent : 0));
        if (s == 0 || at < begin[k] || (at == begin[k] && s == home)) {
          best = s;
          begin[k] = at;
        }
      }
      places_[k].stream = static_cast<std::uint8_t>(best);
      free[best] = end_[k] = begin[k] + work_[k];
    }
    order_ = std::move(by_path);
    std::ranges::stable_sort(order_, {}, [&](std::size_t k) { return begin[k]; });
  }

  // A launch waits for another stream's launch unless an earlier one of its own stream, or what it waits for, has.
  void find_waits() {
    std::array<std::array<std::uint32_t, kMaxStreams>, kMaxStreams> done{};  // by stream: of its last launch, with it
    std::vector<std::size_t> at(launches_.size());
    for (std::size_t n = 0; n < order_.size(); ++n) at[order_[n]] = n;
    for (const std::size_t k : order_) {
      StreamPlace& place = places_[k];
      place.done = done[place.stream];
      place.position = place.done[place.stream];
      std::vector<std::size_t> earlier = before_[k];
      std::ranges::sort(earlier, std::ranges::greater(), [&](std::size_t e) { return at[e]; });
      for (const std::size_t e : earlier) {
        const StreamPlace& other = places_[e];
        if (place.done[other.stream] > other.position) continue;
        place.waits.push_back(static_cast<std::uint32_t>(e));
        for (std::size_t s = 0; s < kMaxStreams; ++s) place.done[s] = std::max(place.done[s], other.done[s]);
        place.done[other.stream] = std::max(place.done[other.stream], other.position + 1);
      }
      done[place.stream] = place.done;
      ++done[place.stream][place.stream];
    }
  }

  std::vector<std::uint32_t> launches_;
  // By place in launches_; launches are named by that place, too, in StreamPlace::waits.
  std::vector<std::vector<std::size_t>> before_;
  std::vector<double> work_, end_;
  std::vector<StreamPlace> places_;
  std::vector<std::size_t> order_;
};

class StreamDivider {
 public:
  StreamDivider(LaunchSequence& sequence, std::size_t streams)
      : sequence_(sequence),
        streams_(streams),
        count_(sequence.commit_begin),
        dependencies_(sequence, count_),
        work_(count_) {
    for (std::uint32_t i = 0; i < count_; ++i) there_.push_back(sequence_.launches[i].on_device);
    for (std::uint32_t i = 0; i < count_; ++i) work_[i] = there_[i] ? device_work(sequence_.launches[i]) : 0;
  }

  std::size_t run() {
    for (std::uint32_t begin = 0; begin < count_;) {
      std::uint32_t end = begin + 1;
      while (end < count_ && there_[end] == there_[begin]) ++end;
      divide(begin, end);
      begin = end;
    }
    if (!sequence_.sections.empty()) reorder(sequence_, order_);
    return sequence_.sections.size();
  }

 private:
  // A part of the sequence that one side runs: all before it has ended.
  void divide(std::uint32_t begin, std::uint32_t end) {
    const std::size_t sections = sequence_.sections.size();
    if (there_[begin]) {
      std::set<std::uint32_t> ready;
      for (std::uint32_t i = begin; i < end; ++i)
        if (dependencies_.waits[i] == 0) ready.insert(i);
      while (!ready.empty()) {
        std::vector<std::uint32_t> launches;
        if (ready.size() > 1) launches = small_ones(ready, end);
        drop_tail(launches);
        if (launches.empty()) {
          launches.push_back(*ready.begin());
          schedule(launches, ready, end);
          continue;
        }
        const Section section(dependencies_, work_, launches, streams_);
        if (section.gain() > kLeastGain) {
          sequence_.sections.push_back(section.section(static_cast<std::uint32_t>(order_.size())));
          launches = section.order();
        }
        schedule(launches, ready, end);
      }
      GRAFT_ASSERT(order_.size() == end);
      if (sequence_.sections.size() > sections) return;
      order_.resize(begin);  // nothing gained: as it was
    } else {
      for (std::uint32_t i = begin; i < end; ++i)
        for (const std::uint32_t next : dependencies_.after[i]) --dependencies_.waits[next];
    }
    for (std::uint32_t i = begin; i < end; ++i) order_.push_back(i);
  }

  // Launches that do not fill the device: of those that are ready, and of those that follow from these alone. Branches
  // get equally far.
  std::vector<std::uint32_t> small_ones(const std::set<std::uint32_t>& ready, std::uint32_t end) const {
    std::set<std::pair<std::uint32_t, std::uint32_t>> next_ones;  // number of launches before it, launch
    for (const std::uint32_t i : ready) {
      if (next_ones.size() == kMostLaunches) break;
      if (work_[i] <= kMostWork) next_ones.emplace(0, i);
    }
    std::map<std::uint32_t, std::uint32_t> arrived;  // by launch: how many it waited for are in `out`
    std::vector<std::uint32_t> out;
    while (!next_ones.empty() && out.size() < kMostLaunches) {
      const auto [depth, i] = *next_ones.begin();
      next_ones.erase(next_ones.begin());
      out.push_back(i);
      for (const std::uint32_t next : dependencies_.after[i])
        if (++arrived[next] == dependencies_.waits[next] && next < end && work_[next] <= kMostWork)
          next_ones.emplace(depth + 1, next);
    }
    std::ranges::sort(out);
    return out;
  }

  // Drops launches at the end that all others come before.
  void drop_tail(std::vector<std::uint32_t>& launches) const {
    // Those that no later one that is kept waits for.
    std::set<std::uint32_t> last;
    std::map<std::uint32_t, std::uint32_t> later;  // by launch: how many of the launches wait for it
    std::map<std::uint32_t, std::vector<std::uint32_t>> before;
    for (const std::uint32_t i : launches) {
      for (const std::uint32_t next : dependencies_.after[i])
        if (std::ranges::binary_search(launches, next)) {
          ++later[i];
          before[next].push_back(i);
        }
      if (!later.contains(i)) last.insert(i);
    }
    while (last.size() == 1) {
      const std::uint32_t i = *last.begin();
      last.erase(i);
      std::erase(launches, i);
      for (const std::uint32_t earlier : before[i])
        if (--later[earlier] == 0) last.insert(earlier);
    }
  }

  void schedule(const std::vector<std::uint32_t>& launches, std::set<std::uint32_t>& ready, std::uint32_t end) {
    for (const std::uint32_t i : launches) {
      ready.erase(i);
      order_.push_back(i);
      for (const std::uint32_t next : dependencies_.after[i])
        if (--dependencies_.waits[next] == 0 && next < end) ready.insert(next);
    }
  }

  LaunchSequence& sequence_;
  const std::size_t streams_, count_;
  std::vector<bool> there_;
  Dependencies dependencies_;
  std::vector<double> work_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

std::size_t divide_streams(LaunchSequence& sequence, std::size_t streams) {
  GRAFT_ASSERT(sequence.sections.empty() && sequence.groups.empty() && streams <= kMaxStreams);
  return StreamDivider(sequence, streams).run();
}

}  // namespace graft
