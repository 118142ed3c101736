#include "kernel/conv/packed_conv_vec.h"

#include "kernel/conv/channel_epilogue.h"
#include "kernel/matmul/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// --- convolutions over all input channels ---

// Of small numbers: a 64-bit division takes as long as some steps of a tile.
GRAFT_VEC i64 quotient(i64 a, i64 b) { return static_cast<unsigned>(a) / static_cast<unsigned>(b); }

// Cache lines that a tile prefetches while it computes, some every kPrefetchSteps steps: its part of the weights read
// next.
struct Ahead {
  const char* from;
  i64 lines;
};
constexpr i64 kPrefetchSteps = 64;

GRAFT_VEC void prefetch(Ahead& ahead, i64 at_once) {
  const i64 n = smaller(ahead.lines, at_once);
  for (i64 i = 0; i < n; ++i) __builtin_prefetch(ahead.from + i * 64, 0, 2);
  ahead.from += n * 64;
  ahead.lines -= n;
}

// Writes the sums of R positions and `width` channels, which fill NV - 1 vectors and `rest` lanes of the last one.
template <int R, int NV, bool kPart, bool kResidual>
GRAFT_VEC void put_sums(const Epilogue& e, const vf (&x)[R][NV], i64 first, i64 channel, i64 rest) {
  constexpr int kLast = NV - 1;
  vf bias[NV];
#pragma GCC unroll 2
  for (int n = 0; n < kLast; ++n) bias[n] = bias_of(e, channel + n * kLanes, kLanes);
  bias[kLast] = bias_of(e, channel + kLast * kLanes, rest);
  float* out = e.out + first * e.out_row + channel;
  const float* residual = kResidual ? e.residual + first * e.residual_row + channel : nullptr;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      const bool part = kPart && n == kLast;
      vf sum = x[r][n] + bias[n];
      if (kResidual) sum += part ? load_n(residual + n * kLanes, static_cast<int>(rest)) : load(residual + n * kLanes);
      sum = at_most(at_least(sum, e.low), e.high);
      if (part) {
        store_n(out + n * kLanes, sum, static_cast<int>(rest));
      } else {
        store(out + n * kLanes, sum);
      }
    }
    out += e.out_row;
    if (kResidual) residual += e.residual_row;
  }
}

// The general case of put_tile(), with the sums in memory.
__attribute__((noinline)) void put_any(const Epilogue& e, const float* sums, i64 positions, i64 first, i64 channel,
                                       i64 width) {
  const i64 vectors = (width + kLanes - 1) / kLanes;
  for (i64 r = 0; r < positions; ++r)
    for (i64 n = 0; n < vectors; ++n, sums += kLanes) {
      const i64 left = width - n * kLanes;
      put(e, load(sums), bias_of(e, channel + n * kLanes, left), first + r, channel + n * kLanes, left);
    }
}

template <int R, int NV>
GRAFT_VEC void put_tile(const Epilogue& e, const vf (&x)[R][NV], i64 first, i64 channel, i64 width) {
  const i64 rest = width - (NV - 1) * kLanes;
  if (e.activation != Activation::none) {
    alignas(64) float sums[R * NV * kLanes];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) store(sums + (r * NV + n) * kLanes, x[r][n]);
    }
    const Epilogue copy = e;  // so that `e` itself stays in registers
    put_any(copy, sums, R, first, channel, smaller(width, NV * kLanes));
  } else if (rest >= kLanes) {
    e.residual == nullptr ? put_sums<R, NV, false, false>(e, x, first, channel, kLanes)
                          : put_sums<R, NV, false, true>(e, x, first, channel, kLanes);
  } else {
    e.residual == nullptr ? put_sums<R, NV, true, false>(e, x, first, channel, rest)
                          : put_sums<R, NV, true, true>(e, x, first, channel, rest);
  }
}

