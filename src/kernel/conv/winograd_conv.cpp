#include "kernel/conv/winograd_conv.h"

#include <algorithm>
#include <array>

#include "kernel/conv/conv_input.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ChannelEpilogue;
using simd::ConvTile;
using simd::KBlock;
using simd::kWinogradProducts;

constexpr i64 kMinParallel = 4096;
// Weights up to this size stay in the second-level cache: the tiles are divided among the threads. Larger weights are
// divided among the threads, and each thread transforms all tiles.
constexpr i64 kWeightBytes = i64{512} << 10;
// Bytes of inputs transformed at once, in the first and the second case.
constexpr i64 kTileBytes = i64{256} << 10, kAllTilesBytes = i64{1} << 20;
// At least this many chunks of tiles for each task, so that one on a slow core can take fewer.
constexpr i64 kChunksEach = 4;

// G g G^T of the 3 x 3 weights g.
void transform(const double (&g)[9], double (&u)[kWinogradProducts]) {
  double rows[4][3];
  for (int j = 0; j < 3; ++j) {
    rows[0][j] = g[j];
    rows[1][j] = (g[j] + g[3 + j] + g[6 + j]) / 2;
    rows[2][j] = (g[j] - g[3 + j] + g[6 + j]) / 2;
    rows[3][j] = g[6 + j];
  }
  for (int i = 0; i < 4; ++i) {
    u[4 * i] = rows[i][0];
    u[4 * i + 1] = (rows[i][0] + rows[i][1] + rows[i][2]) / 2;
    u[4 * i + 2] = (rows[i][0] - rows[i][1] + rows[i][2]) / 2;
    u[4 * i + 3] = rows[i][2];
  }
}

// Recovers g from transformed weights, `step` floats apart.
void restore(const float* u, i64 step, double (&g)[9]) {
  const auto at = [&](int k) { return static_cast<double>(u[k * step]); };
  g[0] = at(0);
  g[1] = at(1) - at(2);
  g[2] = at(3);
  g[3] = at(4) - at(8);
  g[4] = at(5) - at(6) - at(9) + at(10);
  g[5] = at(7) - at(11);
  g[6] = at(12);
  g[7] = at(13) - at(14);
  g[8] = at(15);
}

class WinogradConvolution {
 public:
  WinogradConvolution(const TensorDesc& x, const TensorDesc& out, const WinogradLoops& loops, int threads)
      : x_(x), out_(out), loops_(loops), channels_(x.shape[1]), width_(loops.products.panel_width) {
    down_ = ceil_div(out.shape[3], 2);
    across_ = ceil_div(out.shape[4], 2);
    tiles_ = out.shape[0] * down_ * across_;
    panels_ = ceil_div(out.shape[1], width_);
    parts_ = ceil_div(tiles_, loops.products.tile_rows);
    by_panels_ = panels_ * panel_floats() * 4 > kWeightBytes;
    const i64 part_bytes = 4 * kWinogradProducts * channels_ * loops.products.tile_rows;
    const i64 fitting = std::max<i64>(1, (by_panels_ ? kAllTilesBytes : kTileBytes) / part_bytes);
    chunks_ = ceil_div(parts_, fitting);
    if (!by_panels_ && threads > 1)
      chunks_ = std::min(parts_, ceil_div(chunks_, kChunksEach * threads) * kChunksEach * threads);
    most_tiles_ = ceil_div(parts_, chunks_) * loops.products.tile_rows;
  }

  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  void run(const KernelContext& ctx) const {
    const auto attrs = ctx.attrs<PackedConvAttrs>();
    const i64 groups = by_panels_ ? panels_ : 1;
    Work work(*this, ctx, attrs);
    i64 there = -1;  // the chunk whose inputs are transformed now
    ctx.for_chunks(chunks_ * groups, {}, [&](i64 begin, i64 end) {
      for (i64 unit = begin; unit < end; ++unit) {
        const i64 chunk = unit / groups;
        const i64 first = first_of(chunk, chunks_, parts_), last = first_of(chunk + 1, chunks_, parts_);
        if (chunk != there) transform_inputs(work, first, last);
        there = chunk;
        if (by_panels_) {
          multiply(work, first, last, unit % groups);
        } else {
          for (i64 panel = 0; panel < panels_; ++panel) multiply(work, first, last, panel);
        }
      }
    });
  }

