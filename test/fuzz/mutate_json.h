#pragma once

#include <span>
#include <string>
#include <string_view>

#include "random.h"

namespace graft::fuzz {

inline constexpr std::size_t kMaxText = 32768;

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Blob blob_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string mutate_bytes_of(const std::string& text, Random& random) {
  return text_of(mutate_bytes(std::as_bytes(std::span(text)), random));
}

// What a mutation of JSON puts in: values, as JSON, and names of members.
struct JsonWords {
  std::span<const char* const> values, names;
};

// Changes values, names and nesting of a document; a text that is none is mutated byte by byte.
std::string mutate_json(const std::string& text, Random& random, const JsonWords& words);

}  // namespace graft::fuzz