// R outputs of NV vectors of channels: the sum over some K blocks. `partial`: in, the sums of the K blocks before; out,
// the sums so far. kFresh: also prefetches the rows of the next tile (a separate instance, as the check would slow down
// all tiles).
template <int R, int NV, bool kFresh>
void conv_tile(const ConvTile& at, i64 row, const KBlock* k_blocks, i64 count, const float* v, float* partial,
               bool first, bool last, i64 channel, i64 width, const ChannelEpilogue& e, Ahead ahead, i64 depth,
               RowsAhead next_rows) {
  TileSums<R, NV> sums;
  clear(sums);
  // Without prefetches a K block is a single step.
  const bool prefetches = ahead.lines > 0;
  const i64 steps = prefetches ? kPrefetchSteps : kConvDepth;
  const i64 at_once =
      !prefetches || depth <= kPrefetchSteps ? ahead.lines : quotient(ahead.lines * kPrefetchSteps, depth) + 1;
  for (i64 p = 0; p < count; ++p) {
    for (i64 k = 0; k < k_blocks[p].depth; k += steps) {
      const i64 n = smaller(steps, k_blocks[p].depth - k);
      if (prefetches) prefetch(ahead, at_once);
      add_products(at.x + k_blocks[p].offset + k, row, v, kPanel, n, sums, kFresh ? next_rows : RowsAhead{});
    }
  }
  vf x[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[r][n] = total(sums, r, n);
  }
  if (!first) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) x[r][n] += load(partial + (r * NV + n) * kLanes);
    }
  }
  if (last) {
    put_tile<R, NV>(in_registers(e), x, at.first, channel, width);
    return;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) store(partial + (r * NV + n) * kLanes, x[r][n]);
  }
}

using ConvTileFn = void (*)(const ConvTile&, i64, const KBlock*, i64, const float*, float*, bool, bool, i64, i64,
                            const ChannelEpilogue&, Ahead, i64, RowsAhead);

template <int NV, bool kFresh>
constexpr auto kConvTileFns = by_rows<ConvTileFn, kTileRows>([]<int R>() -> ConvTileFn {
  return conv_tile<R, NV, kFresh>;
});

// The sum over all K blocks without prefetching: in a tile with a short sum, all overhead counts.
template <int R, int NV>
void whole_tile(const ConvTile& at, i64 row, const KBlock* k_blocks, i64 count, const float* v, i64 channel, i64 width,
                const ChannelEpilogue& e) {
  TileSums<R, NV> sums;
  clear(sums);
  for (i64 p = 0; p < count; ++p) add_products(at.x + k_blocks[p].offset, row, v, kPanel, k_blocks[p].depth, sums);
  vf x[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[r][n] = total(sums, r, n);
  }
  put_tile<R, NV>(in_registers(e), x, at.first, channel, width);
}

using WholeTileFn = void (*)(const ConvTile&, i64, const KBlock*, i64, const float*, i64, i64, const ChannelEpilogue&);

template <int NV>
constexpr auto kWholeTileFns = by_rows<WholeTileFn, kTileRows>([]<int R>() -> WholeTileFn {
  return whole_tile<R, NV>;
});

