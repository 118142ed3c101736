#include "plan/streams.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lowering/uses.h"

namespace graft {
namespace {

using Kind = QueueStep::Kind;

class StageQueue {
 public:
  StageQueue(const Plan& plan, Stage& stage) : plan_(plan), stage_(stage) {}

  void run() {
    for (std::uint32_t i = stage_.begin; i < stage_.end; ++i) {
      const StreamSection* section = section_of(plan_, i);
      if (section != section_) {
        join();
        section_ = section;
        fork(i);
      }
      if (section_ == nullptr) {
        open_[0].push_back(i);
      } else {
        add(i);
      }
    }
    join();
    end_graph(0);
  }

 private:
  void end_graph(std::size_t stream) {
    if (open_[stream].empty()) return;
    step(Kind::graph, stream, static_cast<std::uint32_t>(stage_.graphs.size()));
    stage_.graphs.push_back(std::exchange(open_[stream], {}));
  }
  void step(Kind kind, std::size_t stream, std::uint32_t index) {
    stage_.queue.push_back({kind, static_cast<std::uint8_t>(stream), index});
    stage_.streams = std::max(stage_.streams, static_cast<std::uint32_t>(stream) + 1);
  }
  std::uint32_t record(std::size_t stream) {
    end_graph(stream);
    step(Kind::record, stream, stage_.events);
    return stage_.events++;
  }

  // The section begins with launch i, or goes on with it after an earlier stage.
  void fork(std::uint32_t i) {
    if (section_ == nullptr) return;
    const std::uint32_t end = std::min(section_->end(), stage_.end);
    bool divided = false;
    for (std::uint32_t launch = i; launch < end; ++launch) {
      divided = divided || section_->place(launch).stream != 0;
      for (const std::uint32_t awaited : section_->place(launch).waits)
        if (awaited >= stage_.begin) awaited_.insert(awaited);
    }
    if (divided) forked_ = record(0);
  }

  void add(std::uint32_t i) {
    const StreamPlace& place = section_->place(i);
    const std::size_t stream = place.stream;
    const bool waits = std::ranges::any_of(place.waits, [&](std::uint32_t awaited) { return awaited >= stage_.begin; });
    if (stream != 0 && !last_[stream] && !waits) step(Kind::wait, stream, forked_.value());
    for (const std::uint32_t awaited : place.waits) {
      if (awaited < stage_.begin) continue;
      end_graph(stream);
      step(Kind::wait, stream, recorded_.at(awaited));
    }
    open_[stream].push_back(i);
    last_[stream] = i;
    if (awaited_.contains(i)) recorded_[i] = record(stream);
  }

  // Stream 0 waits for all others, but for those that the last launch of another one has waited for.
  void join() {
    if (section_ == nullptr) return;
    for (std::size_t stream = 1; stream < kMaxStreams; ++stream) {
      if (!last_[stream]) continue;
      end_graph(stream);
      if (std::ranges::any_of(last_, [&](const std::optional<std::uint32_t>& other) {
            return other && *other != *last_[stream] && section_->in_order(*last_[stream], *other);
          }))
        continue;
      const std::uint32_t event = record(stream);
      end_graph(0);
      step(Kind::wait, 0, event);
    }
    last_ = {};
    forked_.reset();
    section_ = nullptr;
  }

  const Plan& plan_;
  Stage& stage_;
  std::array<std::vector<std::uint32_t>, kMaxStreams> open_;  // by stream: the launches of the graph that is made
  const StreamSection* section_ = nullptr;
  std::optional<std::uint32_t> forked_;                              // the event that begins the section
  std::array<std::optional<std::uint32_t>, kMaxStreams> last_ = {};  // by stream: its last launch in the section
  std::set<std::uint32_t> awaited_;                                  // launches that another stream waits for
  std::map<std::uint32_t, std::uint32_t> recorded_;                  // by such a launch: the event
};

// Sets Launch::leaves_graph.
void mark_results(Plan& plan) {
  constexpr std::int64_t kNone = -1, kSeveral = -2;
  std::vector<std::int64_t> graph_of(plan.launches.size(), kSeveral);  // of the host: those of none
  std::int64_t graphs = 0;
  for (const Stage& stage : plan.stages)
    for (const std::vector<std::uint32_t>& launches : stage.graphs) {
      for (const std::uint32_t i : launches) graph_of[i] = graphs;
      ++graphs;
    }
  std::vector<std::int64_t> later(plan.buffers.size(), kNone);  // by buffer: the graph that uses it from here on
  for (std::size_t i = plan.launches.size(); i-- > 0;) {
    Launch& launch = plan.launches[i];
    if (launch.on_device) {
      const BufferId out = launch.outputs[0].buffer;
      launch.leaves_graph =
          plan.buffers[out].memory != MemoryKind::arena || (later[out] != kNone && later[out] != graph_of[i]);
    }
    for_each_buffer(launch, [&](BufferId id) {
      later[id] = later[id] == kNone || later[id] == graph_of[i] ? graph_of[i] : kSeveral;
    });
  }
}

}  // namespace

void queue_graphs(Plan& plan) {
  for (Stage& stage : plan.stages)
    if (stage.side == Side::device) StageQueue(plan, stage).run();
  mark_results(plan);
}

}  // namespace graft
