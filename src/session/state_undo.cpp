#include "session/state_undo.h"

#include <cstring>

#include "kernel/attention/cached_attention.h"

namespace graft {

void StateUndo::keep(std::byte* from, std::size_t bytes) {
  kept_.push_back({from, bytes_.size(), bytes});
  bytes_.insert(bytes_.end(), from, from + bytes);
}

void StateUndo::keep(const LoadedMethod& method, const Plan& plan, std::span<const std::int64_t> rows) {
  for (const Launch& launch : plan.launches) {
    if (launch.kernel != &kRingStore) continue;
    const std::int64_t batch = launch.inputs[2].size(0);       // of the positions
    if (!rows.empty() && std::ssize(rows) != batch) continue;  // the run will refuse it
    for (const Tensor& ring : launch.outputs) {
      const std::uint32_t state = method.states[plan.buffers[ring.buffer].index];
      const TensorDesc desc = states_.desc(state);
      const std::size_t row_bytes = desc.byte_count() / static_cast<std::size_t>(desc.shape[0]);
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t row = rows.empty() ? b : rows[static_cast<std::size_t>(b)];
        if (row < 0 || row >= desc.shape[0]) continue;  // the run will refuse it
        keep(states_.data(state) + static_cast<std::size_t>(row) * row_bytes, row_bytes);
      }
    }
  }
}

void StateUndo::restore() noexcept {
  for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept)
    std::memcpy(kept->to, bytes_.data() + kept->at, kept->bytes);
  clear();
}

void StateUndo::clear() {
  kept_.clear();
  bytes_.clear();
}

}  // namespace graft
