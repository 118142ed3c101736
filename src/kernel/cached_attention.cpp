#include "kernel/cached_attention.h"

#include <algorithm>
#include <limits>
#include <string>

namespace graft {
namespace {

using i64 = std::int64_t;

std::byte* at(const void* p, const TensorDesc& desc, i64 i0, i64 i1, i64 i2) {
  const i64 index = i0 * desc.strides[0] + i1 * desc.strides[1] + i2 * desc.strides[2];
  return static_cast<std::byte*>(const_cast<void*>(p)) + index * static_cast<i64>(byte_size(desc.dtype));
}

enum Operand { kQuery, kKey, kValue, kPosition, kSinks };
enum Result { kOut, kKeyCache, kValueCache };

void write_rows(const KernelContext& ctx, const simd::AttentionTable& table) {
  const TensorDesc& key = ctx.in(kKey);
  const i64 batch = key.shape[0], heads = key.shape[1], tokens = key.shape[2];
  const i64* position = ctx.input<i64>(kPosition);
  const auto [begin, end] = ctx.share(batch * heads * tokens);
  for (i64 item = begin; item < end; ++item) {
    const i64 t = item % tokens, head = item / tokens % heads, b = item / tokens / heads;
    const i64 slot = position[b * tokens + t];
    if (slot < 0) continue;
    for (const int side : {0, 1}) {
      const TensorDesc &from = ctx.in(kKey + side), &cache = ctx.out(kKeyCache + side);
      table.store_row(at(ctx.inputs[kKey + side], from, b, head, t), from.dtype, from.shape[3],
                      simd::row_type(cache.dtype), at(ctx.outputs[kKeyCache + side], cache, b, head, slot));
    }
  }
}

void attend(const KernelContext& ctx, const simd::AttentionTable& table) {
  const auto attrs = ctx.attrs<CachedAttentionAttrs>();
  const TensorDesc &q = ctx.in(kQuery), &key = ctx.in(kKey), &value = ctx.in(kValue), &out = ctx.out(kOut);
  const TensorDesc &key_cache = ctx.out(kKeyCache), &value_cache = ctx.out(kValueCache);
  const i64 batch = q.shape[0], heads = q.shape[1], tokens = q.shape[2], shared = key.shape[1];
  const i64 group = heads / shared;
  const i64* position = ctx.input<i64>(kPosition);
  simd::AttentionHead head;
  head.dtype = q.dtype;
  head.kv = simd::row_type(key_cache.dtype);
  head.d = q.shape[3];
  head.dv = value.shape[3];
  head.k_row = head.d;
  head.v_row = head.dv;
  head.causal = true;
  head.window = attrs.window;
  head.chunk = attrs.chunk;
  head.scale = attrs.scale;
  head.softcap = attrs.softcap;
  // One token: the heads that share keys are the queries of one call, so that each key is read once.
  const bool one = tokens == 1;
  head.group = one ? group : 1;
  head.t = one ? group : tokens;
  head.q_row = one ? q.strides[1] : q.strides[2];
  head.out_row = one ? out.strides[2] : out.strides[1];
  const i64 calls = one ? shared : heads;
  const i64 blocks = (head.t + table.block - 1) / table.block;
  // Later blocks see more keys: threads take blocks in turn, and every other head backwards.
  for (i64 unit = ctx.thread; unit < batch * calls * blocks; unit += ctx.threads) {
    const i64 item = unit / blocks;
    const i64 block = item % 2 == 0 ? unit % blocks : blocks - 1 - unit % blocks;
    const i64 b = item / calls, call = item % calls;
    const i64 first = one ? call * group : call;  // query head
    const i64 from = one ? call : call / group;   // head of keys and values
    const i64* row = position + b * tokens;
    head.first_token = 0;
    while (head.first_token < tokens && row[head.first_token] < 0) ++head.first_token;
    const bool padding = head.first_token == tokens;
    head.shift = padding ? 0 : row[head.first_token] - head.first_token;
    head.s = padding ? 0 : row[tokens - 1] + 1;
    head.q = at(ctx.inputs[kQuery], q, b, first, 0);
    head.k = at(ctx.outputs[kKeyCache], key_cache, b, from, 0);
    head.v = at(ctx.outputs[kValueCache], value_cache, b, from, 0);
    head.out = at(ctx.outputs[kOut], out, b, 0, first);
    head.sink = attrs.has_sinks != 0 ? ctx.input<float>(kSinks) + first : nullptr;
    table.run(head, block * table.block, std::min((block + 1) * table.block, head.t));
  }
}

void run(const KernelContext& ctx) noexcept { run_cached_attention(ctx, simd::attention()); }
int phases(const KernelContext&) noexcept { return 2; }

void check_positions(const KernelContext& ctx) noexcept {
  if (ctx.thread != 0) return;
  const TensorDesc& desc = ctx.in(0);
  const i64 batch = desc.shape[0], tokens = desc.shape[1], rows = ctx.in(1).shape[0];
  const i64 capacity = ctx.attrs<CachePositionsAttrs>().capacity;
  const i64* length = ctx.input<i64>(1);
  i64* new_length = ctx.output<i64>(1);
  std::copy_n(length, rows, new_length);
  for (i64 b = 0; b < batch; ++b) {
    const i64* from = ctx.input<i64>(0) + b * tokens;
    i64* to = ctx.output<i64>(0) + b * tokens;
    const auto fail = [&](const std::string& what) { ctx.fail("row " + std::to_string(b) + ": " + what); };
    i64 next = -1;
    for (i64 t = 0; t < tokens; ++t) {
      if (from[t] < 0) {
        if (next >= 0)
          return fail("token " + std::to_string(t) + " is padding (" + std::to_string(from[t]) +
                      "); padding must come before the first token");
        to[t] = -1;
        continue;
      }
      if (next < 0 && from[t] > length[b])
        return fail("position " + std::to_string(from[t]) + " leaves a gap: the cache holds " +
                    std::to_string(length[b]) + " tokens");
      if (next >= 0 && from[t] != next)
        return fail("position " + std::to_string(from[t]) + " of token " + std::to_string(t) + ", expected " +
                    std::to_string(next));
      if (from[t] >= capacity)
        return fail("position " + std::to_string(from[t]) + " is beyond the cache of " + std::to_string(capacity) +
                    " tokens");
      to[t] = from[t];
      next = from[t] + 1;
    }
    if (next >= 0) new_length[b] = next;
  }
}

}  // namespace

void run_cached_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept {
  if (ctx.phase == 0) {
    write_rows(ctx, table);
  } else {
    attend(ctx, table);
  }
}

const Kernel kCachedAttention = {"cached_attention", run, 0, phases};
const Kernel kCachePositions = {"cache_positions", check_positions, std::numeric_limits<i64>::max()};

}  // namespace graft
