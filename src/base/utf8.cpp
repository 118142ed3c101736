#include "base/utf8.h"

#include <cstdint>

namespace graft {

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<std::uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    // 0xC0, 0xC1 and lead bytes above 0xF4 are invalid.
    const int more = lead >= 0xC2 && lead <= 0xDF   ? 1
                     : (lead & 0xF0) == 0xE0        ? 2
                     : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                    : 0;
    if (more == 0 || text.size() - i < static_cast<std::size_t>(more)) return false;
    std::uint32_t code = lead & (0x3Fu >> more);
    for (int k = 0; k < more; ++k) {
      const auto next = static_cast<std::uint8_t>(text[i++]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3Fu);
    }
    if ((more == 2 && (code < 0x800 || (code >= 0xD800 && code <= 0xDFFF))) ||
        (more == 3 && (code < 0x10000 || code > 0x10FFFF)))
      return false;
  }
  return true;
}

}  // namespace graft
