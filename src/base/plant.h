#pragma once

// Bugs that other projects had, planted on purpose to show that the tests catch them (test/planted_bugs.py, `make
// planted`). GRAFT_PLANT("name") is a constant false, and no code, except in the build that is made for this, where it
// asks whether the environment variable GRAFT_PLANT names that bug.
#ifdef GRAFT_PLANTED_BUGS
#include <string_view>

namespace graft {
bool planted(std::string_view bug);
}
#define GRAFT_PLANT(bug) (::graft::planted(bug))
#else
#define GRAFT_PLANT(bug) (false)
#endif
