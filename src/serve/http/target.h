#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace graft::serve {

// ASCII letters in lower case.
std::string http_lower(std::string text);

// The target of a request, "/path%20x?query": its path, percent-decoded, and its query as it is. False for one that has
// no path, a damaged escape, or control characters.
bool split_target(std::string_view target, std::string& path, std::string& query);

// Percent escapes replaced by their bytes; empty when one is damaged.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace graft::serve
