#include "kernel/simd/packed_conv.h"

#include "kernel/simd/isa/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// --- what becomes of a sum ---

GRAFT_VEC vf finished(const ChannelEpilogue& e, vf x, i64 position, i64 channel, i64 n) {
  if (e.bias != nullptr) x += load_some<F32>(e.bias + channel, n);
  if (e.residual != nullptr) x += load_some<F32>(e.residual + position * e.residual_row + channel, n);
  if (e.activation != Activation::none) x = activate(x, e.activation);
  if (e.clamps) {
    x = select(x < splat(e.low), splat(e.low), x);  // NaN compares false and stays
    x = select(x > splat(e.high), splat(e.high), x);
  }
  return x;
}

// n channels of one position; n > 0.
GRAFT_VEC void put(const ChannelEpilogue& e, vf x, i64 position, i64 channel, i64 n) {
  float* to = e.out + position * e.out_row + channel;
  x = finished(e, x, position, channel, n);
  if (n >= kLanes) {
    store(to, x);
  } else {
    store_n(to, x, static_cast<int>(n));
  }
}

// --- many input channels ---

// Lines of memory that a tile asks for while it works: its share of the weights that are read after its own.
struct Ahead {
  const char* from;
  i64 lines;
};

// Those that go with `steps` of the `all` steps left.
GRAFT_VEC void ask(Ahead& ahead, i64 steps, i64 all) {
  const i64 n = ahead.lines * steps / all;
  for (i64 i = 0; i < n; ++i) __builtin_prefetch(ahead.from + i * 64, 0, 2);
  ahead.from += n * 64;
  ahead.lines -= n;
}

// R outputs of NV vectors of channels: the sum over some pieces. `partial`: sums of the pieces before, or those of
// these.
template <int R, int NV>
void conv_tile(const ConvTile& at, i64 row, const ConvPiece* pieces, i64 count, const float* v, float* partial,
               bool first, bool last, i64 channel, i64 width, const ChannelEpilogue& e, Ahead ahead, i64 left) {
  TileSums<R, NV> sums;
  clear(sums);
  constexpr i64 kSteps = 64;
  for (i64 p = 0; p < count; ++p) {
    for (i64 k = 0; k < pieces[p].depth; k += kSteps) {
      const i64 n = smaller(kSteps, pieces[p].depth - k);
      ask(ahead, n, left);
      left -= n;
      add_products(at.x + pieces[p].offset + k, row, v, kPanel, n, sums);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      vf sum = total(sums, r, n);
      float* kept = partial + (r * NV + n) * kLanes;
      if (!first) sum += load(kept);
      if (last) {
        put(e, sum, at.first + r, channel + n * kLanes, width - n * kLanes);
      } else {
        store(kept, sum);
      }
    }
  }
}

using ConvTileFn = void (*)(const ConvTile&, i64, const ConvPiece*, i64, const float*, float*, bool, bool, i64, i64,
                            const ChannelEpilogue&, Ahead, i64);

#if defined(__AVX512F__)
constexpr ConvTileFn kConvTileFns[2][kTileRows] = {
    {conv_tile<1, 1>, conv_tile<2, 1>, conv_tile<3, 1>, conv_tile<4, 1>, conv_tile<5, 1>, conv_tile<6, 1>,
     conv_tile<7, 1>, conv_tile<8, 1>, conv_tile<9, 1>, conv_tile<10, 1>, conv_tile<11, 1>, conv_tile<12, 1>},
    {conv_tile<1, 2>, conv_tile<2, 2>, conv_tile<3, 2>, conv_tile<4, 2>, conv_tile<5, 2>, conv_tile<6, 2>,
     conv_tile<7, 2>, conv_tile<8, 2>, conv_tile<9, 2>, conv_tile<10, 2>, conv_tile<11, 2>, conv_tile<12, 2>}};
#else
constexpr ConvTileFn kConvTileFns[2][kTileRows] = {
    {conv_tile<1, 1>, conv_tile<2, 1>, conv_tile<3, 1>, conv_tile<4, 1>, conv_tile<5, 1>, conv_tile<6, 1>},
    {conv_tile<1, 2>, conv_tile<2, 2>, conv_tile<3, 2>, conv_tile<4, 2>, conv_tile<5, 2>, conv_tile<6, 2>}};
#endif

void conv_tiles(const ConvTile* tiles, int count, i64 row, const ConvPiece* pieces, i64 piece_count, const float* panel,
                i64 first_channel, int width, const ChannelEpilogue& e) {
  alignas(64) float partial[kConvTiles][kTileRows * kPanel];
  i64 done = 0;
  do {
    // As many pieces as are taken at once; an empty sum is one block of none.
    i64 end = done, depth = 0;
    while (end < piece_count && (end == done || depth + pieces[end].depth <= kConvDepth)) depth += pieces[end++].depth;
    const char* next = reinterpret_cast<const char*>(panel + depth * kPanel);
    const i64 lines = depth * kPanel * 4 / 64;
    for (int t = 0; t < count; ++t) {
      const i64 first = lines * t / count;
      const Ahead ahead = {next + first * 64, lines * (t + 1) / count - first};
      kConvTileFns[width > kLanes][tiles[t].rows - 1](tiles[t], row, pieces + done, end - done, panel, partial[t],
                                                      done == 0, end == piece_count, first_channel, width, e, ahead,
                                                      depth);
    }
    panel += depth * kPanel;
    done = end;
  } while (done < piece_count);
}

// --- one input channel per output channel ---

