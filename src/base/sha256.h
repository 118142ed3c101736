#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace graft {

// SHA-256 (FIPS 180-4) of `data`.
std::array<std::uint8_t, 32> sha256(std::span<const std::byte> data);

}  // namespace graft
