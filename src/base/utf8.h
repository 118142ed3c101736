#pragma once

#include <string_view>

namespace graft {

// Whether the text is well-formed UTF-8 (RFC 3629: no surrogates, nothing longer than needed).
bool is_utf8(std::string_view text);

}  // namespace graft
