#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"

namespace graft {

// Throws SystemError, which names what the thread is for, if it cannot be started.
template <typename Function>
std::thread start_thread(const char* purpose, Function function) {
  try {
    return std::thread(std::move(function));
  } catch (const std::system_error& error) {
    throw SystemError(str("cannot start ", purpose, ": ", error.what()));
  }
}

}  // namespace graft
