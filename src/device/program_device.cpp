#include "device/program_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "device/device.h"
#include "device/device_copy.h"
#include "device/ggml_layout.h"

namespace graft {
namespace {

bool has_streams(ggml_backend_dev_t device) {
  ggml_backend_dev_props properties{};
  ggml_backend_dev_get_props(device, &properties);
  return properties.caps.async && properties.caps.events;
}

bool is_of(ggml_backend_dev_t device, std::string_view backend) {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
  return registry && ggml_backend_reg_name(registry) == backend;
}

}  // namespace

DeviceMemory::DeviceMemory(ggml_backend_dev_t device, const std::string& name, std::size_t bytes, std::string_view what)
    : reserved_(device, name, bytes, what) {
  ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
  const std::size_t largest = ggml_backend_buft_get_max_size(type);
  GRAFT_CHECK(OutOfMemory, bytes <= largest, "device '", name, "': ", bytes, " bytes for ", what,
              " are more than its largest buffer (", largest, ")");
  try {
    const CatchAborts catches;
    buffer_ = ggml_backend_buft_alloc_buffer(type, std::max<std::size_t>(bytes, 1));
  } catch (const std::runtime_error& error) {
    throw Unavailable(str("device '", name, "' gives no memory for ", what, ": ", error.what()));
  }
  GRAFT_CHECK(OutOfMemory, buffer_, "device '", name, "' has no room for ", bytes, " bytes of ", what);
  base_ = static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer_));
  size_ = bytes;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : reserved_(std::move(other.reserved_)),
      buffer_(std::exchange(other.buffer_, nullptr)),
      base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(reserved_, other.reserved_);
  std::swap(buffer_, other.buffer_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (!buffer_) return;
  try {
    const CatchAborts catches;
    ggml_backend_buffer_free(buffer_);
  } catch (const std::runtime_error&) {  // its device is gone, and the memory with it
  }
}

ProgramDevice::ProgramDevice(ggml_backend_dev_t device, std::string name)
    : device_(device),
      host_(cpu_device()),
      name_(std::move(name)),
      is_cpu_(ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU),
      is_rpc_(is_of(device, "RPC")),
      is_cuda_(is_of(device, "CUDA")),
      // Vulkan's sines may be off by 2^-11, and by more beyond pi.
      computes_angles_(!is_of(device, "Vulkan")),
      // Mesa's lavapipe counts references of all bindings of a descriptor set, also those that the shader does not have
      // and that ggml set for another one: of a buffer that was freed since, it writes into freed memory.
      reads_old_descriptors_(std::string_view(ggml_backend_dev_description(device)).starts_with("llvmpipe")),
      // A server of ggml's RPC runs what all connections of a process queue one after the other, events or not. Waits
      // of ggml's Vulkan backend order work, but do not make memory visible that another backend wrote, and both use
      // the same queue. The CUDA backend makes one CUDA graph of a graph, and one kernel of neighbours in it: several
      // streams took twice as long for a step of a language model.
      has_streams_(!is_cpu_ && !is_rpc_ && !is_cuda_ && !is_of(device, "Vulkan") && has_streams(device)),
      alignment_(static_cast<std::int64_t>(ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(device)))) {}

ProgramDevice::~ProgramDevice() {
  if (!lost_) return;
  for (DeviceMemory& memory : memory_) memory.abandon();
}

void ProgramDevice::throw_lost(std::string_view what, const char* why) const {
  lost_ = true;
  throw Unavailable(
      str("device '", name_, "' is lost, while ", what, ": ", why,
          ". Further runs of its programs compute on the CPU; states that were there have their values at "
          "load, and caches no tokens"));
}

bool ProgramDevice::supports(ggml_backend_dev_t device, const Launch& launch) {
  GRAFT_ASSERT(!launch.kernel);
  // Tensors for the result, the sources, and the destination of a copy; no data.
  const std::size_t tensors = launch.inputs.size() + 2;
  alignas(64) std::array<std::byte, 16 * 512> memory;
  const std::size_t bytes = tensors * ggml_tensor_overhead();
  GRAFT_ASSERT(bytes <= memory.size());
  ggml_context* context = ggml_init({bytes, memory.data(), true});
  GRAFT_CHECK(SystemError, context, "cannot make a ggml context of ", bytes, " bytes");
  ggml_tensor* out = new_tensor(context, ggml_layout(launch.outputs[0]));
  out->op = static_cast<ggml_op>(launch.ggml_op);
  std::memcpy(out->op_params, launch.params.data(), sizeof(out->op_params));
  for (std::size_t i = 0; i < launch.inputs.size(); ++i)
    out->src[i] = new_tensor(context, ggml_layout(launch.inputs[i]));
  if (const std::optional<int> at = destination_source(out->op))
    out->src[*at] = out->view_src = new_tensor(context, ggml_layout(launch.outputs[0]));
  // The arena cannot hold ops that need more memory than their result has.
  const bool fits = ggml_backend_buft_get_alloc_size(ggml_backend_dev_buffer_type(device), out) <= ggml_nbytes(out);
  const bool supported = fits && ggml_backend_dev_supports_op(device, out);
  ggml_free(context);
  return supported;
}

std::vector<ProgramDevice::Resident> ProgramDevice::resident(std::span<const HostBytes> weights) const {
  const std::lock_guard lock(mutex_);
  const auto aligned = [&](std::size_t bytes) {
    const auto a = static_cast<std::size_t>(alignment_);
    return (bytes + a - 1) / a * a;
  };
  // In as few buffers as the device's largest one allows.
  const std::size_t largest = ggml_backend_buft_get_max_size(ggml_backend_dev_buffer_type(device_));
  std::vector<std::vector<HostBytes>> groups;
  std::vector<std::size_t> sizes;
  std::set<const std::byte*> missing;
  for (const HostBytes& weight : weights) {
    if (resident_.contains(weight.data) || !missing.insert(weight.data).second) continue;
    const std::size_t bytes = aligned(weight.bytes);
    if (groups.empty() || bytes > largest - std::min(largest, sizes.back())) {
      groups.emplace_back();
      sizes.push_back(0);
    }
    groups.back().push_back(weight);
    sizes.back() += bytes;
  }
  std::vector<DeviceMemory> memory;
  std::map<const std::byte*, Resident> placed;
  std::uint64_t uploaded = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const DeviceMemory& buffer = memory.emplace_back(device_, name_, sizes[i], "weights");
    std::size_t offset = 0;
    for (const HostBytes& weight : groups[i]) {
      std::byte* const to = buffer.base() + offset;
      guard("weights went to it", [&] { copy_to_device(nullptr, buffer.buffer(), to, weight.data, weight.bytes); });
      placed[weight.data] = {to, buffer.buffer()};
      offset += aligned(weight.bytes);
      uploaded += weight.bytes;
    }
  }
  std::ranges::move(memory, std::back_inserter(memory_));
  resident_.merge(placed);
  uploaded_bytes_ += uploaded;
  std::vector<Resident> out;
  for (const HostBytes& weight : weights) out.push_back(resident_.at(weight.data));
  return out;
}

std::uint64_t ProgramDevice::uploads() const {
  const std::lock_guard lock(mutex_);
  return resident_.size();
}

std::uint64_t ProgramDevice::uploaded_bytes() const {
  const std::lock_guard lock(mutex_);
  return uploaded_bytes_;
}

}  // namespace graft
