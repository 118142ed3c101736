#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "kernel/kernel.h"
#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/matmul.h"
#include "weight/stored.h"

namespace graft {

// The panel format that this machine reads a block type in; nullopt where ggml's row layout is kept: the type has no
// panel format, or no kernel for it runs here.
std::optional<PanelFormat> readable_panels(BlockType type);

// How a weight in blocks is read, for people: "weight q8_0 packed for avx512vnni", "weight q5_1 has no packed layout
// here: ggml's rows".
std::string explain_blocks(BlockType type, bool panels);

// Memory for rows [rows, depth] quantized for products with panels, and those from row `first` on in it. A row has room
// for two sums of each block: some formats have a scale for half a block.
std::int64_t quantized_rows_bytes(std::int64_t rows, std::int64_t depth);
simd::QuantizedRows quantized_rows(std::byte* memory, std::int64_t rows, std::int64_t depth, std::int64_t first = 0);

struct BlockMatmulAttrs {
  MatmulAttrs product;
  BlockType type = -1;
  std::int16_t panels = 0;  // 1: the weight is packed in panels
};

// The product with a weight [N, K] stored in ggml's blocks. Inputs: a [M, K] f32 with column stride 1, the weight's
// bytes (u8) and, when has_bias, bias [M, N] of any strides; output [M, N], any strides. Rows of a are first quantized
// to the type that ggml multiplies the weight's with, so the error of a product is ggml's. Sums are kept in f32.
extern const Kernel kBlockMatmul;

// kBlockMatmul for weights in panels, with the kernels of a given instruction set; kBlockMatmul uses simd::panels().
void run_panel_product(const KernelContext& ctx, const simd::PanelTable& table) noexcept;

// Products of the same rows with several weights in panels, all of one type: the rows are quantized once. Inputs: a,
// the bytes of each weight, then the biases of those products that have one; an output for each.
inline constexpr int kMostBlockProducts = 4;
struct BlockMatmulsAttrs {
  std::int32_t count = 0;
  BlockType type = -1;
  std::int16_t panels = 1;
  std::array<MatmulAttrs, kMostBlockProducts> products;
};
extern const Kernel kBlockMatmuls;
void run_panel_products(const KernelContext& ctx, const simd::PanelTable& table) noexcept;

// Scratch bytes for an a [rows, depth].
std::int64_t block_matmul_scratch_bytes(const BlockMatmulAttrs& attrs, std::int64_t rows, std::int64_t depth);

}  // namespace graft
