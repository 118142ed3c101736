#include "device/device.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "base/log.h"
#include "base/rethrow.h"
#include "device/rpc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "graft/graft.h"
#include "kernel/simd/cpu_check.h"
#include "kernel/simd/dispatch.h"

namespace graft {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

constexpr std::string_view kCpu = "cpu";

std::vector<ggml_backend_dev_t> ggml_devices() {
  std::vector<ggml_backend_dev_t> out;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) out.push_back(ggml_backend_dev_get(i));
  for (ggml_backend_dev_t device : rpc_devices())
    if (std::find(out.begin(), out.end(), device) == out.end()) out.push_back(device);
  return out;
}

// Which build of the kernels this CPU runs.
std::string kernels_in_use() {
  const std::string& module = ggml_cpu().module;
  return str(" (kernels of graft: ", simd::name(simd::active_isa()), module.empty() ? "" : "; of ggml: ", module, ")");
}

}  // namespace

std::string_view version() { return GRAFT_VERSION; }

std::vector<DeviceInfo> devices() try {
  simd::check_cpu();  // before ggml's backends load: they run instructions of the CPU they were built for
  install_ggml_log();
  std::vector<DeviceInfo> out;
  for (ggml_backend_dev_t device : ggml_devices()) {
    DeviceInfo info;
    info.name = lower(ggml_backend_dev_name(device));
    info.description = ggml_backend_dev_description(device);
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) info.description += kernels_in_use();
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    info.memory_free = free;
    info.memory_total = total;
    out.push_back(std::move(info));
  }
  return out;
} catch (...) {
  rethrow_typed();
}

std::string resolve_device(const std::string& name) {
  std::string wanted = name;
  const char* environment = std::getenv("GRAFT_DEVICE");
  if (wanted.empty() && environment) wanted = environment;
  if (wanted.empty()) wanted = kCpu;
  wanted = lower(wanted);
  if (wanted == kCpu) return wanted;
  std::string known;
  for (const DeviceInfo& device : devices()) {
    if (device.name == wanted) return wanted;
    known += (known.empty() ? "" : ", ") + device.name;
  }
  throw NotFound(str("no device '", wanted, "'", name.empty() && environment ? " (from GRAFT_DEVICE)" : "",
                     "; this machine has: ", known));
}

ggml_backend_dev_t find_device(const std::string& name) {
  if (name == kCpu) return nullptr;
  for (ggml_backend_dev_t device : ggml_devices())
    if (lower(ggml_backend_dev_name(device)) == name) return device;
  throw NotFound(str("device '", name, "' is gone"));
}

ggml_backend_dev_t cpu_device() {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  GRAFT_CHECK(Unsupported, device, "this ggml has no CPU backend");
  return device;
}

void check_ggml() {
  static constexpr std::string_view built_version = GRAFT_GGML_VERSION;
  static constexpr std::string_view built_commit = GRAFT_GGML_COMMIT;
  GRAFT_CHECK(Unsupported, built_version == ggml_version() && built_commit == ggml_commit(),
              "graft was built for ggml ", built_version, " (", built_commit, "), but ggml ", ggml_version(), " (",
              ggml_commit(), ") is loaded in this process");
}

}  // namespace graft
