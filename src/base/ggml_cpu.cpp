#include "base/ggml_cpu.h"

#ifdef GRAFT_GGML_MODULES
#include <dlfcn.h>
#include <ggml-backend.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#endif

namespace graft {
#ifdef GRAFT_GGML_MODULES
namespace {

namespace fs = std::filesystem;

// The path of the library that contains this code or data.
std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string modules_in(const fs::path& folder) {
  std::string names;
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (name.starts_with("libggml-cpu") && name.ends_with(".so")) names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

// ggml's registry already has one if another part of the process registered it.
ggml_backend_reg_t find_backend() {
  if (ggml_backend_reg_t registered = ggml_backend_reg_by_name("CPU")) return registered;
  install_ggml_log();  // ggml logs which file it loads
  std::error_code error;
  const fs::path file = fs::absolute(file_of(reinterpret_cast<const void*>(&ggml_cpu)), error);
  GRAFT_CHECK(SystemError, !error, "cannot tell which folder graft's library is in: ", error.message());
  const fs::path folder = file.parent_path();
  ggml_backend_load_all_from_path(folder.c_str());
  ggml_backend_reg_t loaded = ggml_backend_reg_by_name("CPU");
  GRAFT_CHECK(Unsupported, loaded, "expected a module of ggml's CPU backend for this CPU (libggml-cpu-*.so) in ",
              folder.string(), ", found ", modules_in(folder));
  return loaded;
}

GgmlCpu load() {
  const void* known = ggml_backend_reg_get_proc_address(find_backend(), "ggml_threadpool_new");
  const std::string file = known ? file_of(known) : "";
  void* module = file.empty() ? nullptr : dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  GRAFT_CHECK(Unsupported, module, "cannot tell which file ggml's CPU backend was loaded from",
              file.empty() ? "" : ": " + file);
  GgmlCpu out;
  out.module = fs::path(file).filename().string();
  const auto function = [&](const char* name) {
    void* address = dlsym(module, name);
    GRAFT_CHECK(Unsupported, address, file, " has no function ", name);
    return address;
  };
#define GRAFT_MEMBER(member, name) out.member = reinterpret_cast<decltype(out.member)>(function(#name));
  GRAFT_GGML_CPU_FUNCTIONS(GRAFT_MEMBER)
#undef GRAFT_MEMBER
  return out;
}

}  // namespace
#else
namespace {

GgmlCpu load() {
#define GRAFT_MEMBER(member, function) .member = &function,
  return {GRAFT_GGML_CPU_FUNCTIONS(GRAFT_MEMBER).module = {}};
#undef GRAFT_MEMBER
}

}  // namespace
#endif

const GgmlCpu& ggml_cpu() {
  static const GgmlCpu functions = [] {
    GgmlCpu loaded = load();
    loaded.init();
    return loaded;
  }();
  return functions;
}

}  // namespace graft
