#pragma once

// Test only: launches that may run at the same time.

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace graft::test {

struct TouchedBytes {
  std::uint32_t allocation;
  std::int64_t begin, end;
  bool writes;
};

// What launches [begin, end) read and write, with the addresses of the plan.
inline std::vector<TouchedBytes> touched_by(const Plan& plan, std::uint32_t begin, std::uint32_t end) {
  std::vector<TouchedBytes> out;
  const auto add = [&](BufferId id, std::int64_t low, std::int64_t high, bool writes) {
    const Buffer& b = plan.buffers[id];
    out.push_back({b.allocation, b.offset + low, b.offset + high, writes});
  };
  for (std::uint32_t i = begin; i < end; ++i) {
    const Launch& launch = plan.launches[i];
    for (const bool writes : {false, true})
      for (const Tensor& t : writes ? launch.outputs : launch.inputs) {
        const ByteSpan span = byte_span(t.desc);
        add(t.buffer, t.offset + span.low, t.offset + span.high, writes);
      }
    if (launch.scratch_bytes > 0) add(launch.scratch, 0, launch.scratch_bytes, true);
  }
  return out;
}

// Whether they share a byte that one of them writes.
inline bool race(const std::vector<TouchedBytes>& a, const std::vector<TouchedBytes>& b) {
  for (const TouchedBytes& one : a)
    for (const TouchedBytes& other : b)
      if ((one.writes || other.writes) && one.allocation == other.allocation && one.begin < other.end &&
          other.begin < one.end)
        return true;
  return false;
}

}  // namespace graft::test
