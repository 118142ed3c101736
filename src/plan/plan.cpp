#include "plan/plan.h"

namespace graft {

RefreshLevel refresh_level(Segment segment) {
  switch (segment) {
    case Segment::input:
    case Segment::output:
      return RefreshLevel::io;
    case Segment::arena:
      return RefreshLevel::arena_and_io;
    default:
      return RefreshLevel::all;
  }
}

std::string_view name(RefreshLevel level) {
  constexpr std::string_view names[] = {"none", "io", "arena+io", "all"};
  return names[static_cast<std::size_t>(level)];
}

}  // namespace graft
