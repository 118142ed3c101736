#include "kernel/moe.h"

#include <algorithm>
#include <string>

namespace graft {
namespace {

using i64 = std::int64_t;

// Columns of a matrix that one unit of work computes for all rows of the expert: they stay in the caches while the rows
// go by.
constexpr i64 kColumns = 48;
constexpr i64 kRows = simd::kMaxDotRows;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

i64 aligned(i64 bytes) { return ceil_div(bytes, 64) * 64; }

class ExpertLinear {
 public:
  ExpertLinear(const KernelContext& ctx, const simd::MatmulTable& table)
      : ctx_(ctx),
        table_(table),
        per_token_(ctx.in(1).shape[1]),
        pairs_(ctx.in(1).numel()),
        experts_(ctx.in(2).shape[0]),
        out_(ctx.in(2).shape[1]),
        in_(ctx.in(2).shape[2]),
        one_row_per_token_(ctx.in(0).shape[1] == 1),
        begin_of_(reinterpret_cast<i64*>(ctx.scratch_bytes)),
        pair_at_(begin_of_ + experts_ + 1) {}

  // Phase 0: pairs of a token and an expert, sorted by expert. Phase 1: products.
  void run() const {
    if (ctx_.phase == 1) return products();
    if (ctx_.thread != 0) return;
    if (ctx_.in(1).dtype == DType::i32) return sort(ctx_.input<std::int32_t>(1));
    sort(ctx_.input<i64>(1));
  }

 private:
  template <typename T>
  void sort(const T* chosen) const {
    std::fill_n(begin_of_, experts_ + 1, i64{0});
    for (i64 pair = 0; pair < pairs_; ++pair) {
      if (chosen[pair] < 0 || chosen[pair] >= experts_) {
        ctx_.fail("expert " + std::to_string(chosen[pair]) + " is out of range for " + std::to_string(experts_) +
                  " experts");
        std::fill_n(begin_of_, experts_ + 1, i64{0});  // nothing left to do in phase 1
        return;
      }
      ++begin_of_[chosen[pair] + 1];
    }
    for (i64 e = 0; e < experts_; ++e) begin_of_[e + 1] += begin_of_[e];
    // Places are taken from each expert's begin on, which ends up one expert further.
    for (i64 pair = 0; pair < pairs_; ++pair) pair_at_[begin_of_[chosen[pair]]++] = pair;
    for (i64 e = experts_; e > 0; --e) begin_of_[e] = begin_of_[e - 1];
    begin_of_[0] = 0;
  }

  i64 groups(i64 expert) const { return ceil_div(begin_of_[expert + 1] - begin_of_[expert], kRows); }

  // A unit is a group of rows times a block of columns, blocks of one expert after another, groups of rows innermost.
  void products() const {
    const i64 blocks = ceil_div(out_, kColumns);
    i64 units = 0;
    for (i64 e = 0; e < experts_; ++e) units += blocks * groups(e);
    const auto [begin, end] = ctx_.share(units);
    i64 first = 0;  // unit of the expert
    for (i64 e = 0; e < experts_ && first < end; ++e) {
      const i64 count = groups(e);
      for (i64 unit = std::max(begin, first); unit < std::min(end, first + blocks * count); ++unit)
        product(e, (unit - first) / count * kColumns, begin_of_[e] + (unit - first) % count * kRows);
      first += blocks * count;
    }
  }

  // Columns from `column` on of the rows from place `at` on.
  void product(i64 expert, i64 column, i64 at) const {
    const int rows = static_cast<int>(std::min(kRows, begin_of_[expert + 1] - at));
    const i64 columns = std::min(kColumns, out_ - column);
    alignas(64) float results[kRows * kColumns];
    simd::Epilogue epilogue;
    epilogue.out = results;
    epilogue.out_r = 1;
    epilogue.out_j = kColumns;
    if (ctx_.attrs<ExpertLinearAttrs>().has_bias != 0) {
      epilogue.bias = ctx_.input<float>(3) + expert * out_ + column;
      epilogue.bias_r = 1;
    }
    const DType dtype = ctx_.in(2).dtype;
    const auto element = static_cast<i64>(byte_size(dtype));
    const simd::MatrixView matrix{ctx_.input<std::byte>(2) + (expert * out_ + column) * in_ * element, dtype, in_, 1};
    table_.dot(gathered(at, rows), in_, rows, matrix, in_, 0, columns, epilogue);
    for (int r = 0; r < rows; ++r)
      std::copy_n(results + r * kColumns, columns, ctx_.output<float>() + pair_at_[at + r] * out_ + column);
  }

  const float* row(i64 pair) const {
    return ctx_.input<float>(0) + (one_row_per_token_ ? pair / per_token_ : pair) * in_;
  }

  // The rows of some places, in_ apart.
  const float* gathered(i64 at, int rows) const {
    if (rows == 1) return row(pair_at_[at]);
    auto* to =
        reinterpret_cast<float*>(ctx_.scratch_bytes + aligned((experts_ + 1 + pairs_) * 8)) + ctx_.thread * kRows * in_;
    for (int r = 0; r < rows; ++r) std::copy_n(row(pair_at_[at + r]), in_, to + r * in_);
    return to;
  }

  const KernelContext& ctx_;
  const simd::MatmulTable& table_;
  const i64 per_token_, pairs_, experts_, out_, in_;
  const bool one_row_per_token_;
  i64* begin_of_;  // [E + 1] in scratch: where each expert's pairs begin in pair_at_
  i64* pair_at_;   // [N * K] in scratch: pairs sorted by expert
};

int two_phases(const KernelContext&) noexcept { return 2; }
void run_here(const KernelContext& ctx) noexcept { run_expert_linear(ctx, simd::matmul()); }

}  // namespace

const Kernel kExpertLinear = {"expert_linear", run_here, 0, two_phases};

void run_expert_linear(const KernelContext& ctx, const simd::MatmulTable& table) noexcept {
  ExpertLinear(ctx, table).run();
}

std::int64_t expert_linear_scratch_bytes(const TensorDesc& rows, const TensorDesc& experts, const TensorDesc& weight,
                                         int threads) {
  const i64 in = rows.shape[rows.rank() - 1];
  return aligned((weight.shape[0] + 1 + experts.numel()) * 8) + threads * kRows * in * 4;
}

}  // namespace graft
