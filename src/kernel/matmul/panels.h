#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernel/matmul/blocks_vec.h"
#include "weight/stored.h"

// Weights laid out for the kernels of kernel/matmul/blocks_vec.h.
namespace graft {

// The layout of a block type; nullopt where there is none.
std::optional<simd::PanelFormat> layout_of(BlockType type);

// The layout to read a block type in here; nullopt where ggml's own rows are kept: the type has none, or no kernel of
// this machine reads it.
std::optional<simd::PanelFormat> panel_format(BlockType type);

// What reads a weight in blocks, for people: "weight q8_0 packed for avx512vnni", "weight q5_1 has no packed layout:
// ggml's products".
std::string explain_blocks(BlockType type, bool panels);

// Bytes of a weight [rows, depth] in panels: those of its blocks, but that rows are filled up to whole panels, and that
// q4_K's scales take 8 bits each.
std::int64_t panels_bytes(simd::PanelFormat format, std::int64_t rows, std::int64_t depth);

// Lays out panels [begin, end) of a weight [rows, depth] of ggml's blocks.
void fill_panels(simd::PanelFormat format, const std::byte* blocks, std::int64_t rows, std::int64_t depth,
                 std::int64_t begin, std::int64_t end, std::byte* panels);

// And back, bit for bit. `blocks` is [rows, depth].
void blocks_of_panels(simd::PanelFormat format, const std::byte* panels, std::int64_t rows, std::int64_t depth,
                      std::int64_t begin, std::int64_t end, std::byte* blocks);

// The values of one row: exactly those of ggml's blocks.
void row_of_panels(simd::PanelFormat format, const std::byte* panels, std::int64_t depth, std::int64_t row, float* to);

}  // namespace graft
