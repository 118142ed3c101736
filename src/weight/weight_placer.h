#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"
#include "weight/weights.h"

namespace graft {

// Assigns the weights of a program their addresses during load: in the files they were found in, or in memory allocated
// here, once for all methods.
class WeightPlacer {
 public:
  // Packs with that many threads; `made` owns the memory, `stats` counts. Both must outlive the placer.
  WeightPlacer(bool verify_hashes, int threads, std::vector<AlignedMemory>& made, ProgramStats& stats)
      : verify_hashes_(verify_hashes), threads_(threads), made_(made), stats_(stats) {}

  // The bytes of a weight and how they are stored. Throws what `find` throws, Unsupported for unknown storage,
  // InvalidProgram for a wrong hash.
  FoundWeight find(const ir::Weight& weight, const FindWeight& find);
  // The address of the weight as it is stored: in place if its alignment allows, else a copy.
  std::byte* as_stored(const ir::Weight& weight, const FoundWeight& found);
  // Blocks that graft's kernels read in panels: in place if the file has panels, else packed here, and the file's pages
  // released. Sets the weight's storage.
  std::byte* in_panels(ir::Weight& weight, const FoundWeight& found);
  // The values converted to f32.
  std::byte* converted(const ir::Weight& weight, const FoundWeight& found);

 private:
  using Bytes = std::span<const std::byte>;
  using Key = std::pair<const std::byte*, std::size_t>;  // found bytes

  std::byte* keep(AlignedMemory memory);
  std::byte* as_blocks(const ir::Weight& weight, const FoundWeight& found);

  const bool verify_hashes_;
  const int threads_;
  std::vector<AlignedMemory>& made_;
  ProgramStats& stats_;
  std::map<const std::byte*, Bytes, std::less<>> placed_;
  std::map<std::pair<std::vector<std::uint8_t>, std::size_t>, Bytes> tied_;  // by content
  std::map<Key, std::byte*> copies_;
  std::map<Key, std::byte*> conversions_;
  std::map<Key, std::byte*> panels_;
};

}  // namespace graft
