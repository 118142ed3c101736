#include "serve/http/target.h"

#include <algorithm>
#include <charconv>

namespace graft::serve {

std::string http_lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned byte = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const char* begin = text.data() + i + 1;
    if (std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

bool split_target(std::string_view target, std::string& path, std::string& query) {
  if (!target.starts_with('/')) return false;
  const std::size_t mark = target.find('?');
  query = mark == std::string_view::npos ? "" : std::string(target.substr(mark + 1));
  const auto decoded = percent_decoded(target.substr(0, mark));
  if (!decoded) return false;
  path = *decoded;
  return std::ranges::none_of(path, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace graft::serve
