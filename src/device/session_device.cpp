#include "device/session_device.h"

#include <mutex>

#include "base/check.h"
#include "device/device_copy.h"
#include "ggml.h"

namespace graft {

SessionDevice::SessionDevice(const ProgramDevice& program)
    : program_(program), backend_(ggml_backend_dev_init(program.handle(), nullptr)) {
  GRAFT_CHECK(SystemError, backend_, "device '", program_.name(), "' cannot be started");
}

SessionDevice::~SessionDevice() {
  block_ = DeviceMemory();
  ggml_backend_free(backend_);
}

void SessionDevice::write_counters(Counters& counters) const {
  counters.stages = counters_.stages;
  counters.uploads = counters_.uploads;
  counters.upload_bytes = counters_.upload_bytes;
  counters.downloads = counters_.downloads;
  counters.download_bytes = counters_.download_bytes;
  counters.device_bytes = counters_.device_bytes;
}

void SessionDevice::reserve(std::int64_t bytes) {
  const auto wanted = static_cast<std::size_t>(bytes);
  if (generation_ > 0 && block_.size() >= wanted) return;
  block_ = DeviceMemory();  // free the old block first, so that the peak is the new one alone
  ++generation_;
  block_ = DeviceMemory(program_.handle(), program_.name(), wanted, "a run's tensors");
  counters_.device_bytes = block_.size();
}

void SessionDevice::upload(std::int64_t device_offset, const std::byte* from, std::int64_t bytes) {
  ++counters_.uploads;
  counters_.upload_bytes += static_cast<std::uint64_t>(bytes);
  copy_to_device(backend_, block_.buffer(), block_.base() + device_offset, from, static_cast<std::size_t>(bytes));
}

void SessionDevice::download(std::int64_t device_offset, std::byte* to, std::int64_t bytes) {
  ++counters_.downloads;
  counters_.download_bytes += static_cast<std::uint64_t>(bytes);
  copy_to_host(backend_, block_.buffer(), block_.base() + device_offset, to, static_cast<std::size_t>(bytes));
}

void SessionDevice::compute(ggml_cgraph* graph) {
  // ggml's RPC backend notes in its device, which sessions share, the graph that it sent last, and does not send that
  // one again.
  static std::mutex queueing;
  const std::lock_guard lock(queueing);
  const ggml_status status = ggml_backend_graph_compute_async(backend_, graph);
  GRAFT_CHECK(ExecutionError, status == GGML_STATUS_SUCCESS, "device '", program_.name(),
              "' failed: ", ggml_status_to_string(status));
}

void SessionDevice::synchronize() { ggml_backend_synchronize(backend_); }

}  // namespace graft
