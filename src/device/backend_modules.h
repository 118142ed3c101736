#pragma once

#include <string>
#include <string_view>

namespace graft {

// ggml's Vulkan and CUDA backends are modules beside its library, where `make vulkan` and `make cuda` put them. Each is
// loaded once in a process, and nothing of its driver before.

// Loads the backend whose devices have names like `device`, in lower case: "cuda0", say; nothing for other names.
// Returns why there is no such device then; empty if there is one, and for other names.
const std::string& load_backend_of(std::string_view device);

void load_all_backends();

}  // namespace graft
