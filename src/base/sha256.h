#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "graft/export.h"

namespace graft {

// SHA-256 (FIPS 180-4) of `data`.
GRAFT_API std::array<std::uint8_t, 32> sha256(std::span<const std::byte> data);

// The same of data that comes in parts.
class GRAFT_API Sha256 {
 public:
  void add(std::span<const std::byte> part);
  // Of all parts. No part may follow.
  std::array<std::uint8_t, 32> digest();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> rest_{};  // of the parts, what fills no block yet
  std::uint64_t bytes_ = 0;
};

// "9f86d081..."
GRAFT_API std::string hex_of(std::span<const std::uint8_t> bytes);

}  // namespace graft
