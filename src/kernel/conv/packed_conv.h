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
// Their results lie channels last: [N, O, D', H', W'] with strides of a contiguous [N, D', H', W', O].
namespace graft {

// Weight [O, C / groups, KD, KH, KW] contiguous and, with has_scale, a scale [O] that multiplies each output channel;
// output: the floats that packed_conv_floats() counts.
struct PackConvAttrs {
  std::int64_t groups = 1;
  std::int32_t has_scale = 0;
};
extern const Kernel kPackConv;

// Depthwise: one input and one output channel per group.
bool is_depthwise(const Shape& weight, std::int64_t groups);
std::int64_t packed_conv_floats(const Shape& weight, std::int64_t groups);

// Floats of a packed depthwise weight from one tap to the next: channels in whole vectors.
inline std::int64_t depthwise_weight_row(std::int64_t channels, const simd::PackedConvTable& table) {
  return ceil_div(channels, table.lanes) * table.lanes;
}
// Packed weights of no more floats stay in a second-level cache: they need not be asked for.
inline constexpr std::int64_t kNearWeightFloats = std::int64_t{1} << 16;

// Inputs: x [N, C, D, H, W] of any strides (depthwise: channels beside each other); packed weight; with has_bias a
// contiguous [O]; with has_residual a tensor like the output, channels beside each other and positions evenly apart.
// output = clamp(activation(convolution + bias + residual)).
struct PackedConvAttrs {
  ConvAttrs conv;
  std::int64_t kernel[3] = {1, 1, 1};
  simd::Activation activation = simd::Activation::none;
  std::int32_t clamps = 0;
  float low = 0, high = 0;
  std::int32_t has_residual = 0;
  // Each line of outputs is cut into tiles by itself, as separable convolutions do: the same bits where a plan for more
  // threads has this launch and one for fewer has such a convolution.
  std::int32_t by_lines = 0;
};
// Becomes part of the attributes where they have no epilogue yet; a residual also where there is none.
bool take_epilogue(PackedConvAttrs& attrs, const Epilogue& epilogue);
bool take_residual(PackedConvAttrs& attrs);
// What becomes of a sum, of a launch with these attributes: `output` is the output, from input `extra` on lie the bias
// and the residual.
simd::ChannelEpilogue channel_epilogue(const KernelContext& ctx, const PackedConvAttrs& attrs, int output = 0,
                                       int extra = 2);
// The same for people: ", a sum on the way out, clamped on the way out"; empty where nothing does.
std::string way_out_text(const PackedConvAttrs& attrs);
extern const Kernel kPackedConv;
extern const Kernel kPackedDepthwiseConv;
// The same as kPackedConv for a linear layer: x [1, K, 1, 1, M], one tap, output [1, N, 1, 1, M].
extern const Kernel kPackedLinear;

// Linear layers of the same rows with weights of the same size as one launch (queries, keys and values). Inputs: x, the
// packed weight of each, then the biases of those that have one; an output for each. No residuals.
inline constexpr int kMostPackedLinears = 4;
struct PackedLinearsAttrs {
  std::int32_t count = 0;
  std::array<PackedConvAttrs, kMostPackedLinears> layers;
};
extern const Kernel kPackedLinears;
// How launches with a PackedConvAttrs become one of those, by kernel.
bool linear_can_merge(const KernelContext& ctx);
bool linears_fit_together(const KernelContext& a, const KernelContext& b);
AttrBytes merged_linears(std::span<const KernelContext* const> launches);
std::string way_out_text(const PackedLinearsAttrs& attrs);
// Multiply-adds of a launch of one layer or of several of the same size.
std::int64_t work_of_linears(const KernelContext& ctx);

// What the products of a launch have apart from each other, and the order of their panels: the first half of each
// product's, then the second half of each. Threads that come from both ends make the same columns of each product,
// which a head of attention reads together.
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
  // Unit `index` of count() * panels.
  Unit unit(std::int64_t index, std::int64_t panels) const {
    const std::int64_t first = (panels + 1) / 2;
    if (index < count_ * first) return {products_[static_cast<std::size_t>(index / first)], index % first};
    index -= count_ * first;
    return {products_[static_cast<std::size_t>(index / (panels - first))], first + index % (panels - first)};
  }
  // Where outputs and residuals begin.
  void offset(std::int64_t floats);

 private:
  std::array<Product, kMostPackedLinears> products_;
  std::int64_t count_ = 1;
};

// What the sums of a convolution with a packed weight go over.
struct PackedSums {
  std::int64_t taps = 1, depth = 0;  // places of the input; steps in all
  std::span<const simd::ConvPiece> pieces = {};

  // Tiles of one panel, whether it is narrow or not. See PackedConvTable::tiles.
  void multiply(const simd::PackedConvTable& table, std::span<const simd::ConvTile> tiles, std::int64_t row,
                const float* panel, const float* next, bool fresh, std::int64_t first_channel, int width,
                const simd::ChannelEpilogue& e) const {
    const auto count = static_cast<int>(tiles.size());
    if (table.narrow_halves(taps, depth, width) != 0) {
      table.narrow_tiles(tiles.data(), count, row, depth, panel, first_channel, width, e);
    } else {
      table.tiles(tiles.data(), count, row, pieces.data(), static_cast<std::int64_t>(pieces.size()), panel, next, fresh,
                  first_channel, width, e);
    }
  }
};

// Scratch that they need when they run on up to `threads` threads. Where the input has a padding, or its channels do
// not lie beside each other, some samples of it are laid out.
std::int64_t packed_conv_scratch_bytes(const TensorDesc& x, const PackedConvAttrs& attrs, int threads);
std::int64_t packed_depthwise_scratch_bytes(const PackedConvAttrs& attrs, int threads);

// The same with the loops of a given level. The packed weight depends on it.
void run_pack_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
std::int64_t packed_conv_floats(const Shape& weight, std::int64_t groups, const simd::PackedConvTable& table);
void run_packed_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_packed_linears(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_packed_depthwise_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
