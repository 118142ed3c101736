#pragma once

#include <vector>

#include "ggml-backend.h"

namespace graft {

// Devices of the RPC servers that GRAFT_RPC names (HOST:PORT, several with commas between); none when it is not set.
// Throws InvalidArgument for an address that cannot be one, SystemError for a server that does not answer, Unsupported
// when ggml was built without RPC. ggml itself would end the process.
std::vector<ggml_backend_dev_t> rpc_devices();

}  // namespace graft
