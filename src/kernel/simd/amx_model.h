#pragma once

// A model of AMX's tiles for tests on CPUs without them: bit-exact results, and faults where the instructions fault.
// After the operation sections of LDTILECFG, STTILECFG, TILELOADD, TILESTORED, TILEZERO,
// TDPBSSD/TDPBSUD/TDPBUSD/TDPBUUD and TDPBF16PS in the Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2, and its exception classes AMX-E1 to AMX-E5.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace graft::simd::GRAFT_ISA::amx_model {

// #GP or #UD.
struct Fault : std::logic_error {
  using std::logic_error::logic_error;
};

class Tiles {
 public:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;  // palette 1

  // Clears all tiles. A refused configuration changes nothing.
  void load_config(const void* memory) {
    std::uint8_t bytes[64];
    std::memcpy(bytes, memory, sizeof(bytes));
    if (bytes[0] == 0) return release();
    check(bytes[0] == 1, "LDTILECFG: no such palette");
    for (int i = 2; i < 16; ++i) check(bytes[i] == 0, "LDTILECFG: reserved bytes are not zero");
    Tile configured[kTiles];
    for (int t = 0; t < 16; ++t) {
      std::uint16_t row_bytes;
      std::memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof(row_bytes));
      const int rows = bytes[48 + t];
      if (t >= kTiles) {
        check(rows == 0 && row_bytes == 0, "LDTILECFG: a shape for a tile that does not exist");
        continue;
      }
      check(rows <= kRows && row_bytes <= kRowBytes, "LDTILECFG: a tile is too large");
      check((rows == 0) == (row_bytes == 0), "LDTILECFG: a tile has rows and no bytes, or bytes and no rows");
      configured[t].rows = rows;
      configured[t].row_bytes = row_bytes;
    }
    check(bytes[1] < kRows, "LDTILECFG: start_row is too large");
    for (int t = 0; t < kTiles; ++t) tile_[t] = configured[t];
    configured_ = true;
  }

  // Zeros where no tiles are configured.
  void store_config(void* memory) const {
    std::uint8_t bytes[64] = {static_cast<std::uint8_t>(configured_)};
    for (int t = 0; t < kTiles; ++t) {
      const auto row_bytes = static_cast<std::uint16_t>(tile_[t].row_bytes);
      std::memcpy(bytes + 16 + 2 * t, &row_bytes, sizeof(row_bytes));
      bytes[48 + t] = static_cast<std::uint8_t>(tile_[t].rows);
    }
    std::memcpy(memory, bytes, sizeof(bytes));
  }

  void release() {
    for (Tile& tile : tile_) tile = {};
    configured_ = false;
  }

  bool configured() const { return configured_; }

  void zero(int t) {
    Tile& tile = used(t);
    std::memset(tile.bytes, 0, sizeof(tile.bytes));
  }

  void load(int t, const void* from, std::int64_t stride) {
    Tile& tile = used(t);
    std::memset(tile.bytes, 0, sizeof(tile.bytes));  // also past the configured rows and their bytes
    for (int r = 0; r < tile.rows; ++r)
      std::memcpy(tile.bytes[r], static_cast<const char*>(from) + r * stride, static_cast<std::size_t>(tile.row_bytes));
  }

  void store(int t, void* to, std::int64_t stride) {
    const Tile& tile = used(t);
    for (int r = 0; r < tile.rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * stride, tile.bytes[r], static_cast<std::size_t>(tile.row_bytes));
  }

  void dpbssd(int c, int a, int b) { dot_bytes<std::int8_t, std::int8_t>(c, a, b); }
  void dpbsud(int c, int a, int b) { dot_bytes<std::int8_t, std::uint8_t>(c, a, b); }
  void dpbusd(int c, int a, int b) { dot_bytes<std::uint8_t, std::int8_t>(c, a, b); }
  void dpbuud(int c, int a, int b) { dot_bytes<std::uint8_t, std::uint8_t>(c, a, b); }

  // Even and odd products of a row are summed separately, by fused operations; their sum is added to c. Subnormal
  // inputs and results count as zero.
  void dpbf16ps(int c, int a, int b) {
    const auto [sums, x, y] = operands(c, a, b);
    for (int m = 0; m < sums.rows; ++m) {
      float even[kRowBytes / 4] = {}, odd[kRowBytes / 4] = {};
      for (int k = 0; k < x.row_bytes / 4; ++k) {
        for (int n = 0; n < sums.row_bytes / 4; ++n) {
          even[n] = flushed(std::fma(number(x, m, 2 * k), number(y, k, 2 * n), even[n]));
          odd[n] = flushed(std::fma(number(x, m, 2 * k + 1), number(y, k, 2 * n + 1), odd[n]));
        }
      }
      for (int n = 0; n < sums.row_bytes / 4; ++n) {
        float sum;
        std::memcpy(&sum, sums.bytes[m] + 4 * n, 4);
        sum = flushed(flushed(sum) + flushed(even[n] + odd[n]));
        std::memcpy(sums.bytes[m] + 4 * n, &sum, 4);
      }
    }
  }

 private:
  struct Tile {
    int rows = 0, row_bytes = 0;
    std::uint8_t bytes[kRows][kRowBytes] = {};
  };
  struct Operands {
    Tile& c;
    const Tile &a, &b;
  };

  static void check(bool fits, const char* fault) {
    if (!fits) throw Fault(fault);
  }

  Tile& used(int t) {
    check(configured_, "#UD: no tiles are configured");
    check(t >= 0 && t < kTiles && tile_[t].rows != 0, "#UD: the tile is not configured");
    return tile_[t];
  }

  Operands operands(int c, int a, int b) {
    const Operands out = {used(c), used(a), used(b)};
    check(c != a && c != b && a != b, "#UD: an operand is used twice");
    check(out.c.row_bytes % 4 == 0 && out.a.row_bytes % 4 == 0 && out.b.row_bytes % 4 == 0, "#UD: parts of 32 bits");
    check(out.c.rows == out.a.rows, "#UD: rows of the sums and of the first operand");
    check(out.a.row_bytes / 4 == out.b.rows, "#UD: depths of the operands");
    check(out.c.row_bytes == out.b.row_bytes, "#UD: columns of the sums and of the second operand");
    return out;
  }

  template <typename A, typename B>
  void dot_bytes(int c, int a, int b) {
    const auto [sums, x, y] = operands(c, a, b);
    for (int m = 0; m < sums.rows; ++m) {
      for (int n = 0; n < sums.row_bytes / 4; ++n) {
        std::uint32_t sum;  // wraps
        std::memcpy(&sum, sums.bytes[m] + 4 * n, 4);
        for (int k = 0; k < x.row_bytes / 4; ++k)
          for (int i = 0; i < 4; ++i)
            sum += static_cast<std::uint32_t>(static_cast<A>(x.bytes[m][4 * k + i]) *
                                              static_cast<B>(y.bytes[k][4 * n + i]));
        std::memcpy(sums.bytes[m] + 4 * n, &sum, 4);
      }
    }
  }

  static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }
  static float number(const Tile& tile, int row, int i) {
    std::uint16_t half;
    std::memcpy(&half, tile.bytes[row] + 2 * i, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return flushed(x);
  }

  Tile tile_[kTiles];
  bool configured_ = false;
};

// One per thread, as the registers are.
inline thread_local Tiles tiles;

}  // namespace graft::simd::GRAFT_ISA::amx_model
