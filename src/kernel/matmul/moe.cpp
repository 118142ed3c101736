#include "kernel/matmul/moe.h"

#include <ggml.h>

#include <algorithm>
#include <string>

#include "base/ceil_div.h"
#include "base/ggml_cpu.h"
#include "kernel/matmul/block_matmul.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Columns of a matrix that one work item computes for all rows of the expert: they stay in the caches across rows.
constexpr i64 kColumns = 48;
constexpr i64 kRows = simd::kMaxDotRows;
// Of experts in panels: rows multiplied with a panel while it is in the caches, results of them that are kept at once,
// and how many rows take as long to multiply as a panel takes to read.
constexpr i64 kPanelRows = 128, kResults = kPanelRows * 64, kReading = 8;

i64 aligned(i64 bytes) { return ceil_div(bytes, 64) * 64; }

const ggml_type_traits_cpu& traits_of(BlockType type) { return *ggml_cpu().type_traits(static_cast<ggml_type>(type)); }

i64 quantized_row_bytes(const ExpertLinearAttrs& attrs) {
  return static_cast<i64>(ggml_row_size(traits_of(attrs.block).vec_dot_type, attrs.in));
}

// Bytes of the offsets of the experts and of the pairs sorted by expert.
i64 order_bytes(i64 experts, i64 pairs) { return aligned((experts + 1 + pairs) * 8); }

class ExpertLinear {
 public:
  ExpertLinear(const KernelContext& ctx, const simd::MatmulTable& table)
      : ctx_(ctx),
        table_(table),
        attrs_(ctx.attrs<ExpertLinearAttrs>()),
        in_(attrs_.in),
        per_token_(ctx.in(1).shape[1]),
        pairs_(ctx.in(1).numel()),
        one_row_per_token_(ctx.in(0).shape[1] == 1),
        begin_of_(reinterpret_cast<i64*>(ctx.scratch_bytes)),
        pair_at_(begin_of_ + attrs_.experts + 1),
        rows_(ctx.scratch_bytes + order_bytes(attrs_.experts, pairs_)) {}

  // Phase 0: pairs of a token and an expert, sorted by expert; rows quantized. Phase 1: products. With panels rows are
  // quantized in the sorted order, in a phase of their own.
  void run() const {
    if (ctx_.phase == 1) return attrs_.panels != 0 ? quantize_in_order() : products();
    if (ctx_.phase == 2) return panel_products();
    if (attrs_.block >= 0 && attrs_.panels == 0) quantize();
    if (ctx_.task != 0) return;
    if (ctx_.in(1).dtype == DType::i32) return sort(ctx_.input<std::int32_t>(1));
    sort(ctx_.input<i64>(1));
  }

 private:
  void quantize() const {
    const auto from_float = ggml_cpu().type_traits(traits_of(attrs_.block).vec_dot_type)->from_float;
    const i64 bytes = quantized_row_bytes(attrs_);
    const auto [begin, end] = ctx_.range(ctx_.in(0).shape[0] * ctx_.in(0).shape[1]);
    for (i64 row = begin; row < end; ++row) from_float(ctx_.input<float>(0) + row * in_, rows_ + row * bytes, in_);
  }

  template <typename T>
  void sort(const T* chosen) const {
    std::fill_n(begin_of_, attrs_.experts + 1, i64{0});
    for (i64 pair = 0; pair < pairs_; ++pair) {
      if (chosen[pair] < 0 || chosen[pair] >= attrs_.experts) {
        ctx_.fail("expert ", chosen[pair], " is out of range for ", attrs_.experts, " experts");
        std::fill_n(begin_of_, attrs_.experts + 1, i64{0});  // makes phase 1 empty
        return;
      }
      ++begin_of_[chosen[pair] + 1];
    }
    for (i64 e = 0; e < attrs_.experts; ++e) begin_of_[e + 1] += begin_of_[e];
    // Counting sort: each expert's begin advances as pairs are placed, up to the next expert's begin.
    for (i64 pair = 0; pair < pairs_; ++pair) pair_at_[begin_of_[chosen[pair]]++] = pair;
    for (i64 e = attrs_.experts; e > 0; --e) begin_of_[e] = begin_of_[e - 1];
    begin_of_[0] = 0;
  }

  i64 groups(i64 expert) const { return ceil_div(begin_of_[expert + 1] - begin_of_[expert], kRows); }

