#include "lowering/dependencies.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "lowering/lowering.h"

namespace graft {
namespace {

// Bytes of a buffer that a launch touches: [begin, end), or of every `pitch` bytes in it only the first `row`.
struct Access {
  std::uint32_t launch;
  std::int64_t begin, end;
  bool writes;
  std::int64_t pitch = 0, row = 0;  // pitch 0: all bytes

  bool conflicts(const Access& other) const {
    return (writes || other.writes) && begin < other.end && other.begin < end && !interleaves(other);
  }
  // Columns of one matrix, such as what a concatenation along the last dimension is made of.
  bool interleaves(const Access& other) const {
    if (pitch == 0 || pitch != other.pitch) return false;
    const std::int64_t from = begin % pitch, other_from = other.begin % pitch;
    if (from + row > pitch || other_from + other.row > pitch) return false;
    return from + row <= other_from || other_from + other.row <= from;
  }
};

Access access(std::uint32_t launch, const Tensor& tensor, bool writes) {
  const ByteSpan span = byte_span(tensor.desc);
  Access out{launch, tensor.offset + span.low, tensor.offset + span.high, writes};
  std::int64_t stride = 0;  // the largest
  for (int d = 0; d < tensor.rank(); ++d)
    if (tensor.size(d) > 1) stride = std::max(stride, tensor.stride(d));
  // Dimensions with a multiple of that stride repeat the row, the others make it.
  std::int64_t elements = 1;
  for (int d = 0; d < tensor.rank(); ++d) {
    if (tensor.size(d) <= 1 || tensor.stride(d) == stride) continue;
    if (tensor.stride(d) < 0) return out;
    elements += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto size = static_cast<std::int64_t>(byte_size(tensor.dtype()));
  if (stride > 0 && elements < stride && out.begin >= 0) {
    out.pitch = stride * size;
    out.row = elements * size;
  }
  return out;
}

std::vector<bool> written_buffers(const LaunchSequence& sequence, std::size_t count) {
  std::vector<bool> written(sequence.buffers.size(), false);
  for (std::size_t i = 0; i < count; ++i) {
    const Launch& launch = sequence.launches[i];
    for (const Tensor& t : launch.outputs) written[t.buffer] = true;
    if (launch.scratch_bytes > 0) written[launch.scratch] = true;
  }
  return written;
}

}  // namespace

Dependencies::Dependencies(const LaunchSequence& sequence, std::size_t count) : after(count), waits(count, 0) {
  // Only reads of a buffer that nothing writes, such as a weight, depend on nothing.
  const std::vector<bool> written = written_buffers(sequence, count);
  std::vector<std::vector<Access>> accesses(sequence.buffers.size());
  const auto add = [&](BufferId buffer, const Access& now) {
    for (const Access& earlier : accesses[buffer]) {
      if (earlier.launch == now.launch || !earlier.conflicts(now)) continue;
      std::vector<std::uint32_t>& waiting = after[earlier.launch];
      if (!waiting.empty() && waiting.back() == now.launch) continue;
      waiting.push_back(now.launch);
      ++waits[now.launch];
    }
    accesses[buffer].push_back(now);
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    const Launch& launch = sequence.launches[i];
    for (const Tensor& t : launch.inputs)
      if (written[t.buffer] && t.numel() > 0) add(t.buffer, access(i, t, false));
    for (const Tensor& t : launch.outputs)
      if (t.numel() > 0) add(t.buffer, access(i, t, true));
    if (launch.scratch_bytes > 0) add(launch.scratch, {i, 0, launch.scratch_bytes, true});
  }
}

std::size_t reorder(LaunchSequence& sequence, const std::vector<std::uint32_t>& order) {
  GRAFT_ASSERT(order.size() <= sequence.commit_begin);
  std::size_t moved = 0;
  std::vector<Launch> ordered;
  ordered.reserve(order.size());
  for (const std::uint32_t i : order) {
    moved += i != ordered.size();
    ordered.push_back(std::move(sequence.launches[i]));
  }
  std::ranges::move(ordered, sequence.launches.begin());
  for (UndoLaunch& undo : sequence.undo) {
    // It can run once all that it reads has been written: the copies of what the state held.
    undo.after = 0;
    for (std::uint32_t i = 0; i < ordered.size(); ++i)
      for (const Tensor& written : sequence.launches[i].outputs)
        for (const Tensor& read : undo.launch.inputs)
          if (written.buffer == read.buffer) undo.after = i + 1;
  }
  return moved;
}

}  // namespace graft
