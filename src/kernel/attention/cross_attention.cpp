#include "kernel/attention/cross_attention.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace graft {
namespace {

using i64 = std::int64_t;

std::byte* at(const void* p, const TensorDesc& desc, i64 i0, i64 i1, i64 i2) {
  const i64 index = i0 * desc.strides[0] + i1 * desc.strides[1] + i2 * desc.strides[2];
  return static_cast<std::byte*>(const_cast<void*>(p)) + index * static_cast<i64>(byte_size(desc.dtype));
}

void check_positions(const KernelContext& ctx) noexcept {
  if (ctx.task != 0) return;
  const i64 batch = ctx.in(0).shape[0], tokens = ctx.in(0).shape[1], rows = ctx.out(1).shape[0];
  const auto [capacity, append] = ctx.attrs<SourcePositionsAttrs>();
  i64 *length = ctx.output<i64>(1), *source_state = ctx.output<i64>(2), *decoder_state = ctx.output<i64>(3);
  if (!ctx.kv_rows.empty() && std::ssize(ctx.kv_rows) != batch)
    return ctx.fail("a batch of ", batch, " got ", ctx.kv_rows.size(), " kv_rows");
  std::copy_n(source_state, rows, length);
  for (i64 b = 0; b < batch; ++b) {
    const i64* from = ctx.input<i64>(0) + b * tokens;
    i64* to = ctx.output<i64>(0) + b * tokens;
    const i64 held = append != 0 ? source_state[ctx.kv_row(b)] : 0;
    i64 next = 0, count = 0;
    for (i64 t = 0; t < tokens; ++t) {
      if (from[t] >= 0 && count == 0 && from[t] <= held) next = from[t];
      if (from[t] >= 0 && from[t] != next)
        return ctx.fail("row ", b, ": position ", from[t], " of token ", t, ", expected ",
                        count == 0 && held > 0 ? held : next, count == 0 && held > 0 ? " or less" : "");
      to[t] = std::max<i64>(from[t], -1);
      next += from[t] >= 0;
      count += from[t] >= 0;
    }
    if (count == 0) return ctx.fail("row ", b, " has no tokens");
    if (next > capacity)
      return ctx.fail("row ", b, " has ", next, " tokens, the cache has room for ", capacity, " of an encoder");
    length[ctx.kv_row(b)] = next;
  }
  for (i64 b = 0; b < batch; ++b) {
    const i64 row = ctx.kv_row(b);
    if (append != 0) {
      const i64* first = std::find_if(ctx.input<i64>(0) + b * tokens, ctx.input<i64>(0) + (b + 1) * tokens,
                                      [](i64 position) { return position >= 0; });
      source_state[row] = *first;
    } else {
      source_state[row] = decoder_state[row] = 0;
    }
  }
}

void store(const KernelContext& ctx) noexcept {
  const TensorDesc& key = ctx.in(0);
  const i64 batch = key.shape[0], heads = key.shape[1], tokens = key.shape[2];
  const simd::AttentionTable& table = simd::attention();
  const auto [begin, end] = ctx.range(batch * heads * tokens);
  for (i64 item = begin; item < end; ++item) {
    const i64 t = item % tokens, head = item / tokens % heads, b = item / tokens / heads;
    const i64 slot = ctx.input<i64>(2)[b * tokens + t];
    if (slot < 0) continue;
    for (const int side : {0, 1}) {
      const TensorDesc &from = ctx.in(side), &cache = ctx.out(side);
      table.store_row(at(ctx.inputs[side], from, b, head, t), from.dtype, from.shape[3],
                      simd::row_type(cache.dtype, cache.shape[3], from.shape[3]),
                      at(ctx.outputs[side], cache, ctx.kv_row(b), head, slot));
    }
  }
}

void attend(const KernelContext& ctx) noexcept {
  const TensorDesc &q = ctx.in(0), &keys = ctx.in(2), &values = ctx.in(3), &out = ctx.out();
  const i64 batch = q.shape[0], heads = q.shape[1], tokens = q.shape[2], group = heads / keys.shape[1];
  const simd::AttentionTable& table = simd::attention();
  simd::AttentionHead head;
  head.t = tokens;
  head.d = head.dv = head.k_row = head.v_row = q.shape[3];
  head.dtype = q.dtype;
  head.kv = simd::row_type(keys.dtype, keys.shape[3], q.shape[3]);
  head.q_row = q.strides[2];
  head.out_row = out.strides[1];
  const auto [scale, has_ranges] = ctx.attrs<SourceAttentionAttrs>();
  head.scale = scale;
  const i64 blocks = (tokens + table.block - 1) / table.block;
  for (i64 unit = ctx.task; unit < batch * heads * blocks; unit += ctx.tasks) {
    const i64 block = unit % blocks, h = unit / blocks % heads, b = unit / blocks / heads;
    const i64 cached = ctx.kv_row(b);
    const i64 length = ctx.input<i64>(1)[cached], begin = block * table.block,
              end = std::min(begin + table.block, tokens);
    head.q = at(ctx.inputs[0], q, b, h, 0);
    head.out = at(ctx.outputs[0], out, b, 0, h);
    const auto run = [&](i64 from, i64 to, i64 first, i64 last) {
      head.s = last - first + 1;
      head.k = at(ctx.inputs[2], keys, cached, h / group, first);
      head.v = at(ctx.inputs[3], values, cached, h / group, first);
      table.run(head, from, to);
    };
    if (has_ranges == 0) {
      if (length == 0) return ctx.fail("row ", b, " has no source: the method that encodes it must run first");
      run(begin, end, 0, length - 1);
      continue;
    }
    const i64* ranges = ctx.input<i64>(4) + b * tokens * 2;
    // Tokens side by side that see the same together.
    for (i64 t = begin, next = begin; t < end; t = next) {
      const i64 first = ranges[t * 2], last = ranges[t * 2 + 1];
      while (next < end && ranges[next * 2] == first && ranges[next * 2 + 1] == last) ++next;
      if (first == 0 && last == -1) {
        for (i64 zero = t; zero < next; ++zero)
          std::memset(at(ctx.outputs[0], out, b, zero, h), 0,
                      static_cast<std::size_t>(q.shape[3]) * byte_size(out.dtype));
        continue;
      }
      if (first < 0 || last < first || last >= length)
        return ctx.fail("row ", b, ": token ", t, " sees the positions ", first, " to ", last,
                        " of the source, which has ", length, "; expected ones of it, or 0 to -1 for none");
      run(t, next, first, last);
    }
  }
}

}  // namespace

const Kernel kSourcePositions = {"source_positions", check_positions, INT64_MAX};
const Kernel kStoreEncoderKv = {"store_encoder_kv", store};
const Kernel kCrossAttention = {"cross_attention", attend};

}  // namespace graft
