#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ggml-backend.h"

namespace graft {

struct DeviceChoice {
  std::string name;                    // in lower case
  std::optional<std::int64_t> layers;  // that are to be there; none: as many as fit
};

// The device to use: `name`, else GRAFT_DEVICE, else "cpu". Names compare without case. "NAME:N", "NAME,cpu" and
// "NAME:N,cpu" say how many layers the device is to have beside the CPU. Throws InvalidArgument for another form,
// NotFound listing the available devices. GRAFT_RPC=HOST:PORT,... adds the devices of ggml's RPC servers; SystemError
// names one that does not answer. "cpu" is found without querying them.
DeviceChoice resolve_device(const std::string& name);

// ggml's device of a resolved name; null for "cpu".
ggml_backend_dev_t find_device(const std::string& name);

// ggml's CPU backend, for its ops.
ggml_backend_dev_t cpu_device();

// Compares the loaded ggml with the one graft was built for. Throws Unsupported naming both.
void check_ggml();

}  // namespace graft
