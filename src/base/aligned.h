#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace graft {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

// Uninitialised memory aligned to kAlignment; never null, even for 0 bytes. Throws SystemError.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes) : bytes_(bytes) {
    const std::size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    GRAFT_CHECK(SystemError, data_, "cannot allocate ", bytes, " bytes");
  }
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace graft
