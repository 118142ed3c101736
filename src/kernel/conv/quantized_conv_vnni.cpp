// Compiled for AVX2 and for AVX-512 with VNNI only: see cmake/GraftLibrary.cmake.
#include "kernel/conv/quantized_conv_vec.h"

#include "kernel/simd/vec_bytes.h"

namespace graft::simd::GRAFT_ISA {
namespace {

using std::int32_t;
using std::uint8_t;

constexpr int kSumLanes = Widest::kLanes, kTileRows = kVectorRegisters == 32 ? 12 : 4;

// --- epilogues ---

// n channels of a residual as integers, in slot_of() order.
template <typename V, int N>
GRAFT_VEC void load_residual(const uint8_t* p, i64 n, uint8_t flip, typename V::Ints (&to)[N]) {
  const auto none = V::none();
  if constexpr (N == 4) {
    const auto bytes = V::flipped(V::bytes(p, n), V::splat_byte(flip));
    const auto low = V::low8(none, bytes), high = V::high8(none, bytes);
    to[0] = V::template shifted<24>(V::low16(none, low));
    to[1] = V::template shifted<24>(V::high16(none, low));
    to[2] = V::template shifted<24>(V::low16(none, high));
    to[3] = V::template shifted<24>(V::high16(none, high));
  } else if constexpr (N == 2) {
    const auto wide = V::wide16(p, n, flip);
    to[0] = V::template shifted<16>(V::low16(none, wide));
    to[1] = V::template shifted<16>(V::high16(none, wide));
  } else {
    to[0] = V::wide32(p, n, flip);
  }
}

// How results are written: as floats, as bytes, or as bytes with a residual added.
enum class Way { floats, bytes, summed };

// The numbers of an epilogue in vectors. Bytes are clamped after packing; before it, only to what fits 32 bits.
template <typename V>
struct Epilogue {
  typename V::Floats most;
  typename V::Ints zero, low, high, flips;

  GRAFT_VEC Epilogue of(const QuantizedEpilogue& e) {
    const QuantizeTo& last = e.residual != nullptr ? e.second : e.first;
    const auto byte = [&](float bound) __attribute__((always_inline)) {
      return V::splat_byte(static_cast<uint8_t>(static_cast<int32_t>(bound) + e.zero));
    };
    return {V::all(kMost), V::splat_short(static_cast<std::int16_t>(e.zero)), byte(last.low), byte(last.high),
            V::splat_byte(e.flip)};
  }
  static constexpr float kMost = 1 << 20;  // far beyond the range of a byte
};

template <typename V, int N>
GRAFT_VEC void put_bytes(uint8_t* to, const typename V::Ints (&q)[N], const Epilogue<V>& e, i64 n) {
  const auto first = V::add16(V::packed32(q[0], q[N > 1 ? 1 : 0]), e.zero);
  auto second = first;
  if constexpr (N == 4) second = V::add16(V::packed32(q[2], q[3]), e.zero);
  const auto bytes = V::flipped(V::clamped8(V::packed16(first, second), e.low, e.high), e.flips);
  if constexpr (N == 4) {
    V::put4(to, bytes, n);
  } else if constexpr (N == 2) {
    V::put2(to, bytes, n);
  } else {
    V::put1(to, bytes, n);
  }
}

template <typename V, int N>
GRAFT_VEC void put_numbers(float* to, const typename V::Floats (&y)[N], i64 n) {
  constexpr int kWidth = N * V::kLanes;
  alignas(64) float by_slot[kWidth];
  for (int j = 0; j < N; ++j) V::put_floats(by_slot + j * V::kLanes, y[j]);
  for (int c = 0; c < kWidth && c < n; ++c) to[c] = by_slot[slot_of(c, N, V::kLanes)];
}

// Epilogue for n channels of `rows` positions from `first` on, with sums [position][channel] in slot_of() order.
// Fields that the byte stores might alias are copied to locals: read through pointers they would be reloaded for each
// position.
template <typename V, int N, Way way>
GRAFT_VEC void finish_all(const int32_t* kept, i64 first, i64 rows, const std::byte* panel, i64 channel, i64 n,
                          const QuantizedEpilogue& given) {
  constexpr int kWidth = N * V::kLanes;
  const QuantizedEpilogue e = given;
  const auto vectors = Epilogue<V>::of(e);
  const float* numbers = reinterpret_cast<const float*>(panel) + kWidth;
  typename V::Floats scale[N], bias[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    scale[j] = V::floats(numbers + j * V::kLanes);
    bias[j] = V::floats(numbers + kWidth + j * V::kLanes);
    if constexpr (way != Way::floats) {
      scale[j] = V::times(scale[j], V::all(e.first.inverse));
      bias[j] = V::times(bias[j], V::all(e.first.inverse));
    }
  }
  const auto low = V::all(e.first.low), high = V::all(e.first.high), again = V::all(e.scale),
             residual_zero = V::all(-e.residual_zero), residual_scale = V::all(e.residual_scale),
             second = V::all(e.second.inverse);
  const uint8_t* from = way == Way::summed ? e.residual + first * e.residual_row + channel : nullptr;
  auto* to = static_cast<uint8_t*>(e.out) + (first * e.out_row + channel) * (way == Way::floats ? 4 : 1);
#pragma GCC unroll 1
  for (i64 i = 0; i < rows; ++i, kept += kWidth) {
    typename V::Floats y[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) y[j] = V::fused(V::from(V::load(kept + j * V::kLanes)), scale[j], bias[j]);
    if constexpr (way == Way::floats) {
      put_numbers<V, N>(reinterpret_cast<float*>(to), y, n);
      to += e.out_row * 4;
    } else {
      if constexpr (way == Way::summed) {
        typename V::Ints residual[N];
        load_residual<V, N>(from, n, e.residual_flip, residual);
        from += e.residual_row;
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
          const auto t = V::whole(V::least(V::most(y[j], low), high));
          const auto r = V::times(V::sum(V::from(residual[j]), residual_zero), residual_scale);
          y[j] = V::times(V::sum(V::times(t, again), r), second);
        }
      }
      typename V::Ints q[N];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) q[j] = V::rounded(V::least(y[j], vectors.most));
      put_bytes<V, N>(to, q, vectors, n);
      to += e.out_row;
    }
  }
}

