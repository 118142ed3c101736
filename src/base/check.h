#pragma once

#include <sstream>
#include <string>

#include "graft/error.h"

namespace graft {

// str("got ", n, " of ", m): the arguments, concatenated.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // without memory it throws, instead of leaving the rest out
  (out << ... << parts);
  return std::move(out).str();
}

[[noreturn]] GRAFT_API void assertion_failed(const char* condition, const char* file, int line);

}  // namespace graft

// A bug in graft, not an error of the user: throws std::logic_error, so that a server survives it.
#define GRAFT_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::graft::assertion_failed(#condition, __FILE__, __LINE__))

// A user error: throws the typed error with the parts as its message.
#define GRAFT_CHECK(ErrorType, condition, ...)                    \
  do {                                                            \
    if (!(condition)) throw ErrorType(::graft::str(__VA_ARGS__)); \
  } while (false)
