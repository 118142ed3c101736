#include "lowering/uses.h"

#include <algorithm>
#include <iterator>

#include "ggml.h"
#include "kernel/elementwise/elementwise.h"
#include "lowering/lowering.h"

namespace graft {
namespace {

// Whether the tensor covers every byte of the buffer.
bool covers(const Tensor& tensor, const Buffer& buffer) {
  if (static_cast<std::int64_t>(tensor.desc.byte_count()) != buffer.bytes) return false;
  const ByteSpan span = byte_span(tensor.desc);
  bool overlaps = false;  // a stride of 0 repeats elements
  for (int d = 0; d < tensor.rank(); ++d) overlaps = overlaps || (tensor.size(d) > 1 && tensor.stride(d) == 0);
  return !overlaps && tensor.offset + span.low == 0 && span.high - span.low == buffer.bytes;
}

}  // namespace

std::vector<BufferUses> uses_of(const LaunchSequence& sequence) {
  std::vector<BufferUses> uses(sequence.buffers.size());
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    for (const Tensor& t : sequence.launches[i].inputs) {
      ++uses[t.buffer].reads;
      uses[t.buffer].reader = i;
    }
    for (const Tensor& t : sequence.launches[i].outputs) {
      ++uses[t.buffer].writes;
      uses[t.buffer].writer = i;
    }
  }
  for (const UndoLaunch& undo : sequence.undo)
    for (const Tensor& t : undo.launch.inputs) ++uses[t.buffer].reads;
  return uses;
}

bool is_overwritten(const LaunchSequence& sequence, const Launch& launch, std::size_t end) {
  for (auto i = static_cast<std::size_t>(&launch - sequence.launches.data()) + 1; i < end; ++i)
    for (const Tensor& written : sequence.launches[i].outputs)
      for (const Tensor& read : launch.inputs)
        if (written.buffer == read.buffer) return true;
  return false;
}

const StreamSection* section_of(const LaunchSequence& sequence, std::size_t i) {
  const auto after = std::ranges::upper_bound(sequence.sections, i, {}, &StreamSection::begin);
  if (after == sequence.sections.begin() || std::prev(after)->end() <= i) return nullptr;
  return &*std::prev(after);
}

LaunchRange range_of(const LaunchSequence& sequence, std::size_t i) {
  if (const StreamSection* section = section_of(sequence, i)) {
    std::size_t begin = i, end = i + 1;
    for (std::size_t other = section->begin; other < i; ++other)
      if (!section->in_order(other, i)) begin = std::min(begin, other);
    for (std::size_t other = i + 1; other < section->end(); ++other)
      if (!section->in_order(i, other)) end = other + 1;
    return {begin, end};
  }
  const auto after = std::ranges::upper_bound(sequence.groups, i, {}, &LaunchGroup::begin);
  if (after == sequence.groups.begin() || std::prev(after)->end() <= i) return {i, i + 1};
  return {std::prev(after)->begin(), std::prev(after)->end()};
}

void find_lifetimes(LaunchSequence& sequence) {
  for (Buffer& b : sequence.buffers) b.first_use = b.last_use = -1;
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    const auto [begin, end] = range_of(sequence, i);
    const bool in_section = section_of(sequence, i) != nullptr;
    // Named again, since Clang before 16 refuses structured bindings in captures.
    for_each_buffer(sequence.launches[i], [&, begin = begin, end = end](BufferId id) {
      Buffer& b = sequence.buffers[id];
      if (b.first_use < 0) b.first_use = static_cast<std::int32_t>(in_section ? i : begin);
      b.last_use = std::max(b.last_use, static_cast<std::int32_t>(end) - 1);
    });
  }
  // Operands of an undo live to the end of the run, and past it.
  for (UndoLaunch& undo : sequence.undo)
    for_each_buffer(undo.launch, [&](BufferId id) {
      sequence.buffers[id].last_use = static_cast<std::int32_t>(sequence.launches.size());
    });
}

bool writes_a_part(const Launch& launch, const Tensor& output, const Buffer& buffer) {
  const bool scatters = launch.kernel == nullptr && launch.ggml_op == GGML_OP_SET_ROWS;
  return scatters || (launch.kernel != nullptr && launch.kernel != &kCopy) || !covers(output, buffer);
}

}  // namespace graft
