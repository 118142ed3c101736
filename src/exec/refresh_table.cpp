#include "exec/refresh_table.h"

#include <algorithm>

namespace graft {

void RefreshTable::add(BufferId buffer, void** slot, std::int64_t offset) {
  const Buffer& b = plan_.buffers[buffer];
  entries_.push_back({b.allocation, slot, b.offset + offset});
}

void RefreshTable::seal() {
  std::ranges::stable_sort(entries_, {}, &Entry::allocation);
  entries_.shrink_to_fit();
  first_.assign(plan_.allocations.size() + 1, 0);
  for (const Entry& entry : entries_) ++first_[entry.allocation + 1];
  for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

std::size_t RefreshTable::rewrite(std::uint32_t allocation, std::byte* base) const {
  for (std::uint32_t e = first_[allocation]; e < first_[allocation + 1]; ++e)
    *entries_[e].slot = base ? base + entries_[e].offset : nullptr;
  return first_[allocation + 1] - first_[allocation];
}

std::size_t RefreshTable::bytes() const {
  return entries_.capacity() * sizeof(Entry) + first_.capacity() * sizeof(std::uint32_t);
}

}  // namespace graft
