#pragma once

#include <array>
#include <cstdint>

#include "kernel/kernel.h"

// Random numbers from a counter (Philox 4x32-10): an element's value depends on the session's seed, the number of the
// run, the name of the node and the element's index, and so not on the number of threads.
namespace graft {

enum class Draw : std::int32_t {
  uniform,   // f32 or f64, in [0, 1)
  normal,    // f32 or f64, mean 0 and variance 1
  integers,  // i64, in [low, low + range)
  order,     // i64, rank 1: 0, 1, ... in random order
};
struct RandomAttrs {
  Draw draw = Draw::uniform;
  std::int32_t digits = 24;  // uniform, f32: the values are multiples of 2^-digits
  std::int64_t low = 0;
  std::uint64_t range = 1;  // 0: 2^64
};
// The generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1);

// outputs {contiguous}.
extern const Kernel kRandom;

}  // namespace graft
