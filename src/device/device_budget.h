#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ggml-backend.h"

namespace graft {

// Bytes of a device's memory that this process has taken, of those that GRAFT_DEVICE_MEMORY allows it of each device;
// given back with the object.
class DeviceBudget {
 public:
  DeviceBudget() = default;
  // Throws OutOfMemory naming the device, the limit and `what` the memory is for; InvalidArgument if
  // GRAFT_DEVICE_MEMORY is no number of bytes.
  DeviceBudget(ggml_backend_dev_t device, const std::string& name, std::size_t bytes, std::string_view what);
  DeviceBudget(DeviceBudget&& other) noexcept;
  DeviceBudget& operator=(DeviceBudget&& other) noexcept;
  ~DeviceBudget();

  // What may still be taken: of the limit, or of what the device says is free.
  static std::size_t available(ggml_backend_dev_t device);

 private:
  ggml_backend_dev_t device_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace graft
