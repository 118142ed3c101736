#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

// GPT-2's mapping of bytes to printable characters: printable bytes map to themselves, the others to U+0100 and up.
namespace graft::text {

// The characters of the 256 bytes, in UTF-8.
const std::array<std::string, 256>& byte_level_chars();
std::string to_byte_level(std::string_view bytes);
// Empty when a character is none of the 256.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace graft::text
