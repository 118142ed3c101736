#include "cli/python.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/text.h"

namespace graft::cli {

namespace fs = std::filesystem;

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
  return {};
}

void become_python(const std::string& python, const char* code, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python, "-c", code};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(python.c_str(), pointers.data());
  fail<SystemError>("cannot start '", python, "': ", std::strerror(errno));
}

}  // namespace graft::cli
