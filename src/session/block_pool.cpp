#include "session/block_pool.h"

#include <utility>

namespace graft {

std::shared_ptr<void> BlockPool::take(std::size_t bytes) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard lock(mutex_);
    free_.reserve(kMostFree);  // give() must not allocate
    std::size_t best = free_.size();
    for (std::size_t i = 0; i < free_.size(); ++i)
      if (free_[i]->size() >= bytes && (best == free_.size() || free_[i]->size() < free_[best]->size())) best = i;
    // A caller may keep a result for long, so it must not hold a block far larger than itself.
    if (best < free_.size() && free_[best]->size() <= 2 * bytes + 4096) {
      block = std::move(free_[best]);
      free_[best] = std::move(free_.back());
      free_.pop_back();
    } else {
      ++made_.blocks;
      made_.bytes += bytes;
    }
  }
  if (!block) block = std::make_unique<Block>(bytes);
  std::byte* const data = block->memory.data() + kHeader;
  return {static_cast<void*>(data), [](void*) {}, InHeader<std::byte>(shared_from_this(), block.release())};
}

Value BlockPool::tensor(DType dtype, const Shape& shape) {
  Value out = Value::of(TensorView{nullptr, dtype, shape});
  out.owner = take(TensorDesc(dtype, shape).byte_count());
  out.tensor.data = out.owner.get();
  return out;
}

BlockPool::Made BlockPool::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

void BlockPool::give(Block* block) noexcept {
  std::unique_ptr<Block> given(block);
  const std::lock_guard lock(mutex_);
  if (free_.size() < kMostFree) free_.push_back(std::move(given));
}

}  // namespace graft
