#include "kernel/attention.h"

#include <algorithm>

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

void attention_here(const KernelContext& ctx) noexcept { run_attention(ctx, simd::attention()); }

}  // namespace

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
  head.kv = simd::row_type(k.dtype);
  head.q_row = stride(q, 2);
  head.k_row = stride(k, 2);
  head.v_row = stride(v, 2);
  head.out_row = stride(out, 2);
  head.scale = attrs.scale;
  head.causal = attrs.causal != 0;
  head.in_bf16 = attrs.in_bf16 != 0;
  i64 items = 1;
  for (int d = 0; d + 2 < rank; ++d) items *= q.shape[d];
  const i64 blocks = (head.t + table.block - 1) / table.block;
  // Later blocks of a causal head see more keys: threads take blocks in turn, and every other head backwards. Other
  // heads stay whole as far as possible: a thread's cache holds the keys of its own.
  const auto [begin, end] = head.causal ? KernelContext::Range{ctx.thread, items * blocks} : ctx.share(items * blocks);
  for (i64 unit = begin; unit < end; unit += head.causal ? ctx.threads : 1) {
    const i64 item = unit / blocks;
    const i64 block = item % 2 == 0 ? unit % blocks : blocks - 1 - unit % blocks;
    head.q = at(ctx.inputs[0], q.dtype, batch_offset(q, item));
    head.k = at(ctx.inputs[1], k.dtype, batch_offset(k, item));
    head.v = at(ctx.inputs[2], v.dtype, batch_offset(v, item));
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
  }
}

const Kernel kAttention = {"attention", attention_here, 0, nullptr, [](const KernelContext& ctx) {
                             const bool in_bf16 =
                                 simd::attention().bf16 && ctx.in(0).shape[ctx.in(0).rank() - 2] > 8 &&
                                 (ctx.in(1).dtype == DType::bf16 || ctx.attrs<AttentionAttrs>().in_bf16 != 0);
                             return std::string(name(ctx.in(0).dtype)) + ", one pass without a score matrix" +
                                    (in_bf16 ? ", products in bf16, " : ", ") + isa_name();
                           }};

}  // namespace graft
