#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_vec.h"
#include "kernel/kernel.h"

// Planar 3 x 3 convolutions of one group with steps of one, by Winograd's minimal products F(2 x 2, 3 x 3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", 2016): 16 products for four outputs and each input channel
// in the place of 36. All of it in f32; an output's rounding error is that of the sums of its tile of four. Tiles whose
// inputs are not all finite are summed tap by tap, so that an infinity or a NaN reaches those outputs alone that see
// it.
namespace graft {

// Weight [O, C, 1, 3, 3] contiguous and, with has_scale, a scale [O]; output: the floats that winograd_floats() counts.
extern const Kernel kPackWinograd;
std::int64_t winograd_floats(const Shape& weight);

// Whether a weight [O, C, KD, KH, KW] with these attributes can be packed so.
bool fits_winograd(const Shape& weight, const ConvAttrs& attrs);

// Inputs: x [N, C, 1, H, W], channels beside each other; packed weight; bias and residual as for kPackedConv.
extern const Kernel kWinogradConv;
std::int64_t winograd_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads);

// The same with the loops of a given instruction set.
struct WinogradLoops {
  const simd::PackedConvTable& products;
  const simd::WinogradTable& ends;
  explicit WinogradLoops(simd::Isa isa) : products(simd::packed_conv(isa)), ends(simd::winograd(isa)) {}
};
std::int64_t winograd_floats(const Shape& weight, const WinogradLoops& loops);
void run_pack_winograd(const KernelContext& ctx, const WinogradLoops& loops) noexcept;
std::int64_t winograd_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads,
                                    const WinogradLoops& loops);
void run_winograd_conv(const KernelContext& ctx, const WinogradLoops& loops) noexcept;

}  // namespace graft
