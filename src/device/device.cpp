#include "device/device.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "base/log.h"
#include "base/rethrow.h"
#include "device/backend_modules.h"
#include "device/ggml_layout.h"
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

// Before ggml's backends load: they run instructions of the CPU they were built for.
void prepare_ggml() {
  simd::check_cpu();
  install_ggml_log();
}

// Those there are, of backends that are loaded.
std::vector<ggml_backend_dev_t> ggml_devices() {
  std::vector<ggml_backend_dev_t> out;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) out.push_back(ggml_backend_dev_get(i));
  for (ggml_backend_dev_t device : rpc_devices())
    if (std::find(out.begin(), out.end(), device) == out.end()) out.push_back(device);
  return out;
}

std::vector<ggml_backend_dev_t> all_devices() {
  prepare_ggml();
  load_all_backends();
  return ggml_devices();
}

// Which build of the kernels this CPU runs.
std::string kernels_in_use() {
  const std::string& module = ggml_cpu().module;
  return str(" (kernels of graft: ", simd::name(simd::active_isa()), module.empty() ? "" : "; of ggml: ", module, ")");
}

std::string name_of(ggml_backend_dev_t device) { return lower(ggml_backend_dev_name(device)); }

// Null if there is none.
ggml_backend_dev_t device_named(std::string_view name) {
  prepare_ggml();
  load_backend_of(name);
  for (ggml_backend_dev_t device : ggml_devices())
    if (name_of(device) == name) return device;
  return nullptr;
}

// Whether the device multiplies by a matrix of this type.
bool multiplies(ggml_backend_dev_t device, ggml_type type) {
  constexpr std::int64_t kSize = 256;  // a block of any type
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
      ggml_init({4 * ggml_tensor_overhead(), nullptr, true}), &ggml_free);
  GRAFT_CHECK(SystemError, context, "cannot make a ggml context of 4 tensors");
  ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, kSize, kSize);
  ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kSize, kSize);
  return ggml_backend_dev_supports_op(device, ggml_mul_mat(context.get(), weight, rows));
}

std::vector<std::string> features_of(ggml_backend_dev_t device) {
  ggml_backend_dev_props properties{};
  ggml_backend_dev_get_props(device, &properties);
  std::vector<std::string> out;
  constexpr std::string_view kTypes[] = {"cpu", "gpu", "integrated gpu", "accelerator", "several devices"};
  if (static_cast<std::size_t>(properties.type) < std::size(kTypes)) out.emplace_back(kTypes[properties.type]);
  if (properties.caps.async) out.emplace_back("queues");
  if (properties.caps.events) out.emplace_back("events");
  std::string types;
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K})
    if (multiplies(device, type)) types += str(types.empty() ? "" : "/", ggml_type_name(type));
  if (!types.empty()) out.push_back("products with " + types);
  return out;
}

}  // namespace

std::string_view version() { return GRAFT_VERSION; }

namespace {

DeviceInfo info_of(ggml_backend_dev_t device) {
  DeviceInfo info;
  info.name = name_of(device);
  try {
    info.description = ggml_backend_dev_description(device);
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) info.description += kernels_in_use();
    ggml_backend_dev_memory(device, &info.memory_free, &info.memory_total);
    info.features = features_of(device);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // of the driver
    throw SystemError(str("device '", info.name, "' cannot be asked what it is: ", error.what()));
  }
  return info;
}

}  // namespace

std::vector<DeviceInfo> devices() try {
  std::vector<DeviceInfo> out;
  for (ggml_backend_dev_t device : all_devices()) out.push_back(info_of(device));
  return out;
} catch (...) {
  rethrow_typed();
}

DeviceChoice resolve_device(const std::string& name) {
  std::string wanted = name;
  const char* environment = std::getenv("GRAFT_DEVICE");
  if (wanted.empty() && environment) wanted = environment;
  if (wanted.empty()) wanted = kCpu;
  const std::string given = wanted;
  wanted = lower(wanted);
  if (wanted == kCpu) return {wanted, {}};
  const char* const source = name.empty() && environment ? " (from GRAFT_DEVICE)" : "";
  DeviceChoice choice{wanted.substr(0, wanted.find(',')), {}};
  const std::string rest = wanted.substr(choice.name.size());
  bool fits = rest.empty() || rest == ",cpu";
  if (const std::size_t colon = choice.name.find(':'); colon != std::string::npos) {
    std::int64_t layers = 0;
    const char* const end = choice.name.data() + choice.name.size();
    const auto [at, error] = std::from_chars(choice.name.data() + colon + 1, end, layers);
    fits = fits && error == std::errc() && at == end && layers >= 0;
    choice.layers = layers;
    choice.name.resize(colon);
  }
  GRAFT_CHECK(InvalidArgument, fits, "device '", given, "'", source,
              ": expected a name, or NAME:LAYERS,cpu for a device that has the first layers beside the CPU");
  if (device_named(choice.name)) return choice;
  std::string known;
  for (ggml_backend_dev_t device : all_devices()) known += (known.empty() ? "" : ", ") + name_of(device);
  const std::string& why_not = load_backend_of(choice.name);
  throw NotFound(str("no device '", choice.name, "'", source, "; this machine has: ", known,
                     why_not.empty() ? "" : ". " + why_not));
}

ggml_backend_dev_t find_device(const std::string& name) {
  if (name == kCpu) return nullptr;
  if (ggml_backend_dev_t device = device_named(name)) return device;
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
