#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

// GPT-2's way of writing bytes as characters that are letters or signs: printable bytes stand for themselves, the other
// ones for U+0100 and up.
namespace graft::text {

// What the 256 bytes are written as, in UTF-8.
const std::array<std::string, 256>& byte_level_chars();
std::string to_byte_level(std::string_view bytes);
// Empty when a character is none of the 256.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace graft::text
