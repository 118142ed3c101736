#pragma once

#include <string>

namespace graft {

// Loads ggml's Vulkan backend, once in a process: a module beside ggml's library, where `make vulkan` puts it. Returns
// why there is no Vulkan device then; empty if there is one. Nothing of Vulkan is loaded before.
const std::string& load_vulkan();

}  // namespace graft
