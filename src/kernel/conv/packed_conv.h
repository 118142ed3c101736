#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/ceil_div.h"
#include "kernel/conv/conv.h"
#include "kernel/conv/packed_conv_vec.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"

// Convolutions in f32 with weights packed at load, not transposed, three spatial dimensions as in kernel/conv/conv.h.
// Results are channels last: [N, O, D', H', W'] with the strides of a contiguous [N, D', H', W', O].
namespace graft {

// Packs a weight [O, C / groups, KD, KH, KW], contiguous, and, with has_scale, a scale [O] that multiplies each output
// channel. Output: packed_conv_floats() floats.
struct PackConvAttrs {
  std::int64_t groups = 1;
  std::int32_t has_scale = 0;
};
extern const Kernel kPackConv;

// Depthwise: one input and one output channel per group.
bool is_depthwise(const Shape& weight, std::int64_t groups);
std::int64_t packed_conv_floats(const Shape& weight, std::int64_t groups);

// Floats between the taps of a packed depthwise weight: the channels, rounded up to whole vectors.
inline std::int64_t depthwise_weight_row(std::int64_t channels, const simd::PackedConvTable& table) {
  return ceil_div(channels, table.lanes) * table.lanes;
}
// Packed weights up to this size stay in a second-level cache and need no prefetching.
inline constexpr std::int64_t kNearWeightFloats = std::int64_t{1} << 16;

// Inputs: x [N, C, D, H, W] of any strides (depthwise: channels last); packed weight; with has_bias a contiguous [O];
// with has_residual a tensor of the output's shape, channels last and positions evenly spaced. output =
// clamp(activation(convolution + bias + residual)).
struct PackedConvAttrs {
  ConvAttrs conv;
  std::int64_t kernel[3] = {1, 1, 1};
  simd::Activation activation = simd::Activation::none;
  std::int32_t clamps = 0;
  float low = 0, high = 0;
  std::int32_t has_residual = 0;
  // Each row of outputs is divided into tiles by itself, as separable convolutions do: the results are the same bits
  // whether a plan, depending on its threads, has this launch or a separable convolution.
  std::int32_t by_lines = 0;
};
// Sets the epilogue of attributes that have none yet; a residual also fits where there is none.
bool take_epilogue(PackedConvAttrs& attrs, const Epilogue& epilogue);
bool take_residual(PackedConvAttrs& attrs);
// The epilogue of a launch with these attributes, for output `output`; the bias and the residual follow from input
// `extra` on.
simd::ChannelEpilogue channel_epilogue(const KernelContext& ctx, const PackedConvAttrs& attrs, int output = 0,
                                       int extra = 2);
// The epilogue for people: ", a sum in the epilogue, clamped in the epilogue"; empty where there is none.
std::string epilogue_text(const PackedConvAttrs& attrs);
extern const Kernel kPackedConv;
extern const Kernel kPackedDepthwiseConv;
// kPackedConv for a linear layer: x [1, K, 1, 1, M], one tap, output [1, N, 1, 1, M].
extern const Kernel kPackedLinear;

// Linear layers of the same rows with weights of the same size in one launch (queries, keys and values). Inputs: x, the
// packed weight of each, then the biases of those that have one; an output for each. No residuals.
inline constexpr int kMostPackedLinears = 4;
struct PackedLinearsAttrs {
  std::int32_t count = 0;
  std::array<PackedConvAttrs, kMostPackedLinears> layers;
};
extern const Kernel kPackedLinears;
// How launches with a PackedConvAttrs merge into one kPackedLinears, by kernel.
bool linear_can_merge(const KernelContext& ctx);
bool linears_fit_together(const KernelContext& a, const KernelContext& b);
AttrBytes merged_linears(std::span<const KernelContext* const> launches);
std::string epilogue_text(const PackedLinearsAttrs& attrs);
// Multiply-adds of a launch of one or several layers of the same size.
std::int64_t work_of_linears(const KernelContext& ctx);

// The products of a launch, and the order of their panels: the first half of each product's, then the second half of
// each. Threads that steal from both ends then compute the same columns of each product, which an attention head reads
// together.
class PackedProducts {
 public:
  struct Product {
    int weight = 1;  // input
    simd::ChannelEpilogue epilogue;
  };
  struct Unit {
    const Product& product;
    std::int64_t panel;
  };
  PackedProducts(const KernelContext& ctx, const PackedConvAttrs& attrs);
  PackedProducts(const KernelContext& ctx, const PackedLinearsAttrs& attrs);

  std::int64_t count() const { return count_; }
  // Work item `index` of count() * panels.
  Unit unit(std::int64_t index, std::int64_t panels) const {
    const std::int64_t first = (panels + 1) / 2;
    if (index < count_ * first) return {products_[static_cast<std::size_t>(index / first)], index % first};
    index -= count_ * first;
    return {products_[static_cast<std::size_t>(index / (panels - first))], first + index % (panels - first)};
  }
  // Advances outputs and residuals by so many floats.
  void offset(std::int64_t floats);

 private:
  std::array<Product, kMostPackedLinears> products_;
  std::int64_t count_ = 1;
};

// The sum of a convolution with a packed weight.
struct PackedSums {
  std::int64_t taps = 1, depth = 0;  // taps; steps of the sum in all
  std::span<const simd::KBlock> k_blocks = {};

  // Tiles of one panel, narrow or not: see PackedConvTable::tiles.
  void multiply(const simd::PackedConvTable& table, std::span<const simd::ConvTile> tiles, std::int64_t row,
                const float* panel, const float* next, bool fresh, std::int64_t first_channel, int width,
                const simd::ChannelEpilogue& e) const {
    const auto count = static_cast<int>(tiles.size());
    if (table.narrow_halves(taps, depth, width) != 0) {
      table.narrow_tiles(tiles.data(), count, row, depth, panel, first_channel, width, e);
    } else {
      table.tiles(tiles.data(), count, row, k_blocks.data(), static_cast<std::int64_t>(k_blocks.size()), panel, next,
                  fresh, first_channel, width, e);
    }
  }
};

// Scratch bytes on up to `threads` threads. Where the input is padded or not channels last, some samples of it are
// copied.
std::int64_t packed_conv_scratch_bytes(const TensorDesc& x, const PackedConvAttrs& attrs, int threads);
std::int64_t packed_depthwise_scratch_bytes(const PackedConvAttrs& attrs, int threads);

// With the inner loops of a given instruction set, on which the layout of the packed weight depends.
void run_pack_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
std::int64_t packed_conv_floats(const Shape& weight, std::int64_t groups, const simd::PackedConvTable& table);
void run_packed_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_packed_linears(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_packed_depthwise_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
