#include "base/rethrow.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace graft {
namespace {

template <typename... Errors>
struct ErrorTypes {};

// Derived classes come before their bases.
using TypedErrors = ErrorTypes<Unavailable, Busy, InvalidArgument, InvalidProgram, Unsupported, NotFound, OutOfMemory,
                               SystemError, ExecutionError, Cancelled, InternalError>;

template <typename... Errors>
[[noreturn]] void rethrow(const std::string& message, const Error& error, ErrorTypes<Errors...>) {
  const auto throw_as = [&]<typename E>(const E* typed) {
    if (typed != nullptr) std::throw_with_nested(E(message));
  };
  (throw_as(dynamic_cast<const Errors*>(&error)), ...);
  std::throw_with_nested(Error(message));
}

// Made while there is memory: copies of it share the message.
const OutOfMemory kOutOfMemory("not enough memory");

std::string name_of(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                    std::free);
  return name ? name.get() : type.name();
}

[[noreturn]] void throw_internal(const std::string& what) {
  std::throw_with_nested(InternalError("internal error of graft, please report it: " + what));
}

}  // namespace

void rethrow_with(const std::string& prefix, const Error& error) {
  rethrow(prefix + error.what(), error, TypedErrors{});
}

void rethrow_typed() {
  try {
    try {
      throw;
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const CallerException& caller) {
      std::rethrow_exception(caller.exception);
    } catch (const abi::__forced_unwind&) {  // of a thread that is cancelled, which must go on
      throw;
    } catch (const std::exception& error) {
      throw_internal(name_of(typeid(error)) + ": " + error.what());
    } catch (...) {
      const std::type_info* type = abi::__cxa_current_exception_type();
      throw_internal("an exception of type " + (type != nullptr ? name_of(*type) : "unknown"));
    }
  } catch (const std::bad_alloc&) {  // of the handlers too
    throw OutOfMemory(kOutOfMemory);
  }
}

std::exception_ptr typed_exception() noexcept {
  try {
    rethrow_typed();
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace graft
