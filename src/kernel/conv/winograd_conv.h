#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_vec.h"
#include "kernel/kernel.h"

// Planar 3 x 3 convolutions of one group with stride 1, by Winograd's minimal filtering F(2 x 2, 3 x 3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", 2016): 16 products instead of 36 for four outputs and each
// input channel. All in f32; an output's rounding error is that of the sums of its tile of four. Tiles with an input
// that is not finite are summed tap by tap, so that an infinity or a NaN affects only the outputs that see it.
namespace graft {

// Packs a weight [O, C, 1, 3, 3], contiguous, and, with has_scale, a scale [O]. Output: winograd_floats() floats.
extern const Kernel kPackWinograd;
std::int64_t winograd_floats(const Shape& weight);

// Whether a weight [O, C, KD, KH, KW] with these attributes fits.
bool fits_winograd(const Shape& weight, const ConvAttrs& attrs);

// Inputs: x [N, C, 1, H, W], channels last; packed weight; bias and residual as for kPackedConv.
extern const Kernel kWinogradConv;
std::int64_t winograd_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads);

// With the inner loops of a given instruction set.
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
