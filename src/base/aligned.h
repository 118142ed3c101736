#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace graft {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Uninitialised memory aligned to kAlignment; never null, even for 0 bytes. Throws SystemError.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes) : AlignedMemory(bytes, kAlignment) {}

  // For memory that is written as a whole: on huge pages where the system has them, which take fewer faults to write
  // and fewer entries of the translation cache to read. Their granularity adds nothing: the rest of the last one is not
  // asked for.
  static AlignedMemory on_huge_pages(std::size_t bytes) {
    if (bytes < kHugePage) return AlignedMemory(bytes);
    AlignedMemory memory(bytes, kHugePage);
    // A wish: where it is refused, the pages are small.
    ::madvise(memory.data(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return memory;
  }

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  AlignedMemory(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
    const std::size_t rounded = (bytes + alignment) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    GRAFT_CHECK(SystemError, data_, "cannot allocate ", bytes, " bytes");
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace graft