// The sums go through memory between the loop over them and this: in one function, the compiler would spill sums in
// every step.
template <typename V, int N>
__attribute__((noinline)) void finish_rows(const int32_t* kept, i64 first, i64 rows, const std::byte* panel,
                                           i64 channel, i64 n, const QuantizedEpilogue& e) {
  constexpr i64 kWhole = N * V::kLanes;
  if (e.floats) return finish_all<V, N, Way::floats>(kept, first, rows, panel, channel, n, e);
  // Whole vectors need no masks.
  if (e.residual != nullptr) {
    if (n == kWhole) return finish_all<V, N, Way::summed>(kept, first, rows, panel, channel, kWhole, e);
    return finish_all<V, N, Way::summed>(kept, first, rows, panel, channel, n, e);
  }
  if (n == kWhole) return finish_all<V, N, Way::bytes>(kept, first, rows, panel, channel, kWhole, e);
  finish_all<V, N, Way::bytes>(kept, first, rows, panel, channel, n, e);
}

// --- convolutions over all input channels ---

// R outputs of N vectors of channels: their sums, row by row.
template <typename V, int N, int R, bool flips>
GRAFT_VEC void add_rows(const uint8_t* x, i64 row, const ByteRun* runs, i64 run_count, const std::byte* panel,
                        int32_t* to) {
  constexpr int kWidth = N * V::kLanes;
  const auto sign = V::splat_byte(0x80);
  typename V::Ints sums[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sums[r][j] = V::load(panel + j * V::kLanes * 4);
  }
  const std::byte* w = panel + 3 * kWidth * 4;
  for (i64 i = 0; i < run_count; ++i) {
    // The last one to three bytes of a run come from a copy, so that nothing past the run is read.
    const i64 depth = runs[i].depth, rest = depth % 4;
    uint8_t last[4 * R];
    const uint8_t* from = x + runs[i].offset;
    i64 stride = row, steps = depth / 4;
    for (int part = 0; part < (rest != 0 ? 2 : 1); ++part) {
      if (part == 1) {
        for (int r = 0; r < R; ++r)
          for (i64 k = 0; k < 4; ++k) last[4 * r + k] = k < rest ? from[r * row + depth - rest + k] : 0;
        from = last;
        stride = 4;
        steps = 1;
      }
      // Rows in groups of three, so that one pointer and one stride address a group (x86 has 16 general registers).
      const uint8_t* group[(R + 2) / 3];
#pragma GCC unroll 4
      for (int g = 0; g < (R + 2) / 3; ++g) group[g] = from + 3 * g * stride;
      for (i64 k = 0; k < steps; ++k, w += kWidth * 4) {
        typename V::Ints weights[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) weights[j] = V::load(w + j * V::kLanes * 4);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          int32_t word;
          __builtin_memcpy(&word, group[r / 3] + (r % 3) * stride, 4);
          const auto a = flips ? V::flipped(V::splat(word), sign) : V::splat(word);
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) sums[r][j] = V::dot(sums[r][j], a, weights[j]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < (R + 2) / 3; ++g) group[g] += 4;
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) V::put(to + (r * N + j) * V::kLanes, sums[r][j]);
  }
}

using Rows = void (*)(const uint8_t*, i64, const ByteRun*, i64, const std::byte*, int32_t*);

