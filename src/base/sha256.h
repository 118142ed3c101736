#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "graft/export.h"

namespace graft {

// SHA-256 (FIPS 180-4) of `data`.
GRAFT_API std::array<std::uint8_t, 32> sha256(std::span<const std::byte> data);

}  // namespace graft
