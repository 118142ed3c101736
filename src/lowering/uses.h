#pragma once

#include <cstddef>
#include <vector>

#include "lowering/launch.h"

namespace graft {

// The readers and writers of a buffer of a launch sequence.
struct BufferUses {
  std::size_t reads = 0;               // inputs of launches and of their undos
  std::size_t writes = 0;              // outputs of launches
  std::size_t reader = 0, writer = 0;  // the last launch that reads, that writes
};

// By buffer.
std::vector<BufferUses> uses_of(const LaunchSequence& sequence);

// Whether a launch after this one, which is in the sequence, and before launch `end` overwrites what it reads.
bool is_overwritten(const LaunchSequence& sequence, const Launch& launch, std::size_t end);

// Whether a launch that writes this output leaves, or may leave, bytes of its buffer as they were: graft's kernels but
// the copy may, and so may ggml's SET_ROWS; its other ops do outside of the tensor.
bool writes_a_part(const Launch& launch, const Tensor& output, const Buffer& buffer);

// Calls visit(BufferId&) for each operand of the launch and for its scratch.
template <typename Visit>
void for_each_buffer(Launch& launch, Visit&& visit) {
  for (Tensor& t : launch.inputs) visit(t.buffer);
  for (Tensor& t : launch.outputs) visit(t.buffer);
  if (launch.scratch_bytes > 0) visit(launch.scratch);
}

// The first and the last launch that may run at the same time as launch i: those of its group, those beside it in its
// section of streams (between them may be some that do not), else itself alone.
struct LaunchRange {
  std::size_t begin, end;
};
LaunchRange range_of(const LaunchSequence& sequence, std::size_t i);

// The section of streams with launch i; null outside of sections.
const StreamSection* section_of(const LaunchSequence& sequence, std::size_t i);

// Sets Buffer::first_use and last_use of all buffers. A buffer that a group touches is in use in the whole of it, and
// one that a section of streams touches as long as launches run that may run beside those that touch it: a buffer whose
// first use comes later is only touched by launches that begin when all of these have ended.
void find_lifetimes(LaunchSequence& sequence);

}  // namespace graft
