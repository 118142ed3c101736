#include "device/backend_modules.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "ggml-backend.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

struct BackendModule {
  const char* devices;   // their names begin so
  const char* registry;  // ggml's name
  const char* file;
  const char* target;  // of make
  const char* needs;
  const char* no_device;
};

constexpr std::array<BackendModule, 2> kModules = {{
    {"vulkan", "Vulkan", "libggml-vulkan.so", "vulkan",
     "finds no Vulkan (GRAFT_LOG=info shows more): it needs Vulkan's loader, libvulkan.so.1, of version 1.2 or newer, "
     "and a driver",
     "Vulkan's loader has no driver of a GPU; ggml leaves out drivers that compute on the CPU, such as lavapipe, "
     "unless GGML_VK_VISIBLE_DEVICES names them (0, ...)"},
    {"cuda", "CUDA", "libggml-cuda.so", "cuda",
     "cannot be loaded (GRAFT_LOG=info shows more): it needs CUDA's runtime and cuBLAS, libcudart.so.13 and "
     "libcublas.so.13, in a folder of LD_LIBRARY_PATH or loaded by PyTorch",
     "CUDA finds no GPU, or a driver that is older than its runtime"},
}};

// Beside ggml's library as it was loaded, or beside the file that this links to; empty if in neither.
fs::path find_module(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&ggml_backend_load), &info) == 0 || !info.dli_fname) return {};
  const fs::path library = info.dli_fname;
  std::error_code error;
  for (const fs::path& file : {library, fs::canonical(library, error)}) {
    fs::path module = file.parent_path() / name;
    if (!file.empty() && fs::exists(module, error)) return module;
  }
  return {};
}

std::string load(const BackendModule& backend) {
  ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.registry);
  if (!registry) {
    const fs::path module = find_module(backend.file);
    if (module.empty())
      return str("there is no ", backend.file, " beside ggml's library: `make ", backend.target, "` builds it");
    install_ggml_log();
    registry = ggml_backend_load(module.c_str());
    if (!registry) return str(module.string(), " ", backend.needs);
  }
  return ggml_backend_reg_dev_count(registry) > 0 ? "" : backend.no_device;
}

const std::string& load_once(std::size_t i) {
  static std::array<std::once_flag, kModules.size()> once;
  static std::array<std::string, kModules.size()> why_not;
  std::call_once(once[i], [i] { why_not[i] = load(kModules[i]); });
  return why_not[i];
}

}  // namespace

const std::string& load_backend_of(std::string_view device) {
  static const std::string none;
  for (std::size_t i = 0; i < kModules.size(); ++i)
    if (device.starts_with(kModules[i].devices)) return load_once(i);
  return none;
}

void load_all_backends() {
  for (std::size_t i = 0; i < kModules.size(); ++i) load_once(i);
}

}  // namespace graft
