// Attention over caches of keys and values that a device keeps.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ggml.h"
#include "kernel/attention/cache_slots.h"
#include "lowering/lowering.h"
#include "op/ggml_operands.h"
#include "op/ggml_ops.h"

namespace graft::device {
namespace {

using i64 = std::int64_t;

// Attention reads as many slots as a multiple of this, as far as there are.
constexpr i64 kSlotBlock = 64;
constexpr std::array<int, 4> kSwapMiddle = {0, 2, 1, 3};

// The result of a kernel of the positions: that of an earlier launch, where there is one, since all layers use the
// same.
template <typename Attrs>
Tensor of_positions(Lowering& lowering, const Kernel& kernel, const Tensor& position, DType dtype, const Shape& shape,
                    const Attrs& attrs) {
  for (const Launch& earlier : lowering.sequence().launches)
    if (earlier.kernel == &kernel && same_tensor(earlier.inputs[0], position) && earlier.outputs[0].shape() == shape &&
        std::memcmp(earlier.attrs.data(), &attrs, sizeof(attrs)) == 0)
      return earlier.outputs[0];
  const Tensor out = lowering.allocate(dtype, shape);
  lowering.launch(kernel, {position}, {out}, attrs);
  return out;
}

// A cache whose rows have `size` elements as ggml sees it: bytes are q8_0 blocks.
Tensor in_blocks(const Tensor& cache, i64 size) {
  if (cache.dtype() != DType::u8) return cache;
  Tensor out = cache;
  out.desc = TensorDesc(DType::f32, Shape{cache.size(0), cache.size(1), cache.size(2), size});
  out.stored = Stored::as_blocks(GGML_TYPE_Q8_0);
  return out;
}

i64 row_bytes(const Tensor& cache) { return cache.size(3) * static_cast<i64>(byte_size(cache.dtype())); }

// Rows first_row .. first_row + rows of a cache, and the first slots of each head.
Tensor seen_of(const Tensor& cache, i64 size, i64 first_row, i64 rows, i64 slots) {
  Tensor out = in_blocks(cache, size);
  out.offset += first_row * cache.size(1) * cache.size(2) * row_bytes(cache);
  out.desc.shape[0] = rows;
  out.desc.shape[2] = slots;
  return out;
}

// One row for each of the first dimension.
Tensor as_rows(const Tensor& tensor) {
  return *try_reshape(tensor, Shape{tensor.size(0), tensor.numel() / tensor.size(0)});
}

// Keys or values of the tokens, and where they go.
struct Stores {
  Tensor rows;    // f32 [N, D]
  Tensor slots;   // i64 [N]
  Tensor target;  // all slots of the cache, and one more for padding: [slots, D]
};

Stores stores_of(Lowering& lowering, const Tensor& tokens, const Tensor& position, const Tensor& cache, i64 ring) {
  const i64 size = tokens.size(3), count = tokens.numel() / size;
  const Tensor swapped = permuted(tokens, kSwapMiddle);
  const bool tokens_first = swapped.desc.contiguous();
  CacheSlotsAttrs attrs;
  attrs.rows = cache.size(0);
  attrs.heads = cache.size(1);
  attrs.slots = cache.size(2);
  attrs.ring = ring;
  attrs.tokens_first = tokens_first ? 1 : 0;
  Stores out;
  const Tensor dense = tokens_first ? swapped : lowering.contiguous(tokens);
  out.rows = lowering.cast(*try_reshape(dense, Shape{count, size}), DType::f32);
  out.slots = of_positions(lowering, kCacheSlots, position, DType::i64, Shape{count}, attrs);
  out.target = in_blocks(cache, size);
  out.target.desc = TensorDesc(out.target.dtype(), Shape{attrs.rows * attrs.heads * attrs.slots + 1, size});
  return out;
}

}  // namespace

bool cached_attention(Lowering& lowering, const CachedAttention& what, const Tensor& out) {
  const CachedAttentionAttrs& attrs = what.attrs;
  if (!lowering.has_device() || lowering.plain()) return false;
  if (!lowering.device_holds(what.key_cache)) return lowering.refused("the device has no room for the layer");
  if (attrs.staged != 0) return lowering.refused("more tokens come than a ring buffer has slots for");
  const KvExtent& extent = lowering.kv_extent();
  const i64 batch = what.q.size(0), heads = what.q.size(1), tokens = what.q.size(2), size = what.q.size(3);
  const i64 value_size = what.v.size(3), cache_rows = what.key_cache.size(0);
  const i64 slots = std::min(what.key_cache.size(2), (extent.held + tokens + kSlotBlock - 1) / kSlotBlock * kSlotBlock);
  const auto begins_aligned = [&](const Tensor& cache) {
    return extent.first_row * cache.size(1) * cache.size(2) * row_bytes(cache) % kOffsetAlignment == 0;
  };
  // Queries go to the rows of the caches that they see, where these are not known.
  const bool any_row = extent.first_row < 0 || !begins_aligned(what.key_cache) || !begins_aligned(what.value_cache);
  GRAFT_CHECK(InvalidArgument, any_row || extent.first_row + batch <= cache_rows, "kv_rows: the cache has ", cache_rows,
              " rows, a batch of ", batch, " from row ", extent.first_row, " on does not fit");
  const i64 first_row = any_row ? 0 : extent.first_row, rows = any_row ? cache_rows : batch;

  const Stores key = stores_of(lowering, what.k, what.position, what.key_cache, attrs.ring);
  const Stores value = stores_of(lowering, what.v, what.position, what.value_cache, attrs.ring);
  const CacheMaskAttrs sees{attrs.window, attrs.chunk, attrs.ring, any_row ? 1 : 0};
  const Tensor mask = of_positions(lowering, kCacheMask, what.position, DType::f16, Shape{rows, tokens, slots}, sees);
  const Tensor given = lowering.cast(what.q, DType::f32);
  const Tensor q = is_aligned(given) ? given : moved(lowering, given);
  const Tensor target = f32_target(lowering, out);
  Tensor query = lowering.with_contiguous_rows(q), result = target, cached_row;
  if (any_row) {
    query = permuted(lowering.allocate(DType::f32, Shape{rows, tokens, heads, size}), kSwapMiddle);
    result = lowering.allocate(DType::f32, Shape{rows, tokens, heads, value_size});
    cached_row = of_positions(lowering, kCacheRows, what.position, DType::i32, Shape{batch}, std::byte{});
  }
  std::vector<Tensor> operands{query, seen_of(what.key_cache, size, first_row, rows, slots),
                               seen_of(what.value_cache, value_size, first_row, rows, slots),
                               *try_reshape(mask, Shape{rows, 1, tokens, slots})};
  if (what.sinks) operands.push_back(*what.sinks);
  const Params params{bits(attrs.scale), 0, bits(attrs.softcap), GGML_PREC_F32};
  // Asked before anything is written to a cache.
  if (!lowering.device_has(GGML_OP_SET_ROWS, {key.rows, key.slots}, key.target) ||
      !lowering.device_has(GGML_OP_SET_ROWS, {value.rows, value.slots}, value.target) ||
      !lowering.device_has(GGML_OP_FLASH_ATTN_EXT, operands, result, params))
    return lowering.refused("ggml's attention does not take these types and sizes");
  if (any_row) {
    const Tensor from = lowering.contiguous(permuted(q, kSwapMiddle)), to = permuted(query, kSwapMiddle);
    if (!lowering.launch_device(GGML_OP_SET_ROWS, {as_rows(from), cached_row}, as_rows(to)) ||
        !lowering.device_has(GGML_OP_GET_ROWS, {as_rows(result), cached_row}, as_rows(target)))
      return lowering.refused("ggml does not move rows of queries there");
  }
  for (const Stores& stores : {key, value}) {
    lowering.keep_on_device(stores.target);
    lowering.launch_device(GGML_OP_SET_ROWS, {stores.rows, stores.slots}, stores.target);
  }
  lowering.launch_device(GGML_OP_FLASH_ATTN_EXT, operands, result, params);
  if (any_row) lowering.launch_device(GGML_OP_GET_ROWS, {as_rows(result), cached_row}, as_rows(target));
  finish(lowering, target, out);
  return true;
}

}  // namespace graft::device
