#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/python.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// The exporter is Python. Run as a string, so that an interpreter without graft gives a one-line error like every
// other.
constexpr const char* kStart = R"(
import sys
try:
    from graft.llm.cli import main
except ModuleNotFoundError as e:
    sys.exit(f"graft: export needs the Python package '{e.name}', which {sys.executable} has not: pip install 'graft[hf]'")
sys.exit(main(sys.argv[1:]))
)";

}  // namespace

void export_model(std::span<char* const> arguments) {
  const std::string python = find_python();
  if (python.empty())
    fail<NotFound>(
        "export needs Python with the package graft: no python3 beside this program, and VIRTUAL_ENV names no "
        "environment with one");
  become_python(python, kStart, {arguments.begin(), arguments.end()});
}

}  // namespace graft::cli
