#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace graft {

// Which pointers depend on the base address of which allocation: one entry per operand.
class RefreshTable {
 public:
  // The plan must outlive the table.
  explicit RefreshTable(const Plan& plan) : plan_(plan) {}

  // `slot` shall hold the address `offset` bytes into the buffer, and stays where it is.
  void add(BufferId buffer, void** slot, std::int64_t offset);
  // Groups the entries by allocation: after the last add(), before the first rewrite().
  void seal();

  // Writes the addresses that follow from this base of an allocation (null: null); returns how many there are.
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