 private:
  struct Work {
    const float* x;
    const float* weight;
    ChannelEpilogue epilogue;
    i64 padding[2];
    KBlock* k_blocks;
    i64 block_count;
    float* zeros;     // read as an input in the padding
    float* inputs;    // transformed: [16, tiles of the chunk, C]
    float* products;  // [16, tiles of up to kConvTilesAtOnce parts, panel width]
    bool* finite;     // by tile of the chunk

    Work(const WinogradConvolution& c, const KernelContext& ctx, const PackedConvAttrs& attrs)
        : x(ctx.input<float>(0)),
          weight(ctx.input<float>(1)),
          epilogue(channel_epilogue(ctx, attrs)),
          padding{attrs.conv.padding[1], attrs.conv.padding[2]} {
      std::byte* at = ctx.scratch_bytes + ctx.task * c.thread_bytes();
      const auto take = [&](i64 bytes) {
        std::byte* taken = at;
        at += ceil_div(bytes, 64) * 64;
        return taken;
      };
      inputs = reinterpret_cast<float*>(take(c.inputs_bytes()));
      products = reinterpret_cast<float*>(take(c.products_bytes()));
      zeros = reinterpret_cast<float*>(take(4 * c.channels_));
      k_blocks = reinterpret_cast<KBlock*>(take(c.k_blocks_bytes()));
      finite = reinterpret_cast<bool*>(at);
      std::fill_n(zeros, c.channels_, 0.f);
      block_count = simd::cut_k_blocks(0, c.channels_, k_blocks) - k_blocks;
    }
  };

  i64 panel_floats() const { return kWinogradProducts * channels_ * width_; }
  i64 inputs_bytes() const { return 4 * kWinogradProducts * most_tiles_ * channels_; }
  i64 products_bytes() const {
    const i64 most = std::min(most_tiles_, i64{simd::kConvTilesAtOnce} * loops_.products.tile_rows);
    return 4 * kWinogradProducts * most * width_;
  }
  i64 k_blocks_bytes() const { return simd::k_block_count(channels_) * static_cast<i64>(sizeof(KBlock)); }
  i64 thread_bytes() const {
    const auto whole = [](i64 bytes) { return ceil_div(bytes, 64) * 64; };
    return whole(inputs_bytes()) + whole(products_bytes()) + whole(4 * channels_) + whole(k_blocks_bytes()) +
           whole(most_tiles_);
  }

  // Start of part i when `all` items are divided into `count` parts, the first of them larger by one. The division of
  // tiles into parts does not depend on threads, and so neither do the sums.
  static i64 first_of(i64 i, i64 count, i64 all) { return i * (all / count) + std::min(i, all % count); }
  i64 first_tile(i64 part) const { return first_of(part, parts_, tiles_); }

  struct TilePosition {
    i64 sample, line, column;  // of the first output
  };
  TilePosition position_of(i64 tile) const {
    return {tile / (down_ * across_), tile / across_ % down_ * 2, tile % across_ * 2};
  }

  void inputs_of(const Work& work, i64 tile, const float* (&d)[kWinogradProducts]) const {
    const TilePosition tile_at = position_of(tile);
    for (i64 i = 0; i < 4; ++i) {
      const i64 line = tile_at.line - work.padding[0] + i;
      for (i64 j = 0; j < 4; ++j) {
        const i64 column = tile_at.column - work.padding[1] + j;
        const bool inside = line >= 0 && line < x_.shape[3] && column >= 0 && column < x_.shape[4];
        d[4 * i + j] = inside ? work.x + tile_at.sample * x_.strides[0] + line * x_.strides[3] + column * x_.strides[4]
                              : work.zeros;
      }
    }
  }

