#include "base/plant.h"

#ifdef GRAFT_PLANTED_BUGS
#include <cstdlib>

namespace graft {

bool planted(std::string_view bug) {
  const char* chosen = std::getenv("GRAFT_PLANT");
  return chosen != nullptr && bug == chosen;
}

}  // namespace graft
#endif
