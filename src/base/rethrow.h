#pragma once

#include <string>

#include "graft/error.h"

namespace graft {

// Throws an error that is being handled again, with its own type and `prefix` in front of its message. The error itself
// is nested in the new one (std::rethrow_if_nested).
[[noreturn]] void rethrow_with(const std::string& prefix, const Error& error);

}  // namespace graft
