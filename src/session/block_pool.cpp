#include "session/block_pool.h"

#include <utility>

namespace graft {

std::shared_ptr<void> BlockPool::take(std::size_t bytes) {
  AlignedMemory memory;
  {
    const std::lock_guard lock(mutex_);
    std::size_t best = free_.size();
    for (std::size_t i = 0; i < free_.size(); ++i)
      if (free_[i].size() >= bytes && (best == free_.size() || free_[i].size() < free_[best].size())) best = i;
    // A caller may keep a result for long, so it must not hold a block far larger than itself.
    if (best < free_.size() && free_[best].size() <= 2 * bytes + 4096) {
      memory = std::move(free_[best]);
      free_[best] = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!memory.data()) memory = AlignedMemory(bytes);
  struct Block {
    std::shared_ptr<BlockPool> pool;
    AlignedMemory memory;
    Block(std::shared_ptr<BlockPool> from, AlignedMemory taken) : pool(std::move(from)), memory(std::move(taken)) {}
    ~Block() { pool->give(std::move(memory)); }
  };
  auto block = std::make_shared<Block>(shared_from_this(), std::move(memory));
  void* data = block->memory.data();
  return {std::move(block), data};
}

Value BlockPool::tensor(DType dtype, const Shape& shape) {
  Value out = Value::of(TensorView{nullptr, dtype, shape});
  out.owner = take(TensorDesc(dtype, shape).byte_count());
  out.tensor.data = out.owner.get();
  return out;
}

void BlockPool::give(AlignedMemory memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.capacity() == 0) free_.reserve(kMostFree);
  if (free_.size() < kMostFree) free_.push_back(std::move(memory));
}

}  // namespace graft
