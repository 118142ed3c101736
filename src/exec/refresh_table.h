#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace graft {

// Pointers by the allocation whose base address they depend on: one entry per operand.
class RefreshTable {
 public:
  // The plan must outlive the table.
  explicit RefreshTable(const Plan& plan) : plan_(plan) {}

  // `slot` will hold the address `offset` bytes into the buffer; it must not move.
  void add(BufferId buffer, void** slot, std::int64_t offset);
  // Groups the entries by allocation: after the last add(), before the first rewrite().
  void seal();

  // Rewrites the addresses relative to this base of an allocation (null: null); returns how many.
  std::size_t rewrite(std::uint32_t allocation, std::byte* base) const;

  std::size_t bytes() const;

 private:
  struct Entry {
    std::uint32_t allocation;
    void** slot;
    std::int64_t offset;
  };
  const Plan& plan_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> first_;  // entries of id i: [first_[i], first_[i + 1])
};

}  // namespace graft
