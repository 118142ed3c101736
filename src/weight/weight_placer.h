#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"
#include "weight/weights.h"

namespace graft {

// Copies, conversions and packed weights, by the bytes they were made from, as long as somebody holds them.
struct MadeWeights {
  using Memory = std::shared_ptr<const AlignedMemory>;
  using Key = std::pair<const void*, std::size_t>;
  using Map = std::map<Key, std::weak_ptr<const AlignedMemory>>;
  Map copies, conversions, panels;
};

// Assigns the weights of a program their addresses during load: in the files they were found in, or in memory allocated
// here, once for all methods and for all programs that share `MadeWeights`.
class WeightPlacer {
 public:
  // Packs with that many threads; `made` keeps the memory, `stats` counts. Both must outlive the placer.
  WeightPlacer(bool verify_hashes, int threads, std::vector<MadeWeights::Memory>& made, ProgramStats& stats)
      : verify_hashes_(verify_hashes), threads_(threads), made_(made), stats_(stats) {}
  // What other programs have made of the same bytes is used. `shared` must outlive the placer, and nobody else may use
  // it meanwhile.
  // `identity` says what stands for the bytes of a weight there; null: their address does.
  using Identity = std::function<const void*(const ir::Weight& weight, const FoundWeight& found)>;
  void share(MadeWeights& shared, Identity identity = nullptr) {
    shared_ = &shared;
    identity_ = std::move(identity);
  }
  const void* identity(const ir::Weight& weight, const FoundWeight& found) const {
    return identity_ ? identity_(weight, found) : found.bytes.data();
  }

  // The bytes of a weight and how they are stored. Throws what `find` throws, Unsupported for unknown storage,
  // InvalidProgram for a wrong hash.
  FoundWeight find(const ir::Weight& weight, const FindWeight& find);
  // The address of the weight as it is stored: in place if its alignment allows, else a copy.
  std::byte* as_stored(const ir::Weight& weight, const FoundWeight& found);
  // Blocks that graft's kernels read in panels: in place if the file has panels, else packed here, and the file's pages
  // released. Sets the weight's storage.
  std::byte* in_panels(ir::Weight& weight, const FoundWeight& found);
  // What `find` has found, where it lies.
  std::vector<std::span<const std::byte>> placed() const;
  // The values converted to f32.
  std::byte* converted(const ir::Weight& weight, const FoundWeight& found);

 private:
  using Bytes = std::span<const std::byte>;
  // The memory made of these bytes, once: by this program before, by another one, or by `make` now.
  std::byte* made(MadeWeights::Map& known, const ir::Weight& weight, const FoundWeight& found,
                  const std::function<AlignedMemory()>& make);
  std::byte* as_blocks(const ir::Weight& weight, const FoundWeight& found);

  const bool verify_hashes_;
  const int threads_;
  std::vector<MadeWeights::Memory>& made_;
  ProgramStats& stats_;
  std::map<const std::byte*, Bytes, std::less<>> placed_;
  std::map<std::pair<std::vector<std::uint8_t>, std::size_t>, Bytes> tied_;  // by content
  MadeWeights own_;
  MadeWeights* shared_ = &own_;
  Identity identity_;
};

}  // namespace graft