template <int N, int R, bool flips>
void rows_of(const uint8_t* x, i64 row, const ByteRun* runs, i64 run_count, const std::byte* panel, int32_t* to) {
  add_rows<Widest, N, R, flips>(x, row, runs, run_count, panel, to);
}

// With 4 vectors half as many rows fill the registers.
constexpr int kRowsOfFour = kTileRows / 2;
template <int N, bool flips>
constexpr auto kRowsOf = by_rows<Rows, N == 4 ? kRowsOfFour : kTileRows>([]<int R>() -> Rows {
  return rows_of<N, R, flips>;
});
template <bool flips>
const Rows* rows_of_vectors(int vectors) {
  return vectors == 4 ? kRowsOf<4, flips>.of : vectors == 2 ? kRowsOf<2, flips>.of : kRowsOf<1, flips>.of;
}

void conv_tile(const ByteTile& at, i64 row, uint8_t flip, const ByteRun* runs, i64 run_count, const std::byte* panel,
               int vectors, i64 first_channel, int width, const QuantizedEpilogue& e) {
  alignas(64) int32_t sums[kTileRows * 4 * kSumLanes];
  const Rows* all = flip != 0 ? rows_of_vectors<true>(vectors) : rows_of_vectors<false>(vectors);
  const int most = vectors == 4 ? kRowsOfFour : kTileRows;
  for (int r = 0; r < at.rows;) {
    const int left = at.rows - r, parts = (left + most - 1) / most, rows = (left + parts - 1) / parts;
    all[rows - 1](at.x + r * row, row, runs, run_count, panel, sums + r * vectors * kSumLanes);
    r += rows;
  }
  const auto finish = vectors == 4   ? finish_rows<Widest, 4>
                      : vectors == 2 ? finish_rows<Widest, 2>
                                     : finish_rows<Widest, 1>;
  finish(sums, at.first, at.rows, panel, first_channel, width, e);
}

// --- depthwise convolutions: one input channel per output channel ---

using Line = QuantizedConvTable::Line;

// The bytes of two adjacent columns, interleaved by channel.
template <typename V, bool flips>
struct Pair {
  typename V::Ints low, high;

  GRAFT_VEC Pair of(const uint8_t* a, const uint8_t* b, i64 n) {
    auto x = V::bytes(a, n), y = V::bytes(b, n);
    if constexpr (flips) {
      x = V::flipped(x, V::splat_byte(0x80));
      y = V::flipped(y, V::splat_byte(0x80));
    }
    return {V::low8(x, y), V::high8(x, y)};
  }

  // The four bytes of each channel, in slot_of() order.
  GRAFT_VEC void interleave(const Pair& a, const Pair& b, typename V::Ints (&to)[4]) {
    to[0] = V::low16(a.low, b.low);
    to[1] = V::high16(a.low, b.low);
    to[2] = V::low16(a.high, b.high);
    to[3] = V::high16(a.high, b.high);
  }
};

template <typename V>
GRAFT_VEC void start(const std::byte* block, typename V::Ints (&sums)[4]) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) sums[j] = V::load(block + j * V::kLanes * 4);
}

template <typename V>
GRAFT_VEC void add_dots(const typename V::Ints (&x)[4], const std::byte* w, typename V::Ints (&sums)[4]) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) sums[j] = V::dot(sums[j], x[j], V::load(w + j * V::kLanes * 4));
}

template <typename V>
GRAFT_VEC void put_sums(const typename V::Ints (&sums)[4], int32_t* to) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) V::put(to + j * V::kLanes, sums[j]);
}

