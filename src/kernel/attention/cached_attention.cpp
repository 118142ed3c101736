#include "kernel/attention/cached_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace graft {
namespace {

using i64 = std::int64_t;

std::byte* at(const void* p, const TensorDesc& desc, i64 i0, i64 i1, i64 i2) {
  const i64 index = i0 * desc.strides[0] + i1 * desc.strides[1] + i2 * desc.strides[2];
  return static_cast<std::byte*>(const_cast<void*>(p)) + index * static_cast<i64>(byte_size(desc.dtype));
}

enum Operand { kQuery, kKey, kValue, kPosition, kMore };  // then sinks, bias, blocks, the rings of keys and values
enum Result { kOut, kKeyCache, kValueCache };

i64 slot_of(i64 position, i64 ring) { return ring > 0 ? position % ring : position; }

// Whether the attending task also stores the new token's key and value, which saves a phase: possible when no other
// task reads them.
bool writes_as_it_attends(const KernelContext& ctx) {
  const Shape &q = ctx.in(kQuery).shape, &k = ctx.in(kKey).shape;
  return k[2] == 1 && q[1] / k[1] <= simd::kLeastQueriesAtOnce && ctx.attrs<CachedAttentionAttrs>().staged == 0;
}

// Stores the key or value of token t, which is not padding.
void write_token(const KernelContext& ctx, const simd::AttentionTable& table, int side, i64 b, i64 head, i64 t,
                 i64 cached, i64 slot) {
  const TensorDesc &from = ctx.in(kKey + side), &cache = ctx.out(kKeyCache + side);
  table.store_row(at(ctx.inputs[kKey + side], from, b, head, t), from.dtype, from.shape[3],
                  simd::row_type(cache.dtype, cache.shape[3], from.shape[3]),
                  at(ctx.outputs[kKeyCache + side], cache, cached, head, slot));
}

void write_rows(const KernelContext& ctx, const simd::AttentionTable& table) {
  const auto attrs = ctx.attrs<CachedAttentionAttrs>();
  const TensorDesc& key = ctx.in(kKey);
  const i64 batch = key.shape[0], heads = key.shape[1], tokens = key.shape[2];
  const i64* position = ctx.input<i64>(kPosition);
  const i64 history = attrs.staged != 0 ? attrs.history : 0, places = history + tokens;
  const auto [begin, end] = ctx.range(batch * heads * places);
  for (i64 item = begin; item < end; ++item) {
    const i64 place = item % places, head = item / places % heads, b = item / places / heads;
    const i64 t = place - history;
    const i64* row = position + b * tokens;
    const i64 cached = ctx.kv_row(b);
    for (const int side : {0, 1}) {
      if (t >= 0 && row[t] >= 0) {
        const i64 slot = attrs.staged != 0 ? place : slot_of(row[t], attrs.ring);
        write_token(ctx, table, side, b, head, t, attrs.staged != 0 ? b : cached, slot);
        continue;
      }
      const TensorDesc& cache = ctx.out(kKeyCache + side);
      // History: the positions right before the row's first token, in the places before it, also those of padding.
      const i64 first = first_token(row, tokens);
      const i64 before = first == tokens ? -1 : row[first] - first + t;
      if (before < 0 || t < first - history) continue;
      const int ring = kMore + attrs.has_sinks + attrs.has_bias + attrs.has_blocks + side;
      const std::size_t bytes = static_cast<std::size_t>(cache.shape[3]) * byte_size(cache.dtype);
      std::memcpy(at(ctx.outputs[kKeyCache + side], cache, b, head, place),
                  at(ctx.inputs[ring], ctx.in(ring), cached, head, slot_of(before, attrs.ring)), bytes);
    }
  }
}

void store_in_ring(const KernelContext& ctx) noexcept {
  enum { kStagedKey, kStagedValue, kTokens };
  const TensorDesc &staged = ctx.in(kStagedKey), &ring = ctx.out(0), &rows = ctx.in(kTokens);
  const i64 batch = staged.shape[0], heads = staged.shape[1], tokens = rows.shape[1], slots = ring.shape[2];
  const auto [begin, end] = ctx.range(batch * heads);
  for (i64 item = begin; item < end; ++item) {
    const i64 head = item % heads, b = item / heads;
    const i64* row = ctx.input<i64>(kTokens) + b * tokens;
    for (i64 t = std::max(first_token(row, tokens), tokens - slots); t < tokens; ++t)
      for (const int side : {0, 1}) {
        const TensorDesc &from = ctx.in(side), &to = ctx.out(side);
        const std::size_t bytes = static_cast<std::size_t>(to.shape[3]) * byte_size(to.dtype);
        std::memcpy(at(ctx.outputs[side], to, ctx.kv_row(b), head, row[t] % slots),
                    at(ctx.inputs[side], from, b, head, staged.shape[2] - tokens + t), bytes);
      }
  }
}

// `writes`: the result of writes_as_it_attends().
void attend(const KernelContext& ctx, const simd::AttentionTable& table, bool writes) {
  const auto attrs = ctx.attrs<CachedAttentionAttrs>();
  const TensorDesc &q = ctx.in(kQuery), &key = ctx.in(kKey), &value = ctx.in(kValue), &out = ctx.out(kOut);
  const TensorDesc &key_cache = ctx.out(kKeyCache), &value_cache = ctx.out(kValueCache);
  const i64 batch = q.shape[0], heads = q.shape[1], tokens = q.shape[2], shared = key.shape[1];
  const i64 group = heads / shared;
  const i64* position = ctx.input<i64>(kPosition);
  simd::AttentionHead all;  // fields equal for all heads
  all.dtype = q.dtype;
  all.kv = simd::row_type(key_cache.dtype, key_cache.shape[3], key.shape[3]);
  all.d = q.shape[3];
  all.dv = value.shape[3];
  all.k_row = all.d;
  all.v_row = all.dv;
  all.causal = true;
  all.window = attrs.window;
  all.chunk = attrs.chunk;
  all.whole_blocks = attrs.whole_blocks != 0;
  all.ring = attrs.staged != 0 ? 0 : attrs.ring;
  all.scale = attrs.scale;
  all.softcap = attrs.softcap;
  // One token: the query heads that share keys are the queries of one call, so that each key is read once.
  const bool one = tokens == 1;
  all.group = one ? group : 1;
  all.t = one ? group : tokens;
  all.q_row = one ? q.strides[1] : q.strides[2];
  all.out_row = one ? out.strides[2] : out.strides[1];
  const i64 calls = one ? shared : heads;
  const i64 blocks = (all.t + table.block - 1) / table.block, units = batch * calls * blocks;
  const auto head_of = [&](i64 unit) {
    simd::AttentionHead head = all;
    const i64 item = unit / blocks;
    const i64 b = item / calls, call = item % calls;
    const i64 first = one ? call * group : call;  // query head
    const i64 from = one ? call : call / group;   // head of keys and values
    const i64* row = position + b * tokens;
    head.first_token = first_token(row, tokens);
    const bool padding = head.first_token == tokens;
    head.shift = padding ? 0 : row[head.first_token] - head.first_token;
    head.s = padding ? 0 : row[tokens - 1] + 1;
    head.origin = attrs.staged != 0 ? head.shift - attrs.history : 0;
    head.q = at(ctx.inputs[kQuery], q, b, first, 0);
    const i64 cached = attrs.staged != 0 ? b : ctx.kv_row(b);
    head.k = at(ctx.outputs[kKeyCache], key_cache, cached, from, 0);
    head.v = at(ctx.outputs[kValueCache], value_cache, cached, from, 0);
    head.out = at(ctx.outputs[kOut], out, b, 0, first);
    head.sink = attrs.has_sinks != 0 ? ctx.input<float>(kMore) + first : nullptr;
    if (attrs.has_bias != 0) {
      const int bias = kMore + attrs.has_sinks;
      head.biases = ctx.in(bias).shape[1];
      head.bias = ctx.input<float>(bias) + first * head.biases;
    }
    if (attrs.has_blocks != 0) head.blocks = ctx.input<i64>(kMore + attrs.has_sinks + attrs.has_bias) + b * tokens * 2;
    return head;
  };
  simd::AttentionHead head, next;
  if (ctx.task < units) next = head_of(ctx.task);
  // Later blocks see more keys: blocks go to the threads round-robin, in reverse for every other head.
  for (i64 unit = ctx.task; unit < units; unit += ctx.tasks) {
    head = next;
    // Head of the next work item, of this task or of the next one, which a thread runs after it.
    const i64 after = unit + ctx.tasks < units ? unit + ctx.tasks : ctx.task + 1;
    if (after < units) {
      next = head_of(after);
      head.next = &next;
    }
    if (writes && head.first_token == 0) {
      const i64 b = unit / calls;
      for (const int side : {0, 1})
        write_token(ctx, table, side, b, unit % calls, 0, ctx.kv_row(b), slot_of(position[b], attrs.ring));
    }
    const i64 block = unit / blocks % 2 == 0 ? unit % blocks : blocks - 1 - unit % blocks;
    table.run(head, block * table.block, std::min((block + 1) * table.block, head.t));
  }
}

void run(const KernelContext& ctx) noexcept { run_cached_attention(ctx, simd::attention()); }
int phases(const KernelContext& ctx) noexcept { return writes_as_it_attends(ctx) ? 1 : 2; }

struct Tokens {
  i64 begin = 0, end = 0;  // positions; equal: the row is all padding
};

// Reads the positions of a row's tokens; records the failure and returns false when they break kCachePositions' rules.
bool read_positions(const KernelContext& ctx, i64 row, const i64* from, i64 tokens, i64 length, i64 capacity,
                    Tokens& found) {
  const auto fail = [&](const auto&... parts) {
    ctx.fail("row ", row, ": ", parts...);
    return false;
  };
  found = {};
  bool any = false;
  for (i64 t = 0; t < tokens; ++t) {
    if (from[t] < 0) {
      if (any) return fail("token ", t, " is padding (", from[t], "); padding must come before the first token");
      continue;
    }
    if (!any && from[t] > length)
      return fail("position ", from[t], " leaves a gap: the cache holds ", length, " tokens");
    if (any && from[t] != found.end) return fail("position ", from[t], " of token ", t, ", expected ", found.end);
    if (from[t] >= capacity) return fail("position ", from[t], " is beyond the cache of ", capacity, " tokens");
    if (!any) found.begin = from[t];
    found.end = from[t] + 1;
    any = true;
  }
  return true;
}

// The same for the blocks of its tokens.
bool check_blocks(const KernelContext& ctx, i64 row, const i64* position, const i64* blocks, i64 tokens) {
  const auto fail = [&](const auto&... parts) {
    ctx.fail("row ", row, ": ", parts...);
    return false;
  };
  i64 first = 0, last = 0;
  for (i64 t = 0; t < tokens; ++t) {
    if (position[t] < 0) continue;
    const i64 begin = blocks[t * 2], end = blocks[t * 2 + 1];
    if (begin < first || begin > position[t] || end < last || end < position[t])
      return fail("token ", t, " at position ", position[t], " has a block of positions ", begin, " to ", end,
                  ", expected one around it, that begins at ", first, " and ends at ", last, " or later");
    if (end > position[tokens - 1])
      return fail("the block of positions ", begin, " to ", end, " is cut: the run ends at ", position[tokens - 1]);
    first = begin;
    last = end;
  }
  return true;
}

void check_positions(const KernelContext& ctx) noexcept {
  if (ctx.task != 0) return;
  const TensorDesc& desc = ctx.in(0);
  const i64 batch = desc.shape[0], tokens = desc.shape[1], rows = ctx.in(1).shape[0];
  const auto attrs = ctx.attrs<CachePositionsAttrs>();
  const i64 kinds = attrs.windows;
  const i64 *length = ctx.input<i64>(1), *first = kinds > 0 ? ctx.input<i64>(2) : nullptr;
  i64* new_length = ctx.output<i64>(1);
  i64* new_first = kinds > 0 ? ctx.output<i64>(2) : nullptr;
  const int with_first = kinds > 0 ? 1 : 0, with_layers = attrs.layers > 0 ? 1 : 0;
  i64* new_half = attrs.recurrent != 0 ? ctx.output<i64>(2 + with_first) : nullptr;
  const int states = 2 + with_first + attrs.recurrent;  // the first output that is one
  const i64* blocks = attrs.blocks != 0 ? ctx.input<i64>(2 + with_first + with_layers + attrs.recurrent) : nullptr;
  if (!ctx.kv_rows.empty() && std::ssize(ctx.kv_rows) != batch)
    return ctx.fail("a batch of ", batch, " got ", ctx.kv_rows.size(), " kv_rows");
  std::copy_n(length, rows, new_length);
  if (kinds > 0) std::copy_n(first, rows * kinds, new_first);
  if (new_half != nullptr) std::copy_n(ctx.input<i64>(2 + with_first + with_layers), rows, new_half);
  for (i64 b = 0; b < batch; ++b) {
    const i64* from = ctx.input<i64>(0) + b * tokens;
    i64* to = ctx.output<i64>(0) + b * tokens;
    Tokens found;
    const i64 cached = ctx.kv_row(b);
    if (!read_positions(ctx, b, from, tokens, length[cached], attrs.capacity, found)) return;
    if (blocks != nullptr && !check_blocks(ctx, b, from, blocks + b * tokens * 2, tokens)) return;
    std::transform(from, from + tokens, to, [](i64 p) { return std::max<i64>(p, -1); });
    if (found.end == found.begin) continue;
    if (new_half != nullptr && found.begin > 0 && found.begin < length[cached])
      return ctx.fail("row ", b, ": position ", found.begin, " goes back from ", length[cached],
                      " tokens; the recurrent states of the row are those of all of them");
    new_length[cached] = found.end;
    if (new_half != nullptr) new_half[cached] = 1 - new_half[cached];
    for (std::size_t k = 0; k < static_cast<std::size_t>(kinds); ++k) {
      i64& held = new_first[cached * kinds + static_cast<i64>(k)];
      const i64 seen = std::max<i64>(found.begin - attrs.window[k] + 1, 0);
      if (found.begin > 0 && seen < held)
        return ctx.fail("row ", b, ": position ", found.begin, " sees the tokens from ", seen, " on; of its window of ",
                        attrs.window[k], " the cache holds those from ", held, " on");
      if (found.begin == 0) held = 0;
      if (attrs.slots[k] > 0) held = std::max(held, found.end - attrs.slots[k]);
    }
  }
  // Nothing fails from here on. A truncation holds even if the run is cancelled: the slots are overwritten.
  i64* length_state = ctx.output<i64>(states);
  for (i64 b = 0; b < batch; ++b) {
    const i64* to = ctx.output<i64>(0) + b * tokens;
    const i64 t = first_token(to, tokens);
    if (t < tokens) length_state[ctx.kv_row(b)] = std::min(length_state[ctx.kv_row(b)], to[t]);
  }
  if (kinds > 0 && attrs.staged == 0) std::copy_n(new_first, rows * kinds, ctx.output<i64>(states + 1));
  i64* layers = attrs.layers > 0 ? ctx.output<i64>(states + 1 + with_first) : nullptr;
  for (i64 b = 0; layers != nullptr && b < batch; ++b) {
    const i64* to = ctx.output<i64>(0) + b * tokens;
    const i64 t = first_token(to, tokens);
    if (t == tokens) continue;
    i64* row = layers + ctx.kv_row(b) * attrs.layers;
    std::transform(row, row + attrs.layers, row, [&](i64 held) { return std::min(held, to[t]); });
  }
}

void check_layer(const KernelContext& ctx) noexcept {
  if (ctx.task != 0) return;
  const i64 batch = ctx.in(0).shape[0], tokens = ctx.in(0).shape[1], layers = ctx.in(1).shape[1];
  const auto attrs = ctx.attrs<LayerPositionsAttrs>();
  const i64* position = ctx.input<i64>(0);
  std::copy_n(position, batch * tokens, ctx.output<i64>(0));
  i64* lengths = ctx.output<i64>(1);
  const auto held = [&](i64 b) -> i64& { return lengths[ctx.kv_row(b) * layers + attrs.column]; };
  for (i64 b = 0; b < batch; ++b) {
    const i64* row = position + b * tokens;
    const i64 t = first_token(row, tokens);
    if (t < tokens && held(b) < row[t])
      return ctx.fail("row ", b, ": layer ", attrs.layer, " has no keys and values of the tokens from ", held(b),
                      " to ", row[t] - 1, ": the branch of torch.cond that it is in was not taken for them");
  }
  for (i64 b = 0; b < batch; ++b)
    if (const i64 last = tokens > 0 ? position[b * tokens + tokens - 1] : -1; last >= 0) held(b) = last + 1;
}

}  // namespace

