#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "session/session_impl.h"

// The addresses of a run: every allocation of the plan gets its base.
namespace graft {
namespace {

std::uint32_t frozen_key(std::uint32_t method, std::uint32_t input) { return method << 16 | input; }

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void Session::freeze_input(std::string_view name, std::size_t input) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::uint32_t method = impl_->loaded().find(name);
  const MethodInfo& info = impl_->loaded().methods[method].info;
  GRAFT_CHECK(InvalidArgument, input < info.inputs.size() && info.inputs[input].kind == Value::Kind::tensor, "input ",
              input, " of method '", name, "' must be one of its tensors; it has ", info.inputs.size(), " inputs");
  impl_->frozen.emplace_back(frozen_key(method, static_cast<std::uint32_t>(input)), nullptr);
}

std::byte* Session::Impl::input_base(const LoadedMethod& method, std::uint32_t method_index, std::uint32_t index,
                                     std::span<const Value> inputs) {
  const TensorView& tensor = inputs[index].tensor;
  const std::size_t bytes = input_descs[index].desc.byte_count();
  if (bytes == 0) return nullptr;
  for (auto& [input, address] : frozen) {
    if (input != frozen_key(method_index, index)) continue;
    if (!address) address = static_cast<std::byte*>(tensor.data);
#ifndef NDEBUG
    GRAFT_CHECK(InvalidArgument, address == tensor.data, "input ", index, " of method '", method.info.name,
                "' is frozen at ", static_cast<void*>(address), ", and was given at ", tensor.data);
#endif
    return address;
  }
  GRAFT_CHECK(InvalidArgument, tensor.data, "input ", index, " of method '", method.info.name, "' (",
              input_descs[index].desc.str(), ") has no data: its pointer is null");
  if (is_aligned(tensor.data, tensor.dtype)) return static_cast<std::byte*>(tensor.data);
  GRAFT_CHECK(InvalidArgument, !options.strict_zero_copy, "input ", index, " of method '", method.info.name,
              "' must be aligned to ", byte_size(tensor.dtype), " bytes (strict_zero_copy), its address is ",
              tensor.data);
  if (staging.size() <= index) staging.resize(index + 1);
  if (staging[index].size() < bytes) {
    log(LogLevel::info, str("input ", index, " of method '", method.info.name, "' is copied: its address ", tensor.data,
                            " is not a multiple of ", byte_size(tensor.dtype)));
    counters.staging_bytes += bytes - staging[index].size();
    staging[index] = AlignedMemory(bytes);
  }
  std::memcpy(staging[index].data(), tensor.data, bytes);
  ++counters.io_copies;
  counters.io_bytes_copied += bytes;
  return staging[index].data();
}

std::byte* Session::Impl::arena_base(std::int64_t bytes, const RunOptions& run_options) {
  const auto needed = static_cast<std::size_t>(bytes);
  if (run_options.arena.data()) {
    const std::span<std::byte> lent = run_options.arena;
    GRAFT_CHECK(InvalidArgument, lent.size() >= needed, "the lent arena must have at least ", needed, " bytes, it has ",
                lent.size());
    GRAFT_CHECK(InvalidArgument, reinterpret_cast<std::uintptr_t>(lent.data()) % kAlignment == 0,
                "the lent arena must be aligned to ", kAlignment, " bytes, its address is ",
                static_cast<void*>(lent.data()));
    return lent.data();
  }
  AlignedMemory& memory = Internal::of(*arena).memory;
  if (!memory.data() || memory.size() < needed) {
    memory = AlignedMemory();  // the old block goes first, so that the peak is the new one alone
    memory = AlignedMemory(needed);
    ++counters.arena_allocations;
  }
  counters.arena_bytes = memory.size();
  return memory.data();
}

void Session::Impl::check_overlaps(const Graph& graph) const {
  const Plan& plan = graph.executable->plan();
  const std::string& method = loaded().methods[graph.method].info.name;
  const auto is_written = [&](const Allocation& a) { return a.segment == Segment::output || a.mutated; };
  const auto label = [](const Allocation& a) { return str(name(a.segment), " ", a.index); };
  for (std::uint32_t w = 0; w < plan.allocations.size(); ++w) {
    const Allocation& written = plan.allocations[w];
    if (!is_written(written) || !graph.bases[w]) continue;
    for (std::uint32_t o = 0; o < plan.allocations.size(); ++o) {
      const Allocation& other = plan.allocations[o];
      if (o == w || !graph.bases[o] || (is_written(other) && o < w)) continue;
      if (other.segment == Segment::weight || other.segment == Segment::constant) continue;
      if (!overlap(graph.bases[w], written.bytes, graph.bases[o], other.bytes)) continue;
      const Alias* legal = nullptr;
      for (const Alias& alias : plan.aliases)
        if (alias.output == w && alias.input == o) legal = &alias;
      const bool same = graph.bases[w] == graph.bases[o] && written.bytes == other.bytes;
      GRAFT_CHECK(InvalidArgument, legal && (!legal->exact || same), label(written), " of method '", method,
                  "' must not share memory with ", label(other), ": the run writes one while it needs the other",
                  legal ? "; only the very same memory would do" : "");
    }
  }
}

void Session::Impl::return_staged(const Graph& graph, std::span<const Value> inputs) {
  const Plan& plan = graph.executable->plan();
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& a = plan.allocations[id];
    if (!a.mutated || !graph.bases[id] || inputs[a.index].tensor.data == graph.bases[id]) continue;
    std::memcpy(inputs[a.index].tensor.data, graph.bases[id], static_cast<std::size_t>(a.bytes));
    ++counters.io_copies;
    counters.io_bytes_copied += static_cast<std::uint64_t>(a.bytes);
  }
}

void Session::Impl::bind(Graph& graph, std::span<const Value> inputs, std::span<std::byte* const> output_data,
                         const RunOptions& run_options) {
  const LoadedMethod& method = loaded().methods[graph.method];
  const Plan& plan = graph.executable->plan();
  std::byte* arena_memory = arena_base(plan.arena_bytes, run_options);
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& allocation = plan.allocations[id];
    std::byte*& base = graph.bases[id];
    switch (allocation.segment) {
      case Segment::weight:
        base = method.weights[allocation.index];
        break;
      case Segment::constant:
        base = method.constants[allocation.index].memory->data();
        break;
      case Segment::state:
        base = state(method.states[allocation.index]);
        break;
      case Segment::arena:
        base = arena_memory;
        break;
      case Segment::input:
        base = input_base(method, graph.method, allocation.index, inputs);
        break;
      case Segment::output:
        base = output_data[allocation.index];
        break;
    }
  }
  counters.rewrites += graph.executable->bind(graph.bases);
  if (graph.executable->last_level() != RefreshLevel::none) check_overlaps(graph);
}

}  // namespace graft
