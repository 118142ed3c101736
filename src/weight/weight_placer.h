#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"
#include "weight/packed_store.h"
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
  // Looks there for what is made, and keeps it there. `hash_content`: weights without a file are found by the SHA-256
  // of their bytes, which reads them. `store` must outlive the placer; null: nowhere.
  void use(PackedStore* store, bool hash_content) {
    store_ = store;
    hash_content_ = hash_content;
  }
  // What tells the bytes of a weight from all others, for PackedStore::digest: the SHA-256 that the package states of
  // its own data, or the file and the place there. nullopt: not known.
  std::optional<std::string> content(const ir::Weight& weight, const FoundWeight& found);
  // Whether the bytes are those that `content` tells, which reads them: what others will find by it must be right.
  bool confirm(const ir::Weight& weight, const FoundWeight& found);
  const std::string& unconfirmed() const { return unconfirmed_; }  // the last weight that was not; "": all were

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
  // The memory of `bytes` made of these, once: by this program before, by another one, by another process, or by `make`
  // now. `how`: what it is.
  std::byte* made(MadeWeights::Map& known, std::string_view how, const ir::Weight& weight, const FoundWeight& found,
                  std::size_t bytes, const std::function<AlignedMemory()>& make);
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
  PackedStore* store_ = nullptr;
  bool hash_content_ = false;
  std::map<const std::byte*, std::string> hashed_;  // contents by address
  std::map<const std::byte*, bool> confirmed_;
  std::string unconfirmed_;
};

}  // namespace graft