// The sums of O adjacent outputs, two for each group of four columns. `whole`: n is a whole block of channels, which
// needs no masks.
template <typename V, int O, bool flips, bool whole>
__attribute__((noinline)) void sum_pairs(const Line& d, const std::byte* block, i64 o, i64 channel, i64 given,
                                         int32_t* to) {
  constexpr int kWidth = 4 * V::kLanes;
  const i64 n = whole ? kWidth : given, lines = d.lines, pitch = d.pitch, last = d.taps + O - 2;
  const std::byte* w = block + 3 * kWidth * 4;
  const uint8_t* const* at = d.columns + o;
  typename V::Ints sums[O][4];
#pragma GCC unroll 4
  for (int i = 0; i < O; ++i) start<V>(block, sums[i]);
  for (i64 l = 0; l < lines; ++l, w += 2 * kWidth * 4, at += pitch) {
    Pair<V, flips> pairs[O / 2 + 1];
    // With fewer taps there are fewer columns: the weights of the others are 0.
#pragma GCC unroll 3
    for (int p = 0; p < O / 2 + 1; ++p) {
      const i64 a = 2 * p < last ? 2 * p : last, b = 2 * p + 1 < last ? 2 * p + 1 : last;
      pairs[p] = Pair<V, flips>::of(at[a] + channel, at[b] + channel, n);
    }
#pragma GCC unroll 2
    for (int p = 0; p < O / 2; ++p) {
      typename V::Ints x[4];
      Pair<V, flips>::interleave(pairs[p], pairs[p + 1], x);
      add_dots<V>(x, w, sums[2 * p]);
      add_dots<V>(x, w + kWidth * 4, sums[2 * p + 1]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < O; ++i) put_sums<V>(sums[i], to + i * kWidth);
}

// The sums of outputs one by one. `few`: the taps of a row are one group.
template <typename V, bool flips, bool whole, bool few>
__attribute__((noinline)) void sum_each(const Line& d, const std::byte* block, i64 o, i64 count, i64 channel, i64 given,
                                        int32_t* to) {
  constexpr int kWidth = 4 * V::kLanes;
  using Columns = Pair<V, flips>;
  const i64 n = whole ? kWidth : given, lines = d.lines, pitch = d.pitch, step = d.step, tap = d.tap;
  const i64 taps = few && d.taps > 4 ? 4 : d.taps, groups = d.pairs ? 2 : (taps + 3) / 4;  // groups stored for a row
  const uint8_t* const* first = d.columns + o * step;
  for (i64 i = 0; i < count; ++i, first += step, to += kWidth) {
    typename V::Ints sums[4], x[4];
    start<V>(block, sums);
    const std::byte* w = block + 3 * kWidth * 4;
    const uint8_t* const* at = first;
    for (i64 l = 0; l < lines; ++l, at += pitch, w += groups * kWidth * 4) {
      for (i64 t = 0; t < (few ? 1 : taps); t += 4) {
        const uint8_t* columns[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) columns[c] = at[(t + c < taps ? t + c : t) * tap] + channel;
        Columns::interleave(Columns::of(columns[0], columns[1], n), Columns::of(columns[2], columns[3], n), x);
        add_dots<V>(x, w + t * kWidth, sums);
      }
    }
    put_sums<V>(sums, to);
  }
}

template <typename V, bool flips, bool whole>
void depthwise_outputs(const Line& d, const std::byte* block, i64 channel, i64 n, const QuantizedEpilogue& e) {
  // Their sums stay in the first-level cache.
  constexpr i64 kOutputs = 16, kWidth = 4 * V::kLanes;
  alignas(64) int32_t sums[kOutputs * kWidth];
  for (i64 first = 0; first < d.outputs; first += kOutputs) {
    const i64 end = first + kOutputs < d.outputs ? first + kOutputs : d.outputs;
    i64 o = first;
    for (; d.pairs && o + 4 <= end; o += 4)
      sum_pairs<V, 4, flips, whole>(d, block, o, channel, n, sums + (o - first) * kWidth);
    if (d.pairs && o + 2 <= end) {
      sum_pairs<V, 2, flips, whole>(d, block, o, channel, n, sums + (o - first) * kWidth);
      o += 2;
    }
    if (o < end) {
      const auto each = d.taps <= 4 ? sum_each<V, flips, whole, true> : sum_each<V, flips, whole, false>;
      each(d, block, o, end - o, channel, n, sums + (o - first) * kWidth);
    }
    finish_rows<V, 4>(sums, first, end - first, block, channel, n, e);
  }
}

template <typename V>
void depthwise_block(const Line& d, const std::byte* block, i64 channel, i64 n, const QuantizedEpilogue& e) {
  const bool whole = n == 4 * V::kLanes;
  const auto run = d.flip != 0 ? (whole ? depthwise_outputs<V, true, true> : depthwise_outputs<V, true, false>)
                               : (whole ? depthwise_outputs<V, false, true> : depthwise_outputs<V, false, false>);
  run(d, block, channel, n, e);
}

void depthwise(const Line& d, const QuantizedEpilogue& e) {
  const i64 groups = d.pairs ? 2 : (d.taps + 3) / 4;
  const std::byte* block = d.weight;
  for (i64 c = 0; c < d.channels;) {
    const i64 left = d.channels - c;
    i64 width = 16;
    if (left <= 16) {
      depthwise_block<V128>(d, block, c, left, e);
    } else {
      width = left <= 32 ? 32 : 4 * kSumLanes;
      if (width == 64)
        depthwise_block<Widest>(d, block, c, left < 64 ? left : 64, e);
      else
        depthwise_block<V256>(d, block, c, left < 32 ? left : 32, e);
    }
    block += width * (12 + d.lines * groups * 4);
    c += width;
  }
}

}  // namespace

const QuantizedConvTable kQuantizedConv = {kSumLanes, 4, kTileRows, conv_tile, true, depthwise};

}  // namespace graft::simd::GRAFT_ISA
