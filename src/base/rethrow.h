#pragma once

#include <exception>
#include <new>
#include <string>

#include "graft/error.h"

// What leaves public functions: errors of graft's, and exceptions of the caller's own functions.
namespace graft {

// Throws an error that is being handled again, with its own type and `prefix` in front of its message. The error itself
// is nested in the new one (std::rethrow_if_nested).
[[noreturn]] void rethrow_with(const std::string& prefix, const Error& error);

// Ends the body of every public function (`catch (...) { rethrow_typed(); }`): throws the exception that is being
// handled again when it is an Error, as OutOfMemory when it is std::bad_alloc, and otherwise within an InternalError.
// What call_back() let through keeps its type.
[[noreturn]] GRAFT_API void rethrow_typed();

// The exception that is being handled as rethrow_typed() throws it, for futures.
std::exception_ptr typed_exception() noexcept;

// An exception of a function of the caller's, on its way through graft. Not derived from std::exception: nobody between
// handles it.
struct CallerException {
  std::exception_ptr exception;
};

// Calls a function of the caller's, whose exceptions leave the public function unchanged.
template <typename Function>
decltype(auto) call_back(Function&& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {  // may be of a function of graft's that it called
    throw;
  } catch (const CallerException&) {
    throw;
  } catch (...) {
    throw CallerException{std::current_exception()};
  }
}

}  // namespace graft