  // A work item is a group of rows times a block of columns; blocks of one expert follow one another, groups of rows
  // are innermost.
  void products() const {
    const i64 blocks = ceil_div(attrs_.out, kColumns);
    i64 items = 0;
    for (i64 e = 0; e < attrs_.experts; ++e) items += blocks * groups(e);
    const auto [begin, end] = ctx_.range(items);
    i64 first = 0;  // first item of the expert
    for (i64 e = 0; e < attrs_.experts && first < end; ++e) {
      const i64 count = groups(e);
      for (i64 item = std::max(begin, first); item < std::min(end, first + blocks * count); ++item)
        product(e, (item - first) / count * kColumns, begin_of_[e] + (item - first) % count * kRows);
      first += blocks * count;
    }
  }

  // Computes columns from `column` on, for the rows whose pairs begin at pair_at_[at].
  void product(i64 expert, i64 column, i64 at) const {
    const int rows = static_cast<int>(std::min(kRows, begin_of_[expert + 1] - at));
    const i64 columns = std::min(kColumns, attrs_.out - column);
    const i64 first = expert * attrs_.out + column;  // row of the weight
    alignas(64) float results[kRows * kColumns];
    if (attrs_.block >= 0) {
      block_product(first, columns, at, rows, results);
    } else {
      element_product(first, columns, at, rows, results);
    }
    for (int r = 0; r < rows; ++r)
      std::copy_n(results + r * kColumns, columns, ctx_.output<float>() + pair_at_[at + r] * attrs_.out + column);
  }

  void element_product(i64 first, i64 columns, i64 at, int rows, float* results) const {
    simd::Epilogue epilogue;
    epilogue.out = results;
    epilogue.out_r = 1;
    epilogue.out_j = kColumns;
    if (attrs_.has_bias != 0) {
      epilogue.bias = ctx_.input<float>(3) + first;
      epilogue.bias_r = 1;
    }
    const DType dtype = ctx_.in(2).dtype;
    const auto element = static_cast<i64>(byte_size(dtype));
    const simd::MatrixView matrix{ctx_.input<std::byte>(2) + first * in_ * element, dtype, in_, 1};
    table_.dot(gathered(at, rows), in_, rows, matrix, in_, 0, columns, epilogue);
  }

  void block_product(i64 first, i64 columns, i64 at, int rows, float* results) const {
    const auto vec_dot = traits_of(attrs_.block).vec_dot;
    const i64 weight_row = block_row_bytes(attrs_.block, in_), quantized_row = quantized_row_bytes(attrs_);
    const float* bias = attrs_.has_bias != 0 ? ctx_.input<float>(3) + first : nullptr;
    for (i64 j = 0; j < columns; ++j) {
      const std::byte* weight = ctx_.input<std::byte>(2) + (first + j) * weight_row;
      for (int r = 0; r < rows; ++r) {
        float* to = results + r * kColumns + j;
        vec_dot(static_cast<int>(in_), to, 0, weight, 0, rows_ + row_of(pair_at_[at + r]) * quantized_row, 0, 1);
        if (bias != nullptr) *to += bias[j];
      }
    }
  }

  // The rows of a group, which begins at pair_at_[at].
  simd::QuantizedRows quantized(i64 at) const { return quantized_rows(rows_, pairs_, in_, at); }

  void quantize_in_order() const {
    const PanelFormat format = *readable_panels(attrs_.block);
    const auto [begin, end] = ctx_.range(pairs_);
    for (i64 e = 0; e < attrs_.experts; ++e)
      for (i64 i = std::max(begin, begin_of_[e]); i < std::min(end, begin_of_[e + 1]); ++i) {
        const i64 group = begin_of_[e] + (i - begin_of_[e]) / kPanelRows * kPanelRows;
        simd::panels()->quantize(format, row(pair_at_[i]), 0, in_, i - group, in_, quantized(group));
      }
  }

  // Calls work(expert, first pair, rows, cost of a step of columns) for all groups of rows.
  template <typename Work>
  void for_groups(const Work& work) const {
    for (i64 e = 0; e < attrs_.experts; ++e)
      for (i64 at = begin_of_[e]; at < begin_of_[e + 1]; at += kPanelRows) {
        const i64 rows = std::min(kPanelRows, begin_of_[e + 1] - at);
        work(e, at, rows, rows + kReading);
      }
  }

