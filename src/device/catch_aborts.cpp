#include "device/catch_aborts.h"

#include <cstdio>
#include <stdexcept>

#include "ggml.h"

namespace graft {
namespace {

thread_local int depth = 0;
ggml_abort_callback_t before = nullptr;  // of the process

// ggml's C code between here and its callers has unwind tables, as the ABI of x86-64 and aarch64 wants them.
void on_abort(const char* message) {
  if (depth > 0) throw std::runtime_error(message);
  if (before)
    before(message);
  else
    std::fprintf(stderr, "%s\n", message);
}

}  // namespace

CatchAborts::CatchAborts() {
  static const bool installed = (before = ggml_set_abort_callback(on_abort), true);
  static_cast<void>(installed);
  ++depth;
}

CatchAborts::~CatchAborts() { --depth; }

}  // namespace graft
