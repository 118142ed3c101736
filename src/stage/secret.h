#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "graft/export.h"

namespace graft::stage {

using Digest = std::array<std::uint8_t, 32>;

// HMAC-SHA256 (RFC 2104) of the parts, one after the other.
GRAFT_API Digest hmac_sha256(std::string_view key, std::initializer_list<std::span<const std::byte>> parts);

// In a time that does not depend on where they differ.
bool equal(const Digest& a, const Digest& b);

// Of the system's generator. Throws SystemError.
Digest random_bytes();

// The secret in a file: its content without the end of the line. Throws InvalidArgument for one that others than its
// owner can read, and for fewer than 16 bytes; SystemError and NotFound for one that cannot be read.
GRAFT_API std::string read_secret(const std::string& path);

}  // namespace graft::stage
