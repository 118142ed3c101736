#include "device/vulkan.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "ggml-backend.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libggml-vulkan.so";

// Beside ggml's library as it was loaded, or beside the file that this links to; empty if in neither.
fs::path find_module() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&ggml_backend_load), &info) == 0 || !info.dli_fname) return {};
  const fs::path library = info.dli_fname;
  std::error_code error;
  for (const fs::path& file : {library, fs::canonical(library, error)}) {
    fs::path module = file.parent_path() / kModule;
    if (!file.empty() && fs::exists(module, error)) return module;
  }
  return {};
}

std::string load() {
  ggml_backend_reg_t vulkan = ggml_backend_reg_by_name("Vulkan");
  if (!vulkan) {
    const fs::path module = find_module();
    if (module.empty()) return str("there is no ", kModule, " beside ggml's library: `make vulkan` builds it");
    install_ggml_log();
    vulkan = ggml_backend_load(module.c_str());
    if (!vulkan)
      return str(module.string(), " finds no Vulkan (GRAFT_LOG=info shows more): it needs Vulkan's loader, ",
                 "libvulkan.so.1, of version 1.2 or newer, and a driver");
  }
  if (ggml_backend_reg_dev_count(vulkan) > 0) return "";
  return "Vulkan's loader has no driver of a GPU; ggml leaves out drivers that compute on the CPU, such as lavapipe, "
         "unless GGML_VK_VISIBLE_DEVICES names them (0, ...)";
}

}  // namespace

const std::string& load_vulkan() {
  static const std::string why_not = load();
  return why_not;
}

}  // namespace graft
