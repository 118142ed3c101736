#pragma once

#include <vector>

#include "ggml-backend.h"

namespace graft {

// Devices of the RPC servers in GRAFT_RPC (HOST:PORT, several separated by commas); none if it is not set. Throws
// InvalidArgument for an invalid address, SystemError for a server that does not answer, Unsupported if ggml was built
// without RPC. ggml itself would end the process.
std::vector<ggml_backend_dev_t> rpc_devices();

}  // namespace graft
