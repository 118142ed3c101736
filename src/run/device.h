#pragma once

#include <string>

namespace graft {

// The device to use: `name`, else GRAFT_DEVICE, else "cpu". Names compare without case. Throws NotFound listing the
// devices there are.
std::string resolve_device(const std::string& name);

// Compares the ggml that was loaded with the one graft was built for. Throws Unsupported naming both.
void check_ggml();

}  // namespace graft
