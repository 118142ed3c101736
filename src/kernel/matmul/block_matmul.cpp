#include "kernel/matmul/block_matmul.h"

#include <ggml.h>

#include <algorithm>
#include <span>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/ggml_cpu.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Rows of a multiplied with one panel of the weight's rows while that panel is in the first-level cache.
constexpr i64 kRowsAtOnce = 16;
// Elements of a row of a that one thread quantizes at a time; a multiple of every format's block.
constexpr i64 kQuantizedAtOnce = 1024;

i64 align(i64 bytes) { return ceil_div(bytes, 64) * 64; }

// The epilogue of output `output`, with the bias in input `bias` if there is one.
simd::Epilogue epilogue_of(const KernelContext& ctx, const MatmulAttrs& attrs, int output = 0, int bias = 2) {
  const TensorDesc& out = ctx.out(output);
  simd::Epilogue e;
  e.alpha = attrs.alpha;
  e.beta = attrs.beta;
  e.activation = attrs.activation;
  e.out = ctx.outputs[output];
  e.out_dtype = out.dtype;
  e.out_r = out.strides[0];
  e.out_j = out.strides[1];
  if (attrs.has_bias != 0) {
    e.bias = ctx.inputs[bias];
    e.bias_dtype = ctx.in(bias).dtype;
    e.bias_r = ctx.in(bias).strides[0];
    e.bias_j = ctx.in(bias).strides[1];
  }
  return e;
}

// Products of weights in panels, by graft's own kernels.
class PanelProducts {
 public:
  PanelProducts(const KernelContext& ctx, BlockType type, std::span<const MatmulAttrs> products,
                const simd::PanelTable& table)
      : ctx_(ctx),
        products_(products),
        format_(*readable_panels(type)),
        table_(table),
        rows_(ctx.in(0).shape[0]),
        depth_(ctx.in(0).shape[1]) {}

  void run() const { ctx_.phase == 0 ? quantize() : multiply(); }

 private:
  simd::QuantizedRows quantized() const { return quantized_rows(ctx_.scratch_bytes, rows_, depth_); }

  void quantize() const {
    const i64 chunks = ceil_div(depth_, kQuantizedAtOnce);
    const auto [begin, end] = ctx_.range(rows_ * chunks);
    for (i64 chunk = begin; chunk < end; ++chunk) {
      const i64 row = chunk / chunks, k = chunk % chunks * kQuantizedAtOnce;
      table_.quantize(format_, ctx_.input<float>(0) + row * ctx_.in(0).strides[0], k,
                      std::min(k + kQuantizedAtOnce, depth_), row, depth_, quantized());
    }
  }

  // A task computes consecutive tiles of all products.
  void multiply() const {
    const i64 width = table_.tile_columns;
    i64 tiles = 0;
    for (int p = 0; p < count(); ++p) tiles += ceil_div(ctx_.out(p).shape[1], width);
    const auto [begin, end] = ctx_.range(tiles);
    i64 first = 0;  // first tile of the product
    int bias = 1 + count();
    for (int p = 0; p < count(); ++p) {
      const MatmulAttrs& product = products_[static_cast<std::size_t>(p)];
      const i64 columns = ctx_.out(p).shape[1], mine = ceil_div(columns, width);
      const i64 from = std::max(begin - first, i64{0}), to = std::min(end - first, mine);
      if (from < to)
        table_.tiles(format_, ctx_.input<std::byte>(1 + p), quantized(), rows_, depth_, columns, from * width,
                     std::min(to * width, columns), epilogue_of(ctx_, product, p, bias));
      first += mine;
      bias += product.has_bias != 0 ? 1 : 0;
    }
  }

  int count() const { return static_cast<int>(products_.size()); }

  const KernelContext& ctx_;
  const std::span<const MatmulAttrs> products_;
  const PanelFormat format_;
  const simd::PanelTable& table_;
  const i64 rows_, depth_;
};