  // A task computes consecutive steps of columns of consecutive groups, of as much cost as the others.
  void panel_products() const {
    const i64 width = simd::panels()->tile_columns, steps = ceil_div(attrs_.out, width);
    i64 all = 0;
    for_groups([&](i64, i64, i64, i64 cost) { all += cost * steps; });
    const KernelContext::Range range = ctx_.range(all);
    i64 first = 0;
    for_groups([&](i64 expert, i64 at, i64 rows, i64 cost) {
      const i64 from = ceil_div(std::max(range.begin - first, i64{0}), cost);
      const i64 to = std::min(ceil_div(std::max(range.end - first, i64{0}), cost), steps);
      if (from < to) panel_product(expert, at, rows, from * width, std::min(to * width, attrs_.out));
      first += cost * steps;
    });
  }

  void panel_product(i64 expert, i64 at, i64 rows, i64 column, i64 end) const {
    const simd::PanelTable& table = *simd::panels();
    const PanelFormat format = *readable_panels(attrs_.block);
    const std::byte* panels = ctx_.input<std::byte>(2) + expert * panels_bytes(format, attrs_.out, in_);
    alignas(64) float results[kResults];
    const i64 most = kResults / rows / table.tile_columns * table.tile_columns;
    simd::Epilogue epilogue;
    epilogue.out_j = 1;
    if (attrs_.has_bias != 0) {
      epilogue.bias = ctx_.input<float>(3) + expert * attrs_.out;
      epilogue.bias_j = 1;
    }
    for (; column < end; column += most) {
      const i64 columns = std::min(most, end - column);
      epilogue.out_r = columns;
      epilogue.out = results - column;  // indexed by the column
      table.tiles(format, panels, quantized(at), rows, in_, attrs_.out, column, column + columns, epilogue);
      for (i64 r = 0; r < rows; ++r)
        std::copy_n(results + r * columns, columns, ctx_.output<float>() + pair_at_[at + r] * attrs_.out + column);
    }
  }

  i64 row_of(i64 pair) const { return one_row_per_token_ ? pair / per_token_ : pair; }
  const float* row(i64 pair) const { return ctx_.input<float>(0) + row_of(pair) * in_; }

  // The rows of `rows` pairs from pair_at_[at] on, gathered with stride in_.
  const float* gathered(i64 at, int rows) const {
    if (rows == 1) return row(pair_at_[at]);
    float* to = reinterpret_cast<float*>(rows_) + ctx_.task * kRows * in_;
    for (int r = 0; r < rows; ++r) std::copy_n(row(pair_at_[at + r]), in_, to + r * in_);
    return to;
  }

  const KernelContext& ctx_;
  const simd::MatmulTable& table_;
  const ExpertLinearAttrs attrs_;
  const i64 in_, per_token_, pairs_;
  const bool one_row_per_token_;
  // In scratch: where each expert's pairs begin in pair_at_ [experts + 1]; pairs sorted by expert [N * K]; the rows,
  // quantized, or gathered by each task.
  i64* begin_of_;
  i64* pair_at_;
  std::byte* rows_;
};

int phases(const KernelContext& ctx) noexcept { return ctx.attrs<ExpertLinearAttrs>().panels != 0 ? 3 : 2; }
void run_here(const KernelContext& ctx) noexcept { run_expert_linear(ctx, simd::matmul()); }

}  // namespace

const Kernel kExpertLinear = {
    "expert_linear", run_here, 0, phases, [](const KernelContext& ctx) {
      const auto attrs = ctx.attrs<ExpertLinearAttrs>();
      if (attrs.block < 0) return std::string(name(ctx.in(2).dtype)) + " weights of experts, " + isa_name();
      if (attrs.panels != 0) return "experts: " + explain_blocks(attrs.block, true);
      return "weights of experts are not packed: " + std::string(block_type_name(attrs.block)) + ", ggml's rows";
    }};

void run_expert_linear(const KernelContext& ctx, const simd::MatmulTable& table) noexcept {
  ExpertLinear(ctx, table).run();
}

std::int64_t expert_linear_scratch_bytes(const ExpertLinearAttrs& attrs, const TensorDesc& rows,
                                         const TensorDesc& experts, int threads) {
  if (attrs.panels != 0)
    return order_bytes(attrs.experts, experts.numel()) + quantized_rows_bytes(experts.numel(), attrs.in);
  const i64 kept =
      attrs.block >= 0 ? rows.shape[0] * rows.shape[1] * quantized_row_bytes(attrs) : threads * kRows * attrs.in * 4;
  return order_bytes(attrs.experts, experts.numel()) + kept;
}

}  // namespace graft