void conv_tiles(const ConvTile* tiles, int count, i64 row, const KBlock* k_blocks, i64 block_count, const float* panel,
                const float* next_panel, bool fresh, i64 first_channel, int width, const ChannelEpilogue& e) {
  alignas(64) float partial[kConvTiles][kTileRows * kPanel];
  // As many K blocks as make one pass; an empty sum is one block of depth 0.
  const auto block_end = [&](i64 begin, i64& depth) {
    i64 end = begin;
    depth = 0;
    while (end < block_count && (end == begin || depth + k_blocks[end].depth <= kConvDepth))
      depth += k_blocks[end++].depth;
    return end;
  };
  i64 done = 0, depth = 0, first_depth = 0;
  i64 end = block_end(0, first_depth);
  depth = first_depth;
  // A single tile is bound by reading its weights, whose order the hardware prefetcher follows.
  const bool prefetches = next_panel != nullptr && count > 1;
  if (end == block_count && !prefetches) {
    const WholeTileFn* const fns = width > kLanes ? kWholeTileFns<2>.of : kWholeTileFns<1>.of;
    for (int t = 0; t < count; ++t)
      fns[tiles[t].rows - 1](tiles[t], row, k_blocks, end, panel, first_channel, width, e);
    return;
  }
  const ConvTileFn* const fns = width > kLanes ? (fresh ? kConvTileFns<2, true>.of : kConvTileFns<2, false>.of)
                                               : (fresh ? kConvTileFns<1, true>.of : kConvTileFns<1, false>.of);
  for (;;) {
    i64 next_depth = first_depth;
    const bool last = end == block_count;
    const i64 next_end = last ? 0 : block_end(end, next_depth);
    const char* next = reinterpret_cast<const char*>(last ? next_panel : panel + depth * kPanel);
    i64 lines = prefetches ? next_depth * kPanel * 4 / 64 : 0;
    const i64 each = quotient(lines, count) + 1;
    for (int t = 0; t < count; ++t) {
      const Ahead ahead = {next, smaller(each, lines)};
      next += ahead.lines * 64;
      lines -= ahead.lines;
      RowsAhead rows;
      if (t + 1 < count) {
        rows = {tiles[t + 1].x - tiles[t].x, tiles[t + 1].rows};
      } else if (!last) {
        rows = {tiles[0].x - tiles[t].x + k_blocks[end].offset - k_blocks[done].offset, tiles[0].rows};
      }
      fns[tiles[t].rows - 1](tiles[t], row, k_blocks + done, end - done, panel, partial[t], done == 0, last,
                             first_channel, width, e, ahead, depth, rows);
    }
    if (last) return;
    panel += depth * kPanel;
    done = end;
    end = next_end;
    depth = next_depth;
  }
}

// --- narrow panels ---

// Sums of adjacent lanes: 0 and 1 of a, 2 and 3 of a, ..., then of b.
GRAFT_VEC vf sum_pairs(vf a, vf b) { return every_second_lane<0>(a, b) + every_second_lane<1>(a, b); }

// R outputs of H half vectors of channels.
template <int R, int H>
GRAFT_VEC void narrow_sums(const float* s, i64 s_row, const float* v, i64 steps, vf (&x)[R][(H + 1) / 2]) {
  vf c[R][H];
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < H; ++h) c[r][h] = zero();
  }
  const float* group[(R + 2) / 3];
  for (int g = 0; g < (R + 2) / 3; ++g) group[g] = s + 3 * g * s_row;
  for (i64 k = 0; k < steps; k += 2) {
    vf w[H];
#pragma GCC unroll 3
    for (int h = 0; h < H; ++h) w[h] = load(v + h * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const vf b = splat_pair(group[r / 3] + (r % 3) * s_row);
#pragma GCC unroll 3
      for (int h = 0; h < H; ++h) c[r][h] = fma(b, w[h], c[r][h]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < (R + 2) / 3; ++g) group[g] += 2;
    v += H * kLanes;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < (H + 1) / 2; ++n) x[r][n] = sum_pairs(c[r][2 * n], c[r][2 * n + 1 < H ? 2 * n + 1 : 2 * n]);
  }
}

template <int R, int H>
void narrow_tile(const float* x, i64 row, i64 steps, const float* v, i64 first, i64 channel, i64 width,
                 const ChannelEpilogue& e) {
  vf sums[R][(H + 1) / 2];
  narrow_sums<R, H>(x, row, v, steps, sums);
  put_tile<R, (H + 1) / 2>(in_registers(e), sums, first, channel, width);
}

using NarrowTileFn = void (*)(const float*, i64, i64, const float*, i64, i64, i64, const ChannelEpilogue&);

