#include "kernel/attention/attention.h"

#include <algorithm>

#include "base/ceil_div.h"

namespace graft {
namespace {

using i64 = std::int64_t;

const std::byte* at(const void* p, DType dtype, i64 index) {
  return static_cast<const std::byte*>(p) + index * static_cast<i64>(byte_size(dtype));
}

// Offset of leading index `item` (row-major over all dims but the last two), in elements.
i64 batch_offset(const TensorDesc& desc, i64 item) {
  i64 offset = 0;
  for (int d = desc.rank() - 3; d >= 0; --d) {
    offset += item % desc.shape[d] * desc.strides[static_cast<std::size_t>(d)];
    item /= desc.shape[d];
  }
  return offset;
}

i64 stride(const TensorDesc& desc, int from_last) {
  return desc.strides[static_cast<std::size_t>(desc.rank() - from_last)];
}

bool in_bf16(const TensorDesc& q, const TensorDesc& k, const AttentionAttrs& attrs, const simd::AttentionTable& table) {
  return table.bf16 && q.shape[q.rank() - 2] > 8 && (k.dtype == DType::bf16 || attrs.in_bf16 != 0);
}

// A head's keys and values copied to contiguous rows of f32. Every block of queries reads them, and rows a large stride
// apart fall into few sets of the second-level cache. Each task has its own copy.
class CopiedKv {
 public:
  CopiedKv(const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const AttentionAttrs& attrs,
           const simd::AttentionTable& table)
      : k_(k), v_(v), rows_(k.shape[k.rank() - 2]), d_(k.shape[k.rank() - 1]), dv_(v.shape[v.rank() - 1]) {
    constexpr i64 kLeastBlocks = 4;
    constexpr i64 kMostBytes = i64{1} << 20;
    const bool lies = k.dtype == DType::f32 && stride(k, 2) == d_ && stride(v, 2) == dv_;
    there_ = !lies && !in_bf16(q, k, attrs, table) && q.shape[q.rank() - 2] >= kLeastBlocks * table.block &&
             floats_per_task() * static_cast<i64>(sizeof(float)) <= kMostBytes;
  }

  i64 scratch_bytes(int threads) const {
    return there_ ? threads * floats_per_task() * static_cast<i64>(sizeof(float)) : 0;
  }

  // Copies the head's keys and values into this task's scratch and points `head` at them.
  void take(const KernelContext& ctx, const simd::AttentionTable& table, simd::AttentionHead& head) {
    if (!there_) return;
    float* k = reinterpret_cast<float*>(ctx.scratch_bytes) + ctx.task * floats_per_task();
    float* v = k + rows_ * d_;
    if (head.k != from_k_ || head.v != from_v_) {
      from_k_ = head.k;
      from_v_ = head.v;
      table.widen_rows(from_k_, k_.dtype, stride(k_, 2), rows_, d_, k);
      table.widen_rows(from_v_, v_.dtype, stride(v_, 2), rows_, dv_, v);
    }
    head.k = k;
    head.v = v;
    head.kv = simd::RowType::f32;
    head.k_row = d_;
    head.v_row = dv_;
  }

 private:
  i64 floats_per_task() const { return ceil_div(rows_ * (d_ + dv_), 16) * 16; }

  const TensorDesc &k_, &v_;
  const i64 rows_, d_, dv_;
  bool there_ = false;
  const void *from_k_ = nullptr, *from_v_ = nullptr;
};

void attention_here(const KernelContext& ctx) noexcept { run_attention(ctx, simd::attention()); }

}  // namespace

i64 attention_scratch_bytes(const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const AttentionAttrs& attrs,
                            int threads, const simd::AttentionTable& table) {
  return CopiedKv(q, k, v, attrs, table).scratch_bytes(threads);
}
i64 attention_scratch_bytes(const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const AttentionAttrs& attrs,
                            int threads) {
  return attention_scratch_bytes(q, k, v, attrs, threads, simd::attention());
}

void run_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept {
  const auto attrs = ctx.attrs<AttentionAttrs>();
  const TensorDesc &q = ctx.in(0), &k = ctx.in(1), &v = ctx.in(2), &out = ctx.out();
  const int rank = q.rank();
  simd::AttentionHead head;
  head.t = q.shape[rank - 2];
  head.d = q.shape[rank - 1];
  head.s = k.shape[rank - 2];
  head.dv = v.shape[rank - 1];
  head.dtype = q.dtype;
  head.q_row = stride(q, 2);
  head.out_row = stride(out, 2);
  head.scale = attrs.scale;
  head.causal = attrs.causal != 0;
  head.in_bf16 = attrs.in_bf16 != 0;
  i64 items = 1;
  for (int d = 0; d + 2 < rank; ++d) items *= q.shape[d];
  const i64 blocks = ceil_div(head.t, table.block);
  CopiedKv copied(q, k, v, attrs, table);
  const auto attend = [&](i64 item, i64 block) {
    head.q = at(ctx.inputs[0], q.dtype, batch_offset(q, item));
    head.k = at(ctx.inputs[1], k.dtype, batch_offset(k, item));
    head.v = at(ctx.inputs[2], v.dtype, batch_offset(v, item));
    head.kv = simd::row_type(k.dtype, head.d, head.d);
    head.k_row = stride(k, 2);
    head.v_row = stride(v, 2);
    copied.take(ctx, table, head);
    head.out = const_cast<std::byte*>(at(ctx.outputs[0], out.dtype, batch_offset(out, item)));
    if (attrs.has_mask != 0) {
      const TensorDesc& mask = ctx.in(3);
      head.mask = at(ctx.inputs[3], mask.dtype, batch_offset(mask, item));
      head.mask_dtype = mask.dtype;
      head.mask_row = stride(mask, 2);
      head.mask_col = stride(mask, 1);
    }
    if (ctx.output_descs.size() > 1) head.lse = ctx.output<float>(1) + item * head.t;
    table.run(head, block * table.block, std::min((block + 1) * table.block, head.t));
  };
  // Consecutive work items: a task's cache holds the keys of its own heads.
  ctx.for_chunks(items * blocks, {.multiple = blocks}, [&](i64 begin, i64 end) {
    for (i64 unit = begin; unit < end; ++unit) attend(unit / blocks, unit % blocks);
  });
}

const Kernel kAttention = {"attention",
                           attention_here,
                           0,
                           nullptr,
                           [](const KernelContext& ctx) {
                             const auto attrs = ctx.attrs<AttentionAttrs>();
                             const bool rounds = in_bf16(ctx.in(0), ctx.in(1), attrs, simd::attention());
                             const bool packs = attention_scratch_bytes(ctx.in(0), ctx.in(1), ctx.in(2), attrs, 1) > 0;
                             return std::string(name(ctx.in(0).dtype)) + ", one pass without a score matrix" +
                                    (rounds ? ", products in bf16" : "") +
                                    (packs ? ", a head's keys and values packed, " : ", ") + isa_name();
                           },
                           nullptr,
                           true};

}  // namespace graft
