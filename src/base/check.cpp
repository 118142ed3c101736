#include "base/check.h"

namespace graft {

void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(str("graft: assertion failed: ", condition, " at ", file, ":", line));
}

}  // namespace graft