// The sums of this many rows of three half vectors fit into the registers.
constexpr int kNarrowRows = kTileRows * 2 / 3;

constexpr auto kOneHalfFns =
    by_rows<NarrowTileFn, kTileRows>([]<int R>() -> NarrowTileFn { return narrow_tile<R, 1>; });
constexpr auto kThreeHalvesFns =
    by_rows<NarrowTileFn, kNarrowRows>([]<int R>() -> NarrowTileFn { return narrow_tile<R, 3>; });

void narrow_tiles(const ConvTile* tiles, int count, i64 row, i64 steps, const float* panel, i64 first_channel,
                  int width, const ChannelEpilogue& e) {
  const bool one = width <= kLanes / 2;
  for (int t = 0; t < count; ++t) {
    const ConvTile& tile = tiles[t];
    const int parts = one || tile.rows <= kNarrowRows ? 1 : 2;
    for (int part = 0, at = 0; part < parts; ++part) {
      const int rows = (tile.rows - at + parts - part - 1) / (parts - part);
      const NarrowTileFn run = one ? kOneHalfFns[rows - 1] : kThreeHalvesFns[rows - 1];
      run(tile.x + at * row, row, steps, panel, tile.first + at, first_channel, width, e);
      at += rows;
    }
  }
}

// --- depthwise convolutions: one input channel per output channel ---

using Lines = PackedConvTable::Lines;

template <int N>
struct Int {
  static constexpr int value = N;
};

// One output of any kernel; some of its columns may be padding.
void depthwise_any(const Lines& d, const float* const* lines, i64 output, const Epilogue& e) {
  const i64 first = output * d.step - d.pad, row = d.weight_row;
  for (i64 c = 0; c < d.channels; c += kLanes) {
    const i64 n = d.channels - c;
    vf sum = zero();
    for (int l = 0; l < d.line_count; ++l) {
      if (lines[l] == nullptr) continue;
      for (i64 t = 0; t < d.taps; ++t) {
        const i64 column = first + t * d.tap;
        if (column < 0 || column >= d.columns) continue;
        sum =
            fma(load_some<F32>(lines[l] + column * d.column + c, n), load(d.weight + (l * d.taps + t) * row + c), sum);
      }
    }
    put(e, sum, bias_of(e, c, n), output, c, n);
  }
}

// O adjacent outputs, none of whose columns are padding.
template <int O>
void depthwise_block(const Lines& d, const float* const* lines, i64 output, const Epilogue& e) {
  const i64 from = (output * d.step - d.pad) * d.column;
  const i64 next = d.step * d.column, row = d.weight_row;
  for (i64 c = 0; c < d.channels; c += kLanes) {
    const i64 n = d.channels - c;
    vf sums[O][1];
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) sums[o][0] = zero();
    const float* w = d.weight + c;
    for (int l = 0; l < d.line_count; ++l, w += d.taps * row) {
      if (lines[l] == nullptr) continue;
      const float* x = lines[l] + from + c;
      for (i64 t = 0; t < d.taps; ++t) {
        const vf weight = load(w + t * row);
        const float* at = x + t * d.tap * d.column;
        if (n >= kLanes) {
#pragma GCC unroll 4
          for (int o = 0; o < O; ++o) sums[o][0] = fma(load(at + o * next), weight, sums[o][0]);
        } else {
#pragma GCC unroll 4
          for (int o = 0; o < O; ++o) sums[o][0] = fma(load_n(at + o * next, static_cast<int>(n)), weight, sums[o][0]);
        }
      }
    }
    put_tile<O, 1>(e, sums, output, c, n);
  }
}

constexpr int kMostOutputs = 4;