using Line = PackedConvTable::Line;

// O outputs beside each other, all of whose columns exist.
template <int O>
GRAFT_VEC void depthwise_block(const Line& d, i64 channels, i64 output, const ChannelEpilogue& e) {
  const i64 from = (output * d.step - d.pad) * d.column;
  const i64 next = d.step * d.column;
  for (i64 c = 0; c < d.channels; c += kLanes) {
    const i64 n = d.channels - c;
    vf sums[O];
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) sums[o] = zero();
    const float* w = d.weight + c;
    for (int l = 0; l < d.line_count; ++l, w += d.taps * channels) {
      if (d.lines[l] == nullptr) continue;
      const float* x = d.lines[l] + from + c;
      for (i64 t = 0; t < d.taps; ++t) {
        const vf weight = load(w + t * channels);
        const float* at = x + t * d.tap * d.column;
        if (n >= kLanes) {
#pragma GCC unroll 4
          for (int o = 0; o < O; ++o) sums[o] = fma(load(at + o * next), weight, sums[o]);
        } else {
#pragma GCC unroll 4
          for (int o = 0; o < O; ++o) sums[o] = fma(load_n(at + o * next, static_cast<int>(n)), weight, sums[o]);
        }
      }
    }
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) put(e, sums[o], output + o, c, n);
  }
}

// The same for three lines of three taps beside each other: each input is read once for all outputs that see it.
template <int O, int S>
GRAFT_VEC void depthwise_3x3(const Line& d, i64 channels, i64 output, const ChannelEpilogue& e) {
  constexpr int kColumns = (O - 1) * S + 3;
  const i64 from = (output * S - d.pad) * d.column;
  const i64 whole = d.channels / kLanes * kLanes;
  for (i64 c = 0; c < whole; c += kLanes) {
    vf sums[O];
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) sums[o] = zero();
#pragma GCC unroll 3
    for (int l = 0; l < 3; ++l) {
      if (d.lines[l] == nullptr) continue;
      const float* x = d.lines[l] + from + c;
      const float* w = d.weight + 3 * l * channels + c;
      vf weight[3];
#pragma GCC unroll 3
      for (int t = 0; t < 3; ++t) weight[t] = load(w + t * channels);
#pragma GCC unroll 12
      for (int i = 0; i < kColumns; ++i) {
        const vf value = load(x + i * d.column);
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) {
          if (i - o * S >= 0 && i - o * S < 3) sums[o] = fma(value, weight[i - o * S], sums[o]);
        }
      }
    }
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) put(e, sums[o], output + o, c, kLanes);
  }
  if (whole == d.channels) return;
  Line rest = d;  // the last channels, which fill no vector
  const float* lines[3];
  for (int l = 0; l < 3; ++l) lines[l] = d.lines[l] == nullptr ? nullptr : d.lines[l] + whole;
  rest.lines = lines;
  rest.weight += whole;
  rest.channels -= whole;
  ChannelEpilogue last = e;
  last.bias = e.bias == nullptr ? nullptr : e.bias + whole;
  last.residual = e.residual == nullptr ? nullptr : e.residual + whole;
  last.out += whole;
  depthwise_block<O>(rest, channels, output, last);
}

// One output, of whose columns some lie outside.
void depthwise_edge(const Line& d, i64 channels, i64 output, const ChannelEpilogue& e) {
  const i64 first = output * d.step - d.pad;
  for (i64 c = 0; c < d.channels; c += kLanes) {
    const i64 n = d.channels - c;
    vf sum = zero();
    for (int l = 0; l < d.line_count; ++l) {
      if (d.lines[l] == nullptr) continue;
      for (i64 t = 0; t < d.taps; ++t) {
        const i64 column = first + t * d.tap;
        if (column < 0 || column >= d.columns) continue;
        sum = fma(load_some<F32>(d.lines[l] + column * d.column + c, n),
                  load(d.weight + (l * d.taps + t) * channels + c), sum);
      }
    }
    put(e, sum, output, c, n);
  }
}

void depthwise(const Line& d, const ChannelEpilogue& e) {
  const i64 channels = (d.channels + kLanes - 1) / kLanes * kLanes;
  // Outputs in [inner, outer) see columns that exist.
  const i64 reach = (d.taps - 1) * d.tap + 1;
  i64 inner = (d.pad + d.step - 1) / d.step;
  const i64 room = d.columns + d.pad - reach;  // the last output's first column, from the padding's start
  i64 outer = room < 0 ? 0 : room / d.step + 1;
  if (inner > d.outputs) inner = d.outputs;
  if (outer > d.outputs) outer = d.outputs;
  if (outer < inner) outer = inner;
  i64 o = 0;
  for (; o < inner; ++o) depthwise_edge(d, channels, o, e);
  const bool three = d.line_count == 3 && d.taps == 3 && d.tap == 1;
  for (; o + 4 <= outer; o += 4) {
    if (three && d.step == 1) {
      depthwise_3x3<4, 1>(d, channels, o, e);
    } else if (three && d.step == 2) {
      depthwise_3x3<4, 2>(d, channels, o, e);
    } else {
      depthwise_block<4>(d, channels, o, e);
    }
  }
  for (; o < outer; ++o) depthwise_block<1>(d, channels, o, e);
  for (; o < d.outputs; ++o) depthwise_edge(d, channels, o, e);
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

}  // namespace

const PackedConvTable kPackedConv = {kLanes, kPanel, kTileRows, conv_tiles, depthwise, largest};

}  // namespace graft::simd::GRAFT_ISA