// Products by ggml's own functions for one type: any type on any CPU.
class GgmlProduct {
 public:
  explicit GgmlProduct(const KernelContext& ctx)
      : ctx_(ctx),
        attrs_(ctx.attrs<BlockMatmulAttrs>()),
        traits_(*ggml_cpu().type_traits(static_cast<ggml_type>(attrs_.type))),
        rows_(ctx.in(0).shape[0]),
        depth_(ctx.in(0).shape[1]),
        columns_(ctx.out().shape[1]),
        quantized_row_(static_cast<i64>(ggml_row_size(traits_.vec_dot_type, depth_))) {}

  void run() const { ctx_.phase == 0 ? quantize() : multiply(); }

 private:
  void quantize() const {
    const auto from_float = ggml_cpu().type_traits(traits_.vec_dot_type)->from_float;
    const i64 chunks = ceil_div(depth_, kQuantizedAtOnce);
    const auto [begin, end] = ctx_.range(rows_ * chunks);
    for (i64 chunk = begin; chunk < end; ++chunk) {
      const i64 row = chunk / chunks, k = chunk % chunks * kQuantizedAtOnce;
      const float* from = ctx_.input<float>(0) + row * ctx_.in(0).strides[0] + k;
      std::byte* to = ctx_.scratch_bytes + row * quantized_row_ + ggml_row_size(traits_.vec_dot_type, k);
      from_float(from, to, std::min(kQuantizedAtOnce, depth_ - k));
    }
  }

  void multiply() const {
    constexpr i64 kMostColumns = 64;
    alignas(64) float sums[kRowsAtOnce * kMostColumns];
    const simd::MatmulTable& table = simd::matmul();
    const i64 width = table.panel_width;
    const simd::Epilogue e = epilogue_of(ctx_, attrs_.product);
    const i64 row_bytes = block_row_bytes(attrs_.type, depth_);
    const auto [begin, end] = ctx_.range(ceil_div(columns_, width));
    for (i64 panel = begin; panel < end; ++panel) {
      const i64 j0 = panel * width, count = std::min(width, columns_ - j0);
      const std::byte* weight = ctx_.input<std::byte>(1) + j0 * row_bytes;
      for (i64 r0 = 0; r0 < rows_; r0 += kRowsAtOnce) {
        const i64 rows = std::min(kRowsAtOnce, rows_ - r0);
        for (i64 j = 0; j < count; ++j) {
          for (i64 r = 0; r < rows; ++r) {
            traits_.vec_dot(static_cast<int>(depth_), sums + r * width + j, 0, weight + j * row_bytes, 0,
                            ctx_.scratch_bytes + (r0 + r) * quantized_row_, 0, 1);
          }
        }
        table.finish(e, sums, r0, static_cast<int>(rows), j0, static_cast<int>(count));
      }
    }
  }

  const KernelContext& ctx_;
  const BlockMatmulAttrs attrs_;
  const ggml_type_traits_cpu& traits_;
  const i64 rows_, depth_, columns_, quantized_row_;
};

void run_block_matmul(const KernelContext& ctx) noexcept {
  if (ctx.attrs<BlockMatmulAttrs>().panels != 0) return run_panel_product(ctx, *simd::panels());
  GgmlProduct(ctx).run();
}

// First quantize the rows of a, then multiply.
int phases_of_block_matmul(const KernelContext&) noexcept { return 2; }

bool take_product_epilogue(BlockMatmulAttrs& attrs, const Epilogue& epilogue) {
  return take_epilogue(attrs.product, epilogue);
}

bool is_in_panels(const KernelContext& ctx) { return ctx.attrs<BlockMatmulAttrs>().panels != 0; }

bool same_type(const KernelContext& a, const KernelContext& b) {
  return a.attrs<BlockMatmulAttrs>().type == b.attrs<BlockMatmulAttrs>().type;
}

AttrBytes merged_attrs(std::span<const KernelContext* const> launches) {
  BlockMatmulsAttrs attrs;
  attrs.type = launches[0]->attrs<BlockMatmulAttrs>().type;
  for (const KernelContext* launch : launches)
    attrs.products[static_cast<std::size_t>(attrs.count++)] = launch->attrs<BlockMatmulAttrs>().product;
  return bytes_of_attrs(attrs);
}

