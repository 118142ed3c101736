#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"

namespace graft {

// Memory for values passed between segments of a method or stages of a flow, for results, and for padded inputs. A
// block returns to the pool when the last value in it is dropped, on any thread. Taking a block that is there allocates
// nothing.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Never null.
  std::shared_ptr<void> take(std::size_t bytes);
  // A tensor in a block that it owns.
  Value tensor(DType dtype, const Shape& shape);

  // Blocks that were allocated because none of the pool's fitted, since it was made.
  struct Made {
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  Made made() const;

 private:
  static constexpr std::size_t kMostFree = 64;
  // In front of a block's data: the control block of its owners.
  static constexpr std::size_t kHeader = 2 * kAlignment;

  struct Block {
    explicit Block(std::size_t bytes) : memory(kHeader + bytes) {}
    std::size_t size() const { return memory.size() - kHeader; }
    AlignedMemory memory;
  };

  // Puts the control block into the header. When it is freed, nothing refers to the block any more.
  template <typename T>
  struct InHeader {
    using value_type = T;
    InHeader(std::shared_ptr<BlockPool> from, Block* taken) : pool(std::move(from)), block(taken) {}
    template <typename U>
    InHeader(const InHeader<U>& other) : pool(other.pool), block(other.block) {}
    T* allocate(std::size_t) {
      static_assert(sizeof(T) <= kHeader && alignof(T) <= kAlignment);
      return reinterpret_cast<T*>(block->memory.data());
    }
    void deallocate(T*, std::size_t) noexcept { pool->give(block); }
    bool operator==(const InHeader& other) const { return block == other.block; }

    std::shared_ptr<BlockPool> pool;
    Block* block;  // out of the pool: of this control block
  };

  void give(Block* block) noexcept;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_;
  Made made_;
};

}  // namespace graft
