#include "device/device_copy.h"

#include <algorithm>
#include <cstdint>

#include "device/ggml_layout.h"

namespace graft {
namespace {

// ggml's RPC protocol has 32-bit sizes.
constexpr std::size_t kChunk = std::size_t{1} << 30;

// The bytes as a tensor, which is the only thing ggml copies.
ggml_tensor bytes_at(ggml_backend_buffer_t buffer, std::byte* data, std::size_t bytes) {
  ggml_tensor tensor{};
  const GgmlLayout layout = bytes_layout(static_cast<std::int64_t>(bytes));
  tensor.type = layout.type;
  std::copy(layout.ne, layout.ne + GGML_MAX_DIMS, tensor.ne);
  std::copy(layout.nb, layout.nb + GGML_MAX_DIMS, tensor.nb);
  tensor.buffer = buffer;
  tensor.data = data;
  return tensor;
}

template <typename Copy>
void in_chunks(std::size_t bytes, Copy&& copy) {
  for (std::size_t at = 0; at < bytes; at += kChunk) copy(at, std::min(kChunk, bytes - at));
}

}  // namespace

void copy_to_device(ggml_backend_t backend, ggml_backend_buffer_t buffer, std::byte* to, const std::byte* from,
                    std::size_t bytes) {
  in_chunks(bytes, [&](std::size_t at, std::size_t n) {
    ggml_tensor tensor = bytes_at(buffer, to + at, n);
    if (backend) {
      ggml_backend_tensor_set_async(backend, &tensor, from + at, 0, n);
    } else {
      ggml_backend_tensor_set(&tensor, from + at, 0, n);
    }
  });
}

void copy_to_host(ggml_backend_t backend, ggml_backend_buffer_t buffer, std::byte* from, std::byte* to,
                  std::size_t bytes) {
  in_chunks(bytes, [&](std::size_t at, std::size_t n) {
    const ggml_tensor tensor = bytes_at(buffer, from + at, n);
    if (backend) {
      ggml_backend_tensor_get_async(backend, &tensor, to + at, 0, n);
    } else {
      ggml_backend_tensor_get(&tensor, to + at, 0, n);
    }
  });
}

}  // namespace graft
