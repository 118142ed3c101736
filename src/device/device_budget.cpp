#include "device/device_budget.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace graft {
namespace {

std::mutex mutex;

std::map<ggml_backend_dev_t, std::size_t>& taken() {
  static auto& bytes = *new std::map<ggml_backend_dev_t, std::size_t>;  // outlives all sessions
  return bytes;
}

// "512M": K, M and G are powers of 1,024.
std::size_t limit() {
  const char* text = std::getenv("GRAFT_DEVICE_MEMORY");
  if (!text || !*text) return SIZE_MAX;
  const std::string_view given = text;
  std::size_t bytes = 0;
  const auto [rest, error] = std::from_chars(given.data(), given.data() + given.size(), bytes);
  const std::string_view unit(rest, static_cast<std::size_t>(given.data() + given.size() - rest));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  GRAFT_CHECK(InvalidArgument, error == std::errc() && shift >= 0 && bytes <= SIZE_MAX >> shift,
              "GRAFT_DEVICE_MEMORY must be a number of bytes, or of them with K, M or G; got '", given, "'");
  return bytes << shift;
}

}  // namespace

DeviceBudget::DeviceBudget(ggml_backend_dev_t device, const std::string& name, std::size_t bytes,
                           std::string_view what) {
  const std::size_t most = limit();
  const std::lock_guard lock(mutex);
  std::size_t& used = taken()[device];
  GRAFT_CHECK(OutOfMemory, bytes <= most && used <= most - bytes, "device '", name, "' has no room for ", bytes,
              " bytes of ", what, ": GRAFT_DEVICE_MEMORY allows ", most, " bytes, and ", used, " are in use");
  used += bytes;
  device_ = device;
  bytes_ = bytes;
}

DeviceBudget::DeviceBudget(DeviceBudget&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBudget& DeviceBudget::operator=(DeviceBudget&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBudget::~DeviceBudget() {
  if (bytes_ == 0) return;
  const std::lock_guard lock(mutex);
  taken()[device_] -= bytes_;
}

std::size_t DeviceBudget::available(ggml_backend_dev_t device) {
  std::size_t free = 0, total = 0;
  ggml_backend_dev_memory(device, &free, &total);
  const std::size_t most = limit();
  const std::lock_guard lock(mutex);
  const std::size_t used = taken()[device];
  return std::min(free, most > used ? most - used : 0);
}

}  // namespace graft
