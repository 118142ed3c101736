#pragma once

#include <cstddef>

#include "ggml-backend.h"

namespace graft {

// Copies bytes between the host and an address inside a device buffer. Without a backend the copy is done on return;
// with one it is queued there, and the host's memory must stay valid until the backend was synchronized.
void copy_to_device(ggml_backend_t backend, ggml_backend_buffer_t buffer, std::byte* to, const std::byte* from,
                    std::size_t bytes);
void copy_to_host(ggml_backend_t backend, ggml_backend_buffer_t buffer, std::byte* from, std::byte* to,
                  std::size_t bytes);

}  // namespace graft