void run_cached_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept {
  const bool writes = writes_as_it_attends(ctx);
  if (ctx.phase == 0 && !writes) {
    write_rows(ctx, table);
  } else {
    attend(ctx, table, writes);
  }
}

const Kernel kCachedAttention = {
    "cached_attention", run, 0, phases, [](const KernelContext& ctx) {
      const auto attrs = ctx.attrs<CachedAttentionAttrs>();
      const TensorDesc &query = ctx.in(kQuery), &cache = ctx.out(kKeyCache);
      const auto type = simd::row_type(cache.dtype, cache.shape[3], query.shape[3]);
      const bool blocks = simd::row_elements(type) > 1;
      const std::string_view stored = !blocks ? name(cache.dtype) : type == simd::RowType::q8_0 ? "q8_0" : "q4_0";
      const bool few = query.shape[2] <= simd::kLeastQueriesAtOnce;
      return "cache " + std::string(stored) + (attrs.ring > 0 ? " in rings" : "") +
             (query.shape[2] == 1 ? ", one token: heads that share keys together" : ", one pass over the used keys") +
             (cache.dtype == DType::bf16 && simd::attention().bf16 && !few ? ", products in bf16" : "") +
             (blocks && simd::attention().bytes && few ? ", products of bytes" : "") + ", " + isa_name();
    }};
const Kernel kRingStore = {"ring_store", store_in_ring};
const Kernel kCachePositions = {"cache_positions", check_positions, std::numeric_limits<i64>::max()};
const Kernel kLayerPositions = {"layer_positions", check_layer, std::numeric_limits<i64>::max()};

}  // namespace graft
