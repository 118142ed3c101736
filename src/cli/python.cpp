#include "cli/python.h"

#include <spawn.h>
#include <sys/wait.h>
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

namespace {

// The words of a command, as the system takes them.
class Words {
 public:
  Words(const std::string& python, const char* code, const std::vector<std::string>& arguments)
      : words_{python, "-c", code} {
    words_.insert(words_.end(), arguments.begin(), arguments.end());
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  char* const* pointers() const { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace

void become_python(const std::string& python, const char* code, const std::vector<std::string>& arguments) {
  ::execv(python.c_str(), Words(python, code, arguments).pointers());
  fail<SystemError>("cannot start '", python, "': ", std::strerror(errno));
}

int run_python(const std::string& python, const char* code, const std::vector<std::string>& arguments) {
  const Words words(python, code, arguments);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, python.c_str(), nullptr, nullptr, words.pointers(), environ);
  if (error != 0) fail<SystemError>("cannot start '", python, "': ", std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail<SystemError>("cannot wait for '", python, "': ", std::strerror(errno));
  if (!WIFEXITED(status)) fail<SystemError>("'", python, "' was ended by signal ", WTERMSIG(status));
  return WEXITSTATUS(status);
}

}  // namespace graft::cli
