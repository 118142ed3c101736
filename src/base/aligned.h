#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace graft {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Uninitialised memory aligned to kAlignment; never null, even for 0 bytes. Throws OutOfMemory.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  AlignedMemory(AlignedMemory&&) noexcept = default;
  AlignedMemory& operator=(AlignedMemory&&) noexcept = default;
  explicit AlignedMemory(std::size_t bytes) : AlignedMemory(bytes, kAlignment) {}

  // For memory that is filled completely: on huge pages where the system has them, which need fewer page faults to
  // write and fewer TLB entries to read. The last, partial huge page is left to small pages, so that no memory is
  // wasted.
  static AlignedMemory on_huge_pages(std::size_t bytes) {
    if (bytes < kHugePage) return AlignedMemory(bytes);
    AlignedMemory memory(bytes, kHugePage);
    // Only a hint: if refused, the pages are small.
    ::madvise(memory.data(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return memory;
  }

  // Memory of a mapped file, which `owner` keeps: it must not be written.
  static AlignedMemory of_file(std::shared_ptr<const void> owner, std::span<const std::byte> bytes) {
    AlignedMemory memory;
    // An alias of the owner, which nobody writes through.
    memory.data_ = {std::const_pointer_cast<void>(std::move(owner)), const_cast<std::byte*>(bytes.data())};
    memory.bytes_ = bytes.size();
    memory.in_file_ = true;
    return memory;
  }

  // Several buffers in one block, which lives as long as any of them: this puts even those smaller than a huge page on
  // one.
  static std::vector<AlignedMemory> together_on_huge_pages(std::span<const std::size_t> sizes) {
    const auto place = [](std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
    std::size_t all = 0;
    for (const std::size_t bytes : sizes) all += place(bytes);
    const AlignedMemory block = on_huge_pages(all);
    std::vector<AlignedMemory> buffers(sizes.size());
    std::size_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers[i].data_ = {block.data_, block.data() + begin};
      buffers[i].bytes_ = sizes[i];
      begin += place(sizes[i]);
    }
    return buffers;
  }

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }
  bool in_file() const { return in_file_; }

 private:
  AlignedMemory(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
    const std::size_t rounded = (bytes + alignment) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)), std::free);
    GRAFT_CHECK(OutOfMemory, data_, "cannot allocate ", bytes, " bytes");
  }

  std::shared_ptr<std::byte> data_;  // shared by all buffers of a block
  std::size_t bytes_ = 0;
  bool in_file_ = false;
};

}  // namespace graft
