#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/commands.h"

namespace graft::cli {
namespace {

namespace fs = std::filesystem;

// The exporter is Python. Run as a string, so that an interpreter without graft gives a one-line error like every
// other.
constexpr const char* kStart = R"(
import sys
try:
    from graft.llm.cli import main
except ModuleNotFoundError as e:
    sys.exit(f"graft: export needs the Python package '{e.name}', which {sys.executable} has not")
sys.exit(main(sys.argv[1:]))
)";

// The Python interpreter of the environment that this program is installed in, else of the active one.
std::string find_python() {
  std::vector<fs::path> folders;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(self.parent_path());
  if (const char* active = std::getenv("VIRTUAL_ENV"); active != nullptr && *active != '\0')
    folders.push_back(fs::path(active) / "bin");
  for (const fs::path& folder : folders) {
    for (const char* name : {"python3", "python"}) {
      const std::string path = (folder / name).string();
      if (fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0) return path;
    }
  }
  throw NotFound(
      "export needs Python with the package graft: no python3 beside this program, and VIRTUAL_ENV names no "
      "environment "
      "with one");
}

}  // namespace

void export_model(std::span<char* const> arguments) {
  const std::string python = find_python();
  std::vector<std::string> words = {python, "-c", kStart};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(python.c_str(), pointers.data());
  throw SystemError(str("cannot start '", python, "': ", std::strerror(errno)));
}

}  // namespace graft::cli
