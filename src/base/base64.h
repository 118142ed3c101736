#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graft/export.h"

namespace graft {

// The bytes of a text in base64 (RFC 4648), with padding or without; empty for another text.
GRAFT_API std::optional<std::string> from_base64(std::string_view text);

}  // namespace graft
