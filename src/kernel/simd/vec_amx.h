#pragma once

// AMX's tiles: eight registers of up to 16 rows of 64 bytes, whose shapes are configured at run time. With
// GRAFT_AMX_MODEL the same functions run on a model of them, for CPUs without AMX: see amx_model.h.

#include "kernel/simd/vec.h"
#ifdef GRAFT_AMX_MODEL
#include "kernel/simd/amx_model.h"
#endif

namespace graft::simd::GRAFT_ISA {

constexpr int kTileHeight = 16;    // rows of a tile
constexpr int kTileRowBytes = 64;  // bytes of a row

// The memory operand of LDTILECFG.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};  // by tile; 0 for an unused tile
  std::uint8_t rows[16] = {};

  GRAFT_VEC void shape(TileConfig& config, int tile, int rows, int row_bytes) {
    config.rows[tile] = static_cast<std::uint8_t>(rows);
    config.row_bytes[tile] = static_cast<std::uint16_t>(rows == 0 ? 0 : row_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

#ifdef GRAFT_AMX_MODEL

GRAFT_VEC void configure_tiles(const TileConfig& config) { amx_model::tiles.load_config(&config); }
GRAFT_VEC void store_tile_config(TileConfig& config) { amx_model::tiles.store_config(&config); }
template <int t>
GRAFT_VEC void zero_tile() {
  amx_model::tiles.zero(t);
}
template <int t>
GRAFT_VEC void load_tile(const void* from, i64 stride) {
  amx_model::tiles.load(t, from, stride);
}
template <int t>
GRAFT_VEC void store_tile(void* to, i64 stride) {
  amx_model::tiles.store(t, to, stride);
}
template <int c, int a, int b>
GRAFT_VEC void add_products_bf16() {
  amx_model::tiles.dpbf16ps(c, a, b);
}
template <int c, int a, int b>
GRAFT_VEC void add_products_s8_u8() {
  amx_model::tiles.dpbsud(c, a, b);
}

#else

// GCC 12's intrinsic does not tell the compiler that the configuration is read from memory.
GRAFT_VEC void configure_tiles(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
GRAFT_VEC void store_tile_config(TileConfig& config) { asm volatile("sttilecfg %0" : "=m"(config)); }
template <int t>
GRAFT_VEC void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"n"(t));
}
// Rows are `stride` bytes apart.
template <int t>
GRAFT_VEC void load_tile(const void* from, i64 stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(t) : "memory");
}
template <int t>
GRAFT_VEC void store_tile(void* to, i64 stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "n"(t) : "memory");
}
// c[m][n] += sum over k of a[m][k] * b[k][n], with two numbers in bf16 for each k: see TDPBF16PS.
template <int c, int a, int b>
GRAFT_VEC void add_products_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(c), "n"(a), "n"(b));
}
// c[m][n] += sum over k of a[m][k] * b[k][n], with four bytes for each k, signed in a and unsigned in b, and 32-bit
// sums: see TDPBSUD.
template <int c, int a, int b>
GRAFT_VEC void add_products_s8_u8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(c), "n"(a), "n"(b));
}

#endif

// Puts the configuration back at its end that the thread had at its begin: ggml configures the tiles of a thread once
// and never again. Tiles that were not in use are released by it.
class TileConfigGuard {
 public:
  TileConfigGuard() { store_tile_config(callers_); }
  ~TileConfigGuard() { configure_tiles(callers_); }
  TileConfigGuard(const TileConfigGuard&) = delete;
  TileConfigGuard& operator=(const TileConfigGuard&) = delete;

 private:
  TileConfig callers_;
};

}  // namespace graft::simd::GRAFT_ISA
