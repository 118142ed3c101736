#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"

namespace graft {

// Memory for values passed between segments of a method, for its results, and for padded inputs. A block returns to the
// pool when the last value in it is dropped, on any thread.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Never null.
  std::shared_ptr<void> take(std::size_t bytes);
  // A tensor in a block that it owns.
  Value tensor(DType dtype, const Shape& shape);

 private:
  static constexpr std::size_t kMostFree = 64;
  void give(AlignedMemory memory) noexcept;

  std::mutex mutex_;
  std::vector<AlignedMemory> free_;
};

}  // namespace graft