  // Transforms the inputs of the parts [first, last).
  void transform_inputs(const Work& work, i64 first, i64 last) const {
    const i64 begin = first_tile(first), count = first_tile(last) - begin;
    for (i64 t = 0; t < count; ++t) {
      const float* d[kWinogradProducts];
      inputs_of(work, begin + t, d);
      work.finite[t] = loops_.ends.input(d, channels_, work.inputs + t * channels_, count * channels_);
    }
  }

  void multiply(const Work& work, i64 first, i64 last, i64 panel) const {
    const i64 begin = first_tile(first), all = first_tile(last) - begin;
    const i64 channel = panel * width_;
    const int width = static_cast<int>(std::min<i64>(width_, out_.shape[1] - channel));
    const float* weight = work.weight + panel * panel_floats();
    std::array<ConvTile, simd::kConvTilesAtOnce> list;
    for (i64 part = first; part < last; part += simd::kConvTilesAtOnce) {
      const int parts = static_cast<int>(std::min<i64>(simd::kConvTilesAtOnce, last - part));
      const i64 from = first_tile(part), count = first_tile(part + parts) - from;
      for (int k = 0; k < kWinogradProducts; ++k) {
        for (int i = 0; i < parts; ++i) {
          const i64 tile = first_tile(part + i);
          list[static_cast<std::size_t>(i)] = {work.inputs + (k * all + tile - begin) * channels_, tile - from,
                                               static_cast<int>(first_tile(part + i + 1) - tile)};
        }
        ChannelEpilogue to;
        to.out = work.products + k * count * width_;
        to.out_row = width_;
        loops_.products.tiles(list.data(), parts, channels_, work.k_blocks, work.block_count,
                              weight + k * channels_ * width_, weight + (k + 1) * channels_ * width_, false, 0, width,
                              to);
      }
      for (i64 t = 0; t < count; ++t) {
        float* products = work.products + t * width_;
        if (!work.finite[from - begin + t]) add_taps(work, from + t, weight, width, products, count * width_);
        put_outputs(work, from + t, products, count * width_, channel, width);
      }
    }
  }

  void put_outputs(const Work& work, i64 tile, const float* products, i64 step, i64 channel, i64 width) const {
    const TilePosition tile_at = position_of(tile);
    i64 positions[4];
    for (i64 i = 0; i < 4; ++i) {
      const i64 line = tile_at.line + i / 2, column = tile_at.column + i % 2;
      const bool there = line < out_.shape[3] && column < out_.shape[4];
      positions[i] = there ? (tile_at.sample * out_.shape[3] + line) * out_.shape[4] + column : -1;
    }
    loops_.ends.output(products, step, positions, channel, width, work.epilogue);
  }

  // Sums a tile's outputs tap by tap, and stores them as products that the output transform turns into these sums.
  void add_taps(const Work& work, i64 tile, const float* weight, i64 width, float* products, i64 step) const {
    const float* d[kWinogradProducts];
    inputs_of(work, tile, d);
    for (i64 j = 0; j < width; ++j) {
      double sums[2][2] = {};
      for (i64 c = 0; c < channels_; ++c) {
        double g[9];
        restore(weight + c * width_ + j, channels_ * width_, g);
        for (int i = 0; i < 4; ++i)
          for (int tap = 0; tap < 9; ++tap) {
            // Padding must be skipped, not multiplied: 0 times an infinite weight would be NaN.
            const float* at = d[4 * (i / 2 + tap / 3) + i % 2 + tap % 3];
            if (at != work.zeros) sums[i / 2][i % 2] += g[tap] * static_cast<double>(at[c]);
          }
      }
      for (int k = 0; k < kWinogradProducts; ++k) products[k * step + j] = 0;
      products[j] = static_cast<float>(sums[0][0]);
      products[3 * step + j] = -static_cast<float>(sums[0][1]);
      products[12 * step + j] = -static_cast<float>(sums[1][0]);
      products[15 * step + j] = static_cast<float>(sums[1][1]);
    }
  }

