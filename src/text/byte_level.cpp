#include "text/byte_level.h"

#include "text/unicode.h"

namespace graft::text {
namespace {

bool stands_for_itself(unsigned byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD); }

struct Tables {
  std::array<std::string, 256> chars;
  std::array<int, 512> bytes{};  // by character; -1: none

  Tables() {
    bytes.fill(-1);
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const unsigned c = stands_for_itself(byte) ? byte : next++;
      append_char(chars[byte], c);
      bytes[c] = static_cast<int>(byte);
    }
  }
};

const Tables& tables() {
  static const Tables made;
  return made;
}

}  // namespace

const std::array<std::string, 256>& byte_level_chars() { return tables().chars; }

std::string to_byte_level(std::string_view bytes) {
  const auto& chars = tables().chars;
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char byte : bytes) out += chars[static_cast<unsigned char>(byte)];
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  const auto& bytes = tables().bytes;
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c >= bytes.size() || bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(bytes[c]);
  }
  return out;
}

}  // namespace graft::text
