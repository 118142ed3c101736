#pragma once

#include <string>
#include <vector>

namespace graft::cli {

// The Python interpreter of the environment that this program is installed in, else of the active one. Empty if there
// is none.
std::string find_python();

// Becomes `PYTHON -c CODE ARGUMENTS...`; returns only by throwing SystemError.
[[noreturn]] void become_python(const std::string& python, const char* code, const std::vector<std::string>& arguments);

// Runs the same as a process of its own and returns its exit code. Throws SystemError where that cannot be started or
// was killed.
int run_python(const std::string& python, const char* code, const std::vector<std::string>& arguments);

}  // namespace graft::cli