constexpr MergeRule kMerge = {kMostBlockProducts, is_in_panels, same_type, &kBlockMatmuls, merged_attrs};
constexpr Fusion kFusion = {.take_epilogue = take_epilogue_of<BlockMatmulAttrs, take_product_epilogue>,
                            .merge = &kMerge};

}  // namespace

const Kernel kBlockMatmul = {.name = "block_matmul",
                             .run = run_block_matmul,
                             .parallel_from = kMinParallelProducts,
                             .phases = phases_of_block_matmul,
                             .explain =
                                 [](const KernelContext& ctx) {
                                   const auto attrs = ctx.attrs<BlockMatmulAttrs>();
                                   return explain_blocks(attrs.type, attrs.panels != 0) +
                                          activation_text(attrs.product.activation);
                                 },
                             .work = [](const KernelContext& ctx) { return ctx.out().numel() * ctx.in(0).shape[1]; },
                             .fusion = &kFusion};

void run_panel_product(const KernelContext& ctx, const simd::PanelTable& table) noexcept {
  const auto attrs = ctx.attrs<BlockMatmulAttrs>();
  PanelProducts(ctx, attrs.type, {&attrs.product, 1}, table).run();
}

const Kernel kBlockMatmuls = {"block_matmuls",
                              [](const KernelContext& ctx) noexcept { run_panel_products(ctx, *simd::panels()); }, 0,
                              phases_of_block_matmul,
                              [](const KernelContext& ctx) {
                                const auto attrs = ctx.attrs<BlockMatmulsAttrs>();
                                std::string out = explain_blocks(attrs.type, true);
                                for (std::size_t p = 0; p < static_cast<std::size_t>(attrs.count); ++p)
                                  out += activation_text(attrs.products[p].activation);
                                return out + str(", ", attrs.count, " products of rows that are quantized once");
                              }};

void run_panel_products(const KernelContext& ctx, const simd::PanelTable& table) noexcept {
  const auto attrs = ctx.attrs<BlockMatmulsAttrs>();
  PanelProducts(ctx, attrs.type, std::span(attrs.products).first(static_cast<std::size_t>(attrs.count)), table).run();
}

std::optional<PanelFormat> readable_panels(BlockType type) {
  return simd::panels() ? panel_format_of(type) : std::nullopt;
}

std::string explain_blocks(BlockType type, bool panels) {
  const std::string weight = str("weight ", block_type_name(type));
  if (panels) return str(weight, " packed for ", simd::panels_name(simd::active_isa()));
  return readable_panels(type) ? str(weight, " was not packed: ggml's rows")
                               : str(weight, " has no packed layout here: ggml's rows");
}

std::int64_t quantized_rows_bytes(std::int64_t rows, std::int64_t depth) {
  const i64 blocks = rows * (depth / kPanelBlock);
  return align(rows * depth) + align(blocks * 4) + align(blocks * 2 * 4);
}

simd::QuantizedRows quantized_rows(std::byte* memory, std::int64_t rows, std::int64_t depth, std::int64_t first) {
  const i64 blocks = depth / kPanelBlock;
  std::byte* scale = memory + align(rows * depth);
  std::byte* sum = scale + align(rows * blocks * 4) + first * blocks * 2 * 4;
  simd::QuantizedRows out;
  out.q = reinterpret_cast<std::int8_t*>(memory) + first * depth;
  out.scale = reinterpret_cast<float*>(scale) + first * blocks;
  out.sum = reinterpret_cast<std::int32_t*>(sum);
  out.scaled_sum = reinterpret_cast<float*>(sum);
  return out;
}

std::int64_t block_matmul_scratch_bytes(const BlockMatmulAttrs& attrs, std::int64_t rows, std::int64_t depth) {
  if (attrs.panels != 0) return quantized_rows_bytes(rows, depth);
  const ggml_type type = ggml_cpu().type_traits(static_cast<ggml_type>(attrs.type))->vec_dot_type;
  return rows * static_cast<std::int64_t>(ggml_row_size(type, depth));
}

}  // namespace graft
