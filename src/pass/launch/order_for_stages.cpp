#include <array>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// Dependencies: a launch comes after those that wrote what it reads or writes, and after those that read what it
// overwrites.
struct Dependencies {
  explicit Dependencies(const LaunchSequence& sequence, std::size_t count) : after(count), waits(count, 0) {
    struct Access {
      std::int64_t writer = -1;
      std::vector<std::uint32_t> readers;  // since that write
    };
    std::vector<Access> access(sequence.buffers.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const Launch& launch = sequence.launches[i];
      for (const Tensor& t : launch.inputs) {
        if (access[t.buffer].writer >= 0) add(static_cast<std::uint32_t>(access[t.buffer].writer), i);
        access[t.buffer].readers.push_back(i);
      }
      for (const Tensor& t : launch.outputs) {
        Access& a = access[t.buffer];
        if (a.writer >= 0) add(static_cast<std::uint32_t>(a.writer), i);
        for (const std::uint32_t reader : a.readers) add(reader, i);
        a = {i, {}};
      }
    }
  }
  void add(std::uint32_t before, std::uint32_t i) {
    if (before == i) return;
    after[before].push_back(i);
    ++waits[i];
  }
  std::vector<std::vector<std::uint32_t>> after;
  std::vector<std::uint32_t> waits;
};

// By launch: whether it will run on the device. Copies run on the side of their input.
std::vector<bool> runs_on_device(const LaunchSequence& sequence, std::size_t count) {
  std::vector<bool> there(sequence.buffers.size());
  for (BufferId id = 0; id < there.size(); ++id) {
    const MemoryKind kind = sequence.buffers[id].memory;
    there[id] = kind == MemoryKind::weight || kind == MemoryKind::constant;
  }
  std::vector<bool> out;
  for (std::size_t i = 0; i < count; ++i) {
    const Launch& launch = sequence.launches[i];
    const bool copies = is_ggml_copy(launch) && !there[launch.inputs[0].buffer] && !there[launch.outputs[0].buffer];
    out.push_back(launch.on_device && !copies);
    for (const Tensor& t : launch.outputs) there[t.buffer] = out.back();
  }
  return out;
}

}  // namespace

bool is_ggml_copy(const Launch& launch) {
  return !launch.kernel && (launch.ggml_op == GGML_OP_CPY || launch.ggml_op == GGML_OP_REPEAT);
}

std::size_t order_for_stages(LaunchSequence& sequence) {
  const std::size_t count = sequence.commit_begin;
  Dependencies dependencies(sequence, count);
  const std::vector<bool> on_device = runs_on_device(sequence, count);
  // Ready launches of the host and of the device, in the order of the sequence.
  std::array<std::set<std::uint32_t>, 2> ready;
  const auto make_ready = [&](std::uint32_t i) { ready[on_device[i] ? 1 : 0].insert(i); };
  for (std::uint32_t i = 0; i < count; ++i)
    if (dependencies.waits[i] == 0) make_ready(i);
  std::vector<Launch> ordered;
  ordered.reserve(sequence.launches.size());
  std::size_t moved = 0;
  std::size_t current = 0;
  while (ordered.size() < count) {
    if (ready[current].empty()) current = 1 - current;
    GRAFT_ASSERT(!ready[current].empty());
    const std::uint32_t i = *ready[current].begin();
    ready[current].erase(ready[current].begin());
    moved += i != ordered.size();
    ordered.push_back(std::move(sequence.launches[i]));
    for (const std::uint32_t next : dependencies.after[i])
      if (--dependencies.waits[next] == 0) make_ready(next);
  }
  std::move(sequence.launches.begin() + static_cast<std::ptrdiff_t>(count), sequence.launches.end(),
            std::back_inserter(ordered));
  sequence.launches = std::move(ordered);
  return moved;
}

}  // namespace graft
