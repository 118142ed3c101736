#include "session/binder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "session/call_values.h"

namespace graft {
namespace {

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Binder::Binder(const ProgramImpl& program, KvCache& kv, SessionArena& arena, bool strict_zero_copy, Counters& counters)
    : program_(program), kv_(kv), arena_(arena), strict_zero_copy_(strict_zero_copy), counters_(counters) {}

void Binder::freeze(std::uint32_t method, std::size_t input) {
  const MethodInfo& info = program_.methods[method].info;
  GRAFT_CHECK(InvalidArgument, input < info.inputs.size() && info.inputs[input].kind == Value::Kind::tensor, "input ",
              input, " of method '", info.name, "' must be one of its tensors; it has ", info.inputs.size(), " inputs");
  frozen_.push_back({method, static_cast<std::uint32_t>(input), nullptr});
}

std::byte* Binder::aligned_copy(const PreparedCall& call, std::uint32_t input, const TensorView& tensor,
                                std::size_t bytes) {
  const std::string& method = call.method->info.name;
  GRAFT_CHECK(InvalidArgument, !strict_zero_copy_, "input ", input, " of method '", method, "' must be aligned to ",
              byte_size(tensor.dtype), " bytes (strict_zero_copy), its address is ", tensor.data);
  if (copies_.size() <= input) copies_.resize(input + 1);
  AlignedMemory& copy = copies_[input];
  if (copy.size() < bytes) {
    log(LogLevel::info, str("input ", input, " of method '", method, "' is copied: its address ", tensor.data,
                            " is not a multiple of ", byte_size(tensor.dtype)));
    counters_.staging_bytes += bytes - copy.size();
    copy = AlignedMemory(bytes);
  }
  std::memcpy(copy.data(), tensor.data, bytes);
  ++counters_.io_copies;
  counters_.io_bytes_copied += bytes;
  return copy.data();
}

std::byte* Binder::input_base(const PreparedCall& call, std::uint32_t input, const TensorView& tensor) {
  const TensorDesc& desc = call.inputs[input].desc;
  const std::size_t bytes = desc.byte_count();
  if (bytes == 0) return nullptr;
  for (Frozen& frozen : frozen_) {
    if (frozen.method != call.index || frozen.input != input || call.padded()) continue;
    if (!frozen.address) frozen.address = static_cast<std::byte*>(tensor.data);
    GRAFT_CHECK(InvalidArgument, frozen.address == tensor.data, "input ", input, " of method '", call.method->info.name,
                "' is frozen at ", static_cast<void*>(frozen.address), ", and was given at ", tensor.data);
    return frozen.address;
  }
  GRAFT_CHECK(InvalidArgument, tensor.data, "input ", input, " of method '", call.method->info.name, "' (", desc.str(),
              ") has no data: its pointer is null");
  if (is_aligned(tensor.data, tensor.dtype)) return static_cast<std::byte*>(tensor.data);
  return aligned_copy(call, input, tensor, bytes);
}

void Binder::bind(const PreparedCall& call, std::span<const Value> inputs, std::span<std::byte* const> outputs,
                  const RunOptions& options, SessionDevice* device) {
  const LoadedMethod& method = *call.method;
  const Plan& plan = call.plan();
  std::vector<std::byte*>& bases = call.entry->bases;
  std::byte* arena = arena_.memory(plan.arena_bytes, options);
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& allocation = plan.allocations[id];
    std::byte*& base = bases[id];
    switch (allocation.memory) {
      case MemoryKind::weight:
        base = method.weights[allocation.index];
        break;
      case MemoryKind::constant:
        base = method.constants[allocation.index].memory->data();
        break;
      case MemoryKind::state:
        base = allocation.kept_on_device ? state_on_device(call, id, *device)
                                         : kv_.states().data(method.states[allocation.index]);
        break;
      case MemoryKind::arena:
        base = arena;
        break;
      case MemoryKind::input:
        base = input_base(call, allocation.index, inputs[allocation.index].tensor);
        break;
      case MemoryKind::output:
        base = outputs[allocation.index];
        break;
    }
  }
  Executor& executor = *call.entry->executor;
  // Checked before bind() stores the addresses, so that a refused call is refused again when repeated.
  if (!std::ranges::equal(bases, executor.bases())) check_overlaps(call);
  counters_.rewrites += executor.bind(bases, call.entry->buffers);
}

std::byte* Binder::state_on_device(const PreparedCall& call, std::size_t id, SessionDevice& device) try {
  const Allocation& allocation = call.plan().allocations[id];
  const std::uint32_t state = call.method->states[allocation.index];
  const DeviceMemory& there = kv_.states().on_device(
      state, program_.on_device, static_cast<std::size_t>(allocation.bytes), [&] { return kv_.used_ranges(state); });
  call.entry->buffers[id] = there.buffer();
  return there.base();
} catch (const OutOfMemory&) {
  device.leave();
  throw;
}

void Binder::check_overlaps(const PreparedCall& call) const {
  const Plan& plan = call.plan();
  const std::vector<std::byte*>& bases = call.entry->bases;
  const auto is_written = [&](const Allocation& a) { return a.memory == MemoryKind::output || a.mutated; };
  const auto label = [](const Allocation& a) { return str(name(a.memory), " ", a.index); };
  for (std::uint32_t w = 0; w < plan.allocations.size(); ++w) {
    const Allocation& written = plan.allocations[w];
    if (!is_written(written) || !bases[w]) continue;
    for (std::uint32_t o = 0; o < plan.allocations.size(); ++o) {
      const Allocation& other = plan.allocations[o];
      if (o == w || !bases[o] || other.kept_on_device || (is_written(other) && o < w)) continue;
      if (other.memory == MemoryKind::weight || other.memory == MemoryKind::constant) continue;
      if (!overlap(bases[w], written.bytes, bases[o], other.bytes)) continue;
      const Alias* legal = nullptr;
      for (const Alias& alias : plan.aliases)
        if (alias.output == w && alias.input == o) legal = &alias;
      const bool same = bases[w] == bases[o] && written.bytes == other.bytes;
      GRAFT_CHECK(InvalidArgument, legal && (!legal->exact || same), label(written), " of method '",
                  call.method->info.name, "' must not share memory with ", label(other),
                  ": the run writes one while it needs the other", legal ? "; only the very same memory would do" : "");
    }
  }
}

void Binder::return_copies(const PreparedCall& call, std::span<const Value> inputs) {
  const Plan& plan = call.plan();
  const std::vector<std::byte*>& bases = call.entry->bases;
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& a = plan.allocations[id];
    if (!a.mutated || !bases[id] || inputs[a.index].tensor.data == bases[id]) continue;
    std::memcpy(inputs[a.index].tensor.data, bases[id], static_cast<std::size_t>(a.bytes));
    ++counters_.io_copies;
    counters_.io_bytes_copied += static_cast<std::uint64_t>(a.bytes);
  }
}

void Binder::clear() {
  copies_.clear();
  counters_.staging_bytes = 0;
}

}  // namespace graft
