#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// Which instruction set the kernels under src/kernel/simd run with.
//
// Files in src/kernel/simd/isa are compiled once per level, each time inside `namespace graft::simd::GRAFT_ISA`
// (GRAFT_ISA is a macro there: baseline, avx2, avx512 ...), and export one const table of function pointers each.
// They hold plain C-like code only: an inline function of the standard library instantiated there with AVX-512 could
// be the copy the linker keeps for the whole program.
namespace graft::simd {

enum class Isa : std::uint8_t {
  baseline,  // what every CPU of this architecture has
  avx2,      // x86-64-v3: AVX2, FMA, F16C
  avx512,    // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  // And AVX-512 BF16, for products of matrices and attention; everything else as avx512.
  avx512bf16,
};

// "baseline", "avx2", "avx512", "avx512bf16".
std::string_view name(Isa isa);

// Best first is not promised: ascending order, baseline first. Only what was built and what this CPU can run, up to
// `most`: a kernel without loops of its own for a level has nothing to test there.
std::span<const Isa> available_isas(Isa most = Isa::avx512bf16);

// The level in use: the highest one that pays here, or the one the environment variable GRAFT_ISA names. Products of
// bf16 (vdpbf16ps) are twice as fast as those of f32 on AMD's Zen 4 and 5 and half as fast on Intel's Emerald Rapids
// (bench/roofline.cpp: 767 to 418 and 162 to 322 GFLOP/s with two cores): there avx512 is chosen. Decided at the first
// call. Throws InvalidArgument when GRAFT_ISA names no level or one that is not available here.
Isa active_isa();

}  // namespace graft::simd