  const TensorDesc &x_, &out_;
  const WinogradLoops loops_;
  i64 channels_, width_;         // channels of the input, of a panel
  i64 down_ = 0, across_ = 0;    // rows and columns of tiles of a sample
  i64 tiles_ = 0, parts_ = 0;    // parts: tiles of one product
  i64 panels_ = 0, chunks_ = 1;  // chunks: parts transformed together
  i64 most_tiles_ = 0;           // the most tiles of a chunk
  bool by_panels_ = false;
};

void pack_here(const KernelContext& ctx) noexcept { run_pack_winograd(ctx, WinogradLoops(simd::active_isa())); }
void conv_here(const KernelContext& ctx) noexcept { run_winograd_conv(ctx, WinogradLoops(simd::active_isa())); }

std::string explain(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  return "f32, channels last, 16 products for four outputs of 3 x 3 taps, weights packed at load, " + isa_name() +
         epilogue_text(attrs);
}

}  // namespace

i64 winograd_floats(const Shape& weight, const WinogradLoops& loops) {
  const i64 width = loops.products.panel_width;
  return ceil_div(weight[0], width) * width * weight[1] * kWinogradProducts;
}
i64 winograd_floats(const Shape& weight) { return winograd_floats(weight, WinogradLoops(simd::active_isa())); }

bool fits_winograd(const Shape& weight, const ConvAttrs& attrs) {
  if (weight[2] != 1 || weight[3] != 3 || weight[4] != 3 || attrs.groups != 1 || attrs.padding[0] != 0) return false;
  for (int d = 0; d < 3; ++d)
    if (attrs.stride[d] != 1 || attrs.dilation[d] != 1) return false;
  return true;
}

void run_pack_winograd(const KernelContext& ctx, const WinogradLoops& loops) noexcept {
  const auto attrs = ctx.attrs<PackConvAttrs>();
  const Shape& shape = ctx.in(0).shape;
  const i64 rows = shape[0], channels = shape[1], width = loops.products.panel_width;
  const float* weight = ctx.input<float>(0);
  const float* scale = attrs.has_scale != 0 ? ctx.input<float>(1) : nullptr;
  const auto [begin, end] = ctx.range(ceil_div(rows, width));
  for (i64 panel = begin; panel < end; ++panel) {
    float* to = ctx.output<float>() + panel * kWinogradProducts * channels * width;
    for (i64 j = 0; j < width; ++j) {
      const i64 row = panel * width + j;
      const double by = row < rows && scale != nullptr ? static_cast<double>(scale[row]) : 1;
      for (i64 c = 0; c < channels; ++c) {
        double g[9] = {}, u[kWinogradProducts];
        for (int tap = 0; row < rows && tap < 9; ++tap)
          g[tap] = static_cast<double>(weight[(row * channels + c) * 9 + tap]) * by;
        transform(g, u);
        for (int k = 0; k < kWinogradProducts; ++k) to[(k * channels + c) * width + j] = static_cast<float>(u[k]);
      }
    }
  }
}

void run_winograd_conv(const KernelContext& ctx, const WinogradLoops& loops) noexcept {
  WinogradConvolution(ctx.in(0), ctx.out(), loops, ctx.tasks).run(ctx);
}

i64 winograd_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads, const WinogradLoops& loops) {
  // Fewer tasks can need more scratch, as each takes more tiles.
  i64 most = 0;
  for (int t = 1; t <= threads; ++t) most = std::max(most, WinogradConvolution(x, out, loops, t).scratch_bytes(t));
  return most;
}
i64 winograd_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads) {
  return winograd_scratch_bytes(x, out, threads, WinogradLoops(simd::active_isa()));
}

const Kernel kPackWinograd = {"pack_winograd", pack_here, kMinParallel};
namespace {

constexpr Fusion kFusion = {.take_epilogue = take_epilogue_of<PackedConvAttrs, take_epilogue>,
                            .take_residual = take_residual_of<PackedConvAttrs, take_residual>};

}  // namespace

const Kernel kWinogradConv = {.name = "winograd_conv",
                              .run = conv_here,
                              .parallel_from = kMinParallel,
                              .explain = explain,
                              .steals_work = true,
                              .fusion = &kFusion};

}  // namespace graft
