#include "kernel/block_matmul.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

#include "base/check.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Rows of a that are multiplied with a few rows of the weight while these are in the first-level cache.
constexpr i64 kRowsAtOnce = 16;
// Elements of a row of a that one thread quantizes at a time; a multiple of every format's block.
constexpr i64 kQuantizedAtOnce = 1024;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// The product by ggml's own functions for one type: any type on any CPU.
class GgmlProduct {
 public:
  explicit GgmlProduct(const KernelContext& ctx)
      : ctx_(ctx),
        attrs_(ctx.attrs<BlockMatmulAttrs>()),
        traits_(*ggml_get_type_traits_cpu(static_cast<ggml_type>(attrs_.type))),
        rows_(ctx.in(0).shape[0]),
        depth_(ctx.in(0).shape[1]),
        columns_(ctx.out().shape[1]),
        quantized_row_(static_cast<i64>(ggml_row_size(traits_.vec_dot_type, depth_))) {}

  void run() const { ctx_.phase == 0 ? quantize() : multiply(); }

 private:
  void quantize() const {
    const auto from_float = ggml_get_type_traits_cpu(traits_.vec_dot_type)->from_float;
    const i64 pieces = ceil_div(depth_, kQuantizedAtOnce);
    const auto [begin, end] = ctx_.share(rows_ * pieces);
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 row = unit / pieces, k = unit % pieces * kQuantizedAtOnce;
      const float* from = ctx_.input<float>(0) + row * ctx_.in(0).strides[0] + k;
      std::byte* to = ctx_.scratch_bytes + row * quantized_row_ + ggml_row_size(traits_.vec_dot_type, k);
      from_float(from, to, std::min(kQuantizedAtOnce, depth_ - k));
    }
  }

  simd::Epilogue epilogue() const {
    const TensorDesc& out = ctx_.out();
    simd::Epilogue e;
    e.alpha = attrs_.product.alpha;
    e.beta = attrs_.product.beta;
    e.activation = attrs_.product.activation;
    e.out = ctx_.outputs[0];
    e.out_dtype = out.dtype;
    e.out_r = out.strides[0];
    e.out_j = out.strides[1];
    if (attrs_.product.has_bias != 0) {
      e.bias = ctx_.inputs[2];
      e.bias_dtype = ctx_.in(2).dtype;
      e.bias_r = ctx_.in(2).strides[0];
      e.bias_j = ctx_.in(2).strides[1];
    }
    return e;
  }

  void multiply() const {
    constexpr i64 kMostColumns = 64;
    alignas(64) float sums[kRowsAtOnce * kMostColumns];
    const simd::MatmulTable& table = simd::matmul();
    const i64 width = table.panel_width;
    const simd::Epilogue e = epilogue();
    const i64 row_bytes = block_row_bytes(attrs_.type, depth_);
    const auto [begin, end] = ctx_.share(ceil_div(columns_, width));
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

void run_block_matmul(const KernelContext& ctx) noexcept { GgmlProduct(ctx).run(); }

// Quantizing the rows of a, and the products.
int phases_of_block_matmul(const KernelContext&) noexcept { return 2; }

}  // namespace

const Kernel kBlockMatmul = {"block_matmul", run_block_matmul, 0, phases_of_block_matmul};

std::int64_t block_matmul_scratch_bytes(const BlockMatmulAttrs& attrs, std::int64_t rows, std::int64_t depth) {
  const ggml_type type = ggml_get_type_traits_cpu(static_cast<ggml_type>(attrs.type))->vec_dot_type;
  return rows * static_cast<std::int64_t>(ggml_row_size(type, depth));
}

}  // namespace graft
