#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/catch_aborts.h"
#include "device/device_budget.h"
#include "ggml-backend.h"
#include "lowering/lowering.h"

namespace graft {

// Memory of a device; freed with the object.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Throws OutOfMemory naming the device, and `what` the memory is for, if it cannot be allocated.
  DeviceMemory(ggml_backend_dev_t device, const std::string& name, std::size_t bytes, std::string_view what);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  std::byte* base() const { return base_; }  // a device address: the CPU must not read it
  ggml_backend_buffer_t buffer() const { return buffer_; }
  std::size_t size() const { return size_; }
  // Leaves the memory to the end of the process, where the device cannot be asked to free it.
  void abandon() { buffer_ = nullptr; }

 private:
  DeviceBudget reserved_;
  ggml_backend_buffer_t buffer_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

// A ggml device as used by one program (the CPU only for ggml's ops, see LoadOptions::fast_kernels): what it can run,
// and the program's weights and constants in its memory, once for all sessions. Thread-safe.
class ProgramDevice : public DeviceOps {
 public:
  ProgramDevice(ggml_backend_dev_t device, std::string name);
  ~ProgramDevice() override;

  const std::string& name() const { return name_; }
  ggml_backend_dev_t handle() const { return device_; }

  bool supports(const Launch& launch) const override { return supports(device_, launch); }
  bool host_supports(const Launch& launch) const override { return supports(host_, launch); }
  bool computes_angles() const override { return computes_angles_; }
  bool multiplies_halves() const override { return is_cuda_; }
  bool rounds_attention() const override { return is_cuda_; }
  std::int64_t alignment() const override { return alignment_; }
  bool is_cpu() const override { return is_cpu_; }
  std::size_t streams() const override { return has_streams_ ? kMaxStreams : 1; }
  // Whether graphs may be queued by one thread at a time only, of all sessions.
  bool queues_one_at_a_time() const { return is_rpc_; }

  // Whether the driver looks at buffers that an earlier graph of a backend was bound to. They stay as long as it does.
  bool reads_old_descriptors() const { return reads_old_descriptors_; }

  struct Resident {
    std::byte* base = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
  };
  struct HostBytes {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  // The device addresses of these weights; uploads new ones. Throws OutOfMemory.
  std::vector<Resident> resident(std::span<const HostBytes> weights) const;

  // A lost device runs nothing any more: sessions of the program go on on the CPU.
  bool is_lost() const { return lost_; }
  // Calls a function that uses the device. Throws Unavailable naming the device, which is lost then, for any exception
  // that is not graft's: ggml's backends throw those of their drivers, or would end the process.
  template <typename Function>
  void guard(std::string_view what, Function&& function) const {
    if (lost_) throw_lost(what, "it was lost before");
    try {
      const CatchAborts catches;
      function();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw_lost(what, error.what());
    }
  }

  std::uint64_t uploads() const;
  std::uint64_t uploaded_bytes() const;

 private:
  static bool supports(ggml_backend_dev_t device, const Launch& launch);
  [[noreturn]] void throw_lost(std::string_view what, const char* why) const;

  ggml_backend_dev_t device_, host_;
  std::string name_;
  mutable std::atomic<bool> lost_ = false;
  bool is_cpu_;
  bool is_rpc_;
  bool is_cuda_;
  bool computes_angles_;
  bool reads_old_descriptors_;
  bool has_streams_;  // that do not wait for the host, with events between them
  std::int64_t alignment_;
  mutable std::mutex mutex_;
  mutable std::vector<DeviceMemory> memory_;
  mutable std::map<const std::byte*, Resident> resident_;  // by address on the host
  mutable std::uint64_t uploaded_bytes_ = 0;
};

}  // namespace graft
