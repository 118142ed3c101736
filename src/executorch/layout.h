#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// ExecuTorch's tensors may have any order of their dimensions in memory (channels last); the engine's are row-major.
namespace graft {

// `order`: dimensions from the outermost to the innermost in memory.
bool row_major(std::span<const std::uint8_t> order);

// Copies elements of `size` bytes between the two layouts of a tensor of these sizes (at least one element, rank at
// most kMaxRank).
void to_row_major(const std::byte* ordered, std::span<const std::int64_t> sizes, std::span<const std::uint8_t> order,
                  std::size_t size, std::byte* rows);
void from_row_major(const std::byte* rows, std::span<const std::int64_t> sizes, std::span<const std::uint8_t> order,
                    std::size_t size, std::byte* ordered);

}  // namespace graft
