#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "load/program_impl.h"
#include "weight/weights.h"

namespace graft {

// Gives the weights of a program their addresses while it is loaded: where they were found, or in memory made here,
// once for all methods. Counts in the program's stats.
class WeightPlacer {
 public:
  // `program` keeps what is made.
  WeightPlacer(bool verify_hashes, ProgramImpl& program) : verify_hashes_(verify_hashes), program_(program) {}

  // The bytes of a weight and how they are stored. Throws what `find` throws, Unsupported for storage that graft does
  // not read, InvalidProgram for a wrong hash.
  FoundWeight find(const ir::Weight& weight, const FindWeight& find);
  // The address to read the weight at as it is stored: where it was found if its alignment allows, else in a copy.
  std::byte* as_stored(const ir::Weight& weight, const FoundWeight& found);
  // Blocks that our kernels want in panels: where they were found as such, else laid out there, and the pages they were
  // found in are released. `weight` says so.
  std::byte* in_panels(ir::Weight& weight, const FoundWeight& found);
  // The same values as elements of f32.
  std::byte* converted(const ir::Weight& weight, const FoundWeight& found);

 private:
  using Bytes = std::span<const std::byte>;
  using Key = std::pair<const std::byte*, std::size_t>;  // found bytes

  std::byte* keep(AlignedMemory memory);
  std::byte* as_blocks(const ir::Weight& weight, const FoundWeight& found);

  const bool verify_hashes_;
  ProgramImpl& program_;
  std::map<const std::byte*, Bytes, std::less<>> placed_;
  std::map<std::pair<std::vector<std::uint8_t>, std::size_t>, Bytes> tied_;  // by content
  std::map<Key, std::byte*> copies_;
  std::map<Key, std::byte*> conversions_;
  std::map<Key, std::byte*> panels_;
};

}  // namespace graft