// The sums of O adjacent outputs of a 3 x 3 kernel: each input is read once for all outputs that see it. `at`: offset
// of their first column in a row. Unless kInside, lines may be null (padding), and `left` and `right` tell whether
// their first and last column are padding.
template <int O, int S, bool kInside, typename Load>
GRAFT_VEC void sums_3x3(const float* const (&lines)[3], i64 at, i64 column, bool left, bool right,
                        const vf (&weight)[9], vf (&sums)[O], Load&& value_at) {
  constexpr int kColumns = (O - 1) * S + 3;
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o) sums[o] = zero();
#pragma GCC unroll 3
  for (int l = 0; l < 3; ++l) {
    if (!kInside && lines[l] == nullptr) continue;
    const float* x = lines[l] + at;
    // Keeps the compiler from holding (and spilling) a pointer for each of the 27 columns.
    if (S > 1) asm("" : "+r"(x));
#pragma GCC unroll 12
    for (int i = 0; i < kColumns; ++i, x += column) {
      if (!kInside && ((i == 0 && left) || (i == kColumns - 1 && right))) continue;
      vf value = value_at(x);
      keep(value);
#pragma GCC unroll 4
      for (int o = 0; o < O; ++o) {
        const int t = i - o * S;
        if (t >= 0 && t < 3) sums[o] = fma(value, weight[3 * l + t], sums[o]);
      }
    }
  }
}

// A vector of channels from c on, for outputs [begin, end) of all rows: weights are in registers, and input rows that
// several output rows see are read from the first-level cache.
template <int S, typename Load>
GRAFT_VEC void channels_3x3(const Lines& d, i64 begin, i64 end, i64 c, const Epilogue& epilogue, Load&& value_at) {
  vf weight[9];
#pragma GCC unroll 9
  for (int t = 0; t < 9; ++t) weight[t] = load(d.weight + t * d.weight_row + c);
  const Epilogue e = epilogue;
  const i64 outputs = d.outputs, column = d.column, columns = d.columns, width = d.channels - c, pad = d.pad;
  const vf bias = bias_of(e, c, width);
  const bool plain = e.residual == nullptr && e.activation == Activation::none && width >= kLanes;
  // Outputs [inner, outer) see no padding.
  const i64 inner = pad, outer = (columns + pad - 3) / S + 1;
  for (i64 row = 0; row < d.rows; ++row) {
    const float* const* at = d.lines + 3 * row;
    const float* const lines[3] = {at[0], at[1], at[2]};
    const auto take = [&](auto count, auto inside, i64 o) __attribute__((always_inline)) {
      constexpr int O = decltype(count)::value;
      const i64 first = o * S - pad;
      vf sums[O];
      sums_3x3<O, S, decltype(inside)::value == 1>(lines, first * column + c, column,
                                                   first<0, first + (O - 1) * S + 3> columns, weight, sums, value_at);
      const i64 position = row * outputs + o;
      if (plain) {
        float* out = e.out + position * e.out_row + c;
#pragma GCC unroll 4
        for (int i = 0; i < O; ++i, out += e.out_row) store(out, at_most(at_least(sums[i] + bias, e.low), e.high));
        return;
      }
      alignas(64) float kept[O * kLanes];
      for (int i = 0; i < O; ++i) store(kept + i * kLanes, sums[i]);
      put_any(e, kept, O, position, c, smaller(width, kLanes));
    };
    const bool whole = lines[0] != nullptr && lines[1] != nullptr && lines[2] != nullptr;
    i64 o = begin;
    while (o + kMostOutputs <= end) {
      if (whole && o >= inner) {
        for (; o + kMostOutputs <= smaller(end, outer); o += kMostOutputs) take(Int<kMostOutputs>{}, Int<1>{}, o);
        if (o + kMostOutputs > end) break;
      }
      take(Int<kMostOutputs>{}, Int<0>{}, o);
      o += kMostOutputs;
    }
    switch (end - o) {
      case 3:
        take(Int<3>{}, Int<0>{}, o);
        break;
      case 2:
        take(Int<2>{}, Int<0>{}, o);
        break;
      case 1:
        take(Int<1>{}, Int<0>{}, o);
        break;
      default:
        break;
    }
  }
}

