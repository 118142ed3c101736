#include <array>
#include <set>
#include <vector>

#include "base/check.h"
#include "lowering/dependencies.h"
#include "pass/launch/passes.h"

namespace graft {

std::size_t order_for_stages(LaunchSequence& sequence) {
  const std::size_t count = sequence.commit_begin;
  Dependencies dependencies(sequence, count);
  // Ready launches of the host and of the device, in the order of the sequence.
  std::array<std::set<std::uint32_t>, 2> ready;
  const auto make_ready = [&](std::uint32_t i) { ready[sequence.launches[i].on_device ? 1 : 0].insert(i); };
  for (std::uint32_t i = 0; i < count; ++i)
    if (dependencies.waits[i] == 0) make_ready(i);
  std::vector<std::uint32_t> order;
  order.reserve(count);
  std::size_t current = 0;
  while (order.size() < count) {
    if (ready[current].empty()) current = 1 - current;
    GRAFT_ASSERT(!ready[current].empty());
    const std::uint32_t i = *ready[current].begin();
    ready[current].erase(ready[current].begin());
    order.push_back(i);
    for (const std::uint32_t next : dependencies.after[i])
      if (--dependencies.waits[next] == 0) make_ready(next);
  }
  return reorder(sequence, order);
}

}  // namespace graft
