#include "device/session_device.h"

#include <mutex>

#include "base/check.h"
#include "device/device_copy.h"
#include "ggml.h"

namespace graft {

SessionDevice::SessionDevice(const ProgramDevice& program) : program_(program) { provide(1, 0); }

// Of a lost device, backends wait for work that never ends, or throw: what they hold is left to the end of the process.
SessionDevice::~SessionDevice() {
  if (program_.is_lost()) {
    block_.abandon();
    for (DeviceMemory& memory : old_) memory.abandon();
    return;
  }
  for (ggml_backend_event_t event : events_) ggml_backend_event_free(event);
  for (ggml_backend_t stream : streams_) ggml_backend_free(stream);
}

void SessionDevice::provide(std::size_t streams, std::size_t events) {
  streams_.reserve(streams);
  events_.reserve(events);
  while (streams_.size() < streams) {
    ggml_backend_t stream = nullptr;
    program_.guard("it was started", [&] { stream = ggml_backend_dev_init(program_.handle(), nullptr); });
    GRAFT_CHECK(SystemError, stream, "device '", program_.name(), "' cannot be started",
                streams_.empty() ? "" : " a second time, for another stream");
    streams_.push_back(stream);
  }
  while (events_.size() < events) {
    ggml_backend_event_t event = nullptr;
    program_.guard("an event was made", [&] { event = ggml_backend_event_new(program_.handle()); });
    GRAFT_CHECK(SystemError, event, "device '", program_.name(), "' makes no event, which its properties say it has");
    events_.push_back(event);
  }
  counters_.device_streams = streams_.size();
}

void SessionDevice::write_counters(Counters& counters) const {
  counters.stages = counters_.stages;
  counters.uploads = counters_.uploads;
  counters.upload_bytes = counters_.upload_bytes;
  counters.downloads = counters_.downloads;
  counters.download_bytes = counters_.download_bytes;
  counters.device_bytes = counters_.device_bytes;
  counters.device_streams = counters_.device_streams;
  counters.device_graphs = counters_.device_graphs;
  counters.device_events = counters_.device_events;
}

std::vector<ProgramDevice::Resident> SessionDevice::resident(std::span<const ProgramDevice::HostBytes> weights) try {
  return program_.resident(weights);
} catch (const OutOfMemory&) {
  full_ = true;
  throw;
}

void SessionDevice::reserve(std::int64_t bytes) try {
  const auto wanted = static_cast<std::size_t>(bytes);
  if (generation_ > 0 && block_.size() >= wanted) return;
  if (program_.reads_old_descriptors() && block_.buffer()) old_.push_back(std::move(block_));
  block_ = DeviceMemory();  // free the old block first, so that the peak is the new one alone
  ++generation_;
  block_ = DeviceMemory(program_.handle(), program_.name(), wanted, "a run's tensors");
  counters_.device_bytes = block_.size();
} catch (const OutOfMemory&) {
  full_ = true;
  throw;
}

void SessionDevice::upload(std::int64_t device_offset, const std::byte* from, std::int64_t bytes) {
  ++counters_.uploads;
  counters_.upload_bytes += static_cast<std::uint64_t>(bytes);
  program_.guard("data went to it", [&] {
    copy_to_device(streams_[0], block_.buffer(), block_.base() + device_offset, from, static_cast<std::size_t>(bytes));
  });
}

void SessionDevice::download(std::int64_t device_offset, std::byte* to, std::int64_t bytes) {
  ++counters_.downloads;
  counters_.download_bytes += static_cast<std::uint64_t>(bytes);
  program_.guard("data came from it", [&] {
    copy_to_host(streams_[0], block_.buffer(), block_.base() + device_offset, to, static_cast<std::size_t>(bytes));
  });
}

void SessionDevice::compute(std::size_t stream, ggml_cgraph* graph) {
  // ggml's RPC backend notes in its device, which sessions share, the graph that it sent last, and does not send that
  // one again.
  static std::mutex queueing;
  std::unique_lock lock(queueing, std::defer_lock);
  if (program_.queues_one_at_a_time()) lock.lock();
  ++counters_.device_graphs;
  ggml_status status = GGML_STATUS_FAILED;
  program_.guard("a graph was queued", [&] { status = ggml_backend_graph_compute_async(streams_[stream], graph); });
  GRAFT_CHECK(ExecutionError, status == GGML_STATUS_SUCCESS, "device '", program_.name(),
              "' failed: ", ggml_status_to_string(status));
}

void SessionDevice::record(std::size_t stream, std::size_t event) {
  ++counters_.device_events;
  program_.guard("an event was queued", [&] { ggml_backend_event_record(events_[event], streams_[stream]); });
}

void SessionDevice::wait(std::size_t stream, std::size_t event) {
  program_.guard("an event was awaited", [&] { ggml_backend_event_wait(streams_[stream], events_[event]); });
}

void SessionDevice::synchronize() {
  program_.guard("it ran", [&] {
    for (ggml_backend_t stream : streams_) ggml_backend_synchronize(stream);
  });
}

}  // namespace graft