// Outputs of a row at a time: in many models columns are a power of two of cache lines apart, so that longer rows would
// not stay in the first-level cache.
constexpr i64 kOutputsAtOnce = 56;

// Of the columns an output sees, at most one on each side is padding.
template <int S>
void depthwise_3x3(const Lines& d, const Epilogue& e) {
  for (i64 begin = 0; begin < d.outputs; begin += kOutputsAtOnce) {
    const i64 end = smaller(begin + kOutputsAtOnce, d.outputs);
    i64 c = 0;
    for (; c + kLanes <= d.channels; c += kLanes)
      channels_3x3<S>(
          d, begin, end, c, e, [](const float* x) __attribute__((always_inline)) { return load(x); });
    if (c == d.channels) continue;
    const int rest = static_cast<int>(d.channels - c);
    channels_3x3<S>(
        d, begin, end, c, e, [&](const float* x) __attribute__((always_inline)) { return load_n(x, rest); });
  }
}

void depthwise(const Lines& d, const ChannelEpilogue& epilogue) {
  Epilogue e = in_registers(epilogue);
  if (d.line_count == 3 && d.taps == 3 && d.tap == 1 && d.step <= 2 && d.pad <= 1) {
    d.step == 1 ? depthwise_3x3<1>(d, e) : depthwise_3x3<2>(d, e);
    return;
  }
  // Outputs in [inner, outer) see no padding.
  const i64 window = (d.taps - 1) * d.tap + 1;
  i64 inner = (d.pad + d.step - 1) / d.step;
  const i64 slack = d.columns + d.pad - window;  // the last output's first column, from the padding's start
  i64 outer = slack < 0 ? 0 : slack / d.step + 1;
  if (inner > d.outputs) inner = d.outputs;
  if (outer > d.outputs) outer = d.outputs;
  if (outer < inner) outer = inner;
  for (i64 row = 0; row < d.rows; ++row) {
    const float* const* lines = d.lines + row * d.line_count;
    i64 o = 0;
    for (; o < inner; ++o) depthwise_any(d, lines, o, e);
    for (; o + kMostOutputs <= outer; o += kMostOutputs) depthwise_block<kMostOutputs>(d, lines, o, e);
    for (; o < outer; ++o) depthwise_block<1>(d, lines, o, e);
    for (; o < d.outputs; ++o) depthwise_any(d, lines, o, e);
    e.out += d.outputs * e.out_row;
    if (e.residual != nullptr) e.residual += d.outputs * e.residual_row;
  }
}

// --- pools ---

void largest(const float* const* inputs, i64 count, i64 channels, float* out) {
  i64 c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    vf best = load(inputs[0] + c);
    for (i64 i = 1; i < count; ++i) best = max_nan(load(inputs[i] + c), best);
    store(out + c, best);
  }
  if (c == channels) return;
  const int n = static_cast<int>(channels - c);
  vf best = load_n(inputs[0] + c, n);
  for (i64 i = 1; i < count; ++i) best = max_nan(load_n(inputs[i] + c, n), best);
  store_n(out + c, best, n);
}

// --- images ---

void interleave(const float* from, i64 channel, i64 channels, i64 columns, float* to) {
  i64 begin = 0;
  for (; channels == 3 && begin + kLanes <= columns; begin += kLanes)
    store_interleaved(load(from + begin), load(from + channel + begin), load(from + 2 * channel + begin),
                      to + 3 * begin);
  for (i64 c = 0; c < channels; ++c)
    for (i64 w = begin; w < columns; ++w) to[w * channels + c] = from[w + c * channel];
}

}  // namespace

const PackedConvTable kPackedConv = {kLanes,       kPanel,    kTileRows, pack,      conv_tiles,
                                     narrow_tiles, depthwise, largest,   interleave};

}  // namespace graft::simd::GRAFT_ISA
