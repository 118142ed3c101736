#include "kernel/matmul/low_rank.h"

#include <algorithm>
#include <cstring>

#include "base/ceil_div.h"

namespace graft {
namespace {

using i64 = std::int64_t;

constexpr i64 kParallelFrom = 1 << 18;  // multiply-adds
constexpr i64 kRankStep = 8;            // of a work item of the first phase
constexpr i64 kColumnStep = 64;         // of the second

// The rows of a launch by the adapter that changes them.
class Rows {
 public:
  Rows(const KernelContext& ctx, const AddAdapterAttrs& attrs)
      : adapters_(ctx.adapters), layer_(attrs.layer), rows_(ctx.in(0).shape[0]) {
    if (adapters_.size() > 1) each_ = rows_ / attrs.batch;
  }

  i64 size() const { return rows_; }
  // Null: none.
  const LowRank* of(i64 row) const {
    const std::size_t at = each_ == 0 ? 0 : static_cast<std::size_t>(row / each_);
    const LowRank* const list = at < adapters_.size() ? adapters_[at] : nullptr;
    return list != nullptr && list[layer_].rank > 0 ? list + layer_ : nullptr;
  }
  // How many of [row, end) follow each other with the same one, up to kLowRankRows.
  int same(i64 row, i64 end) const {
    int count = 1;
    while (count < simd::kLowRankRows && row + count < end && of(row + count) == of(row)) ++count;
    return count;
  }

 private:
  std::span<const LowRank* const> adapters_;
  i64 layer_, rows_, each_ = 0;  // each_: of a row of the batch; 0: all have the first adapter
};

const std::byte* row_of(const KernelContext& ctx, int input, i64 row) {
  const TensorDesc& desc = ctx.in(input);
  return ctx.input<std::byte>(input) + row * desc.strides[0] * static_cast<i64>(byte_size(desc.dtype));
}

bool fits(const KernelContext& ctx, const AddAdapterAttrs& attrs) {
  if (ctx.adapters.size() < 2) return true;
  if (attrs.batch > 0 && std::ssize(ctx.adapters) <= attrs.batch) return true;
  if (ctx.task != 0 || ctx.phase != 0) return false;
  if (attrs.batch == 0) {
    ctx.fail("the rows of this layer are not known to be those of the batch: all must have the same adapter");
  } else {
    ctx.fail("a batch of ", attrs.batch, " got ", ctx.adapters.size(), " adapters");
  }
  return false;
}

void down(const KernelContext& ctx, const AddAdapterAttrs& attrs, const Rows& rows, const simd::LowRankTable& table) {
  auto* const t = reinterpret_cast<float*>(ctx.scratch_bytes);
  const i64 depth = ctx.in(1).shape[1], stride = ctx.in(1).strides[0];
  const i64 chunks = ceil_div(attrs.most_rank, kRankStep);
  const i64 blocks = ceil_div(rows.size(), i64{simd::kLowRankRows});
  const auto [begin, end] = ctx.range(blocks * chunks);
  for (i64 item = begin; item < end; ++item) {
    const i64 q0 = item % chunks * kRankStep, first = item / chunks * simd::kLowRankRows;
    const i64 last = std::min(first + simd::kLowRankRows, rows.size());
    for (i64 row = first; row < last;) {
      const int count = rows.same(row, last);
      if (const LowRank* const added = rows.of(row); added != nullptr && q0 < added->rank)
        table.down(row_of(ctx, 1, row), ctx.in(1).dtype, stride, count, depth, added->a, q0,
                   std::min(q0 + kRankStep, added->rank), t + row * attrs.most_rank, attrs.most_rank);
      row += count;
    }
  }
}

void up(const KernelContext& ctx, const AddAdapterAttrs& attrs, const Rows& rows, const simd::LowRankTable& table) {
  const auto* const t = reinterpret_cast<const float*>(ctx.scratch_bytes);
  const TensorDesc &y = ctx.in(0), &out = ctx.out();
  const i64 columns = out.shape[1], size = static_cast<i64>(byte_size(out.dtype));
  const bool in_place = ctx.inputs[0] == ctx.outputs[0];
  // Work items are blocks of columns, so that a task reads its part of B once; rows where there are more of these.
  const i64 blocks = ceil_div(columns, kColumnStep);
  const bool by_rows = rows.size() > blocks;
  const auto [begin, end] = ctx.range(by_rows ? rows.size() : blocks);
  const i64 j0 = by_rows ? 0 : begin * kColumnStep, j1 = by_rows ? columns : std::min(end * kColumnStep, columns);
  const i64 r0 = by_rows ? begin : 0, r1 = by_rows ? end : rows.size();
  if (j0 >= j1) return;
  for (i64 row = r0; row < r1;) {
    const int count = rows.same(row, r1);
    std::byte* const to = ctx.output<std::byte>() + row * out.strides[0] * size;
    if (const LowRank* const added = rows.of(row)) {
      table.up(row_of(ctx, 0, row), y.strides[0], to, out.strides[0], out.dtype, count, t + row * attrs.most_rank,
               attrs.most_rank, added->rank, added->b, columns, j0, j1);
    } else if (!in_place) {
      for (int r = 0; r < count; ++r)
        std::memcpy(to + (r * out.strides[0] + j0) * size, row_of(ctx, 0, row + r) + j0 * size,
                    static_cast<std::size_t>((j1 - j0) * size));
    }
    row += count;
  }
}

void run_here(const KernelContext& ctx) noexcept { run_add_adapter(ctx, simd::low_rank()); }

int two_phases(const KernelContext&) noexcept { return 2; }

i64 work(const KernelContext& ctx) {
  return ctx.in(0).shape[0] * (ctx.in(0).shape[1] + ctx.in(1).shape[1]) * ctx.attrs<AddAdapterAttrs>().most_rank;
}

}  // namespace

void run_add_adapter(const KernelContext& ctx, const simd::LowRankTable& table) noexcept {
  const auto attrs = ctx.attrs<AddAdapterAttrs>();
  const auto is_none = [&](const LowRank* list) { return list == nullptr || list[attrs.layer].rank == 0; };
  if (ctx.inputs[0] == ctx.outputs[0] && std::ranges::all_of(ctx.adapters, is_none)) return;
  if (!fits(ctx, attrs)) return;
  const Rows rows(ctx, attrs);
  (ctx.phase == 0 ? down : up)(ctx, attrs, rows, table);
}

const Kernel kAddAdapter = {
    .name = "add_adapter", .run = run_here, .parallel_from = kParallelFrom, .phases = two_phases, .work = work};

}  // namespace graft
