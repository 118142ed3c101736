#include "base/rethrow.h"

#include <exception>

namespace graft {
namespace {

template <typename... Errors>
struct ErrorTypes {};

using TypedErrors =
    ErrorTypes<Busy, InvalidArgument, InvalidProgram, Unsupported, NotFound, SystemError, ExecutionError, Cancelled>;

template <typename... Errors>
[[noreturn]] void rethrow(const std::string& message, const Error& error, ErrorTypes<Errors...>) {
  const auto throw_as = [&]<typename E>(const E* typed) {
    if (typed != nullptr) std::throw_with_nested(E(message));
  };
  (throw_as(dynamic_cast<const Errors*>(&error)), ...);
  std::throw_with_nested(Error(message));
}

}  // namespace

void rethrow_with(const std::string& prefix, const Error& error) {
  rethrow(prefix + error.what(), error, TypedErrors{});
}

}  // namespace graft
