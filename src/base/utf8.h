#pragma once

#include <string_view>

#include "graft/export.h"

namespace graft {

// Whether the text is well-formed UTF-8 (RFC 3629: no surrogates, nothing longer than needed).
GRAFT_API bool is_utf8(std::string_view text);

}  // namespace graft
