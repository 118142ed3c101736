// Attention over caches of keys and values that a device keeps.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "kernel/attention/cache_slots.h"
#include "kernel/elementwise/elementwise.h"
#include "lowering/lowering.h"
#include "op/ggml_operands.h"
#include "op/ggml_ops.h"

namespace graft::device {
namespace {

using i64 = std::int64_t;

// Attention reads as many slots as a multiple of this, as far as there are: what ggml's faster kernels need.
constexpr i64 kSlotBlock = 256;
// A mask with at least so many elements is made on the device.
constexpr i64 kLargeMask = 1 << 16;

// A cache whose rows have `size` elements as ggml sees it: bytes are of blocks.
Tensor in_blocks(const Tensor& cache, i64 size) {
  if (cache.dtype() != DType::u8) return cache;
  Tensor out = cache;
  out.desc = TensorDesc(DType::f32, Shape{cache.size(0), cache.size(1), cache.size(2), size});
  const bool q8 = simd::row_type(cache.dtype(), cache.size(3), size) == simd::RowType::q8_0;
  out.stored = Stored::as_blocks(q8 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0);
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

// What kCacheMask makes of the positions of tokens that see all slots up to their own: log(1 - [slot > position]).
constexpr std::size_t kMaskLaunches = 9;
bool launch_mask(Lowering& lowering, const Tensor& position, const Tensor& mask) {
  const Shape& shape = mask.shape();
  const auto f32 = [&](const Shape& sizes) { return lowering.allocate(DType::f32, sizes); };
  const Tensor at = *try_reshape(lowering.cast(position, DType::f32), Shape{shape[0], shape[1], 1});
  const Tensor slot = f32(Shape{1, 1, shape[2]}), seen_to = f32(at.shape());
  std::array<Tensor, 5> t;
  for (Tensor& step : t) step = f32(shape);
  // Padding sees the first slot.
  return lowering.launch_device(GGML_OP_CLAMP, {at}, seen_to, Params{bits(0), bits(INFINITY)}) &&
         lowering.launch_device(GGML_OP_ARANGE, {}, *try_reshape(slot, Shape{shape[2]}),
                                Params{bits(0), bits(static_cast<double>(shape[2])), bits(1)}) &&
         lowering.launch_device(GGML_OP_REPEAT, {slot}, t[0]) &&
         lowering.launch_device(GGML_OP_SUB, {t[0], seen_to}, t[1], {}, 1) &&
         lowering.launch_device(GGML_OP_UNARY, {t[1]}, t[2], Params{GGML_UNARY_OP_STEP}, 1) &&
         lowering.launch_device(GGML_OP_SCALE, {t[2]}, t[3], Params{bits(-1), bits(1)}, 1) &&
         lowering.launch_device(GGML_OP_LOG, {t[3]}, t[4], {}, 1) && lowering.launch_device(GGML_OP_CPY, {t[4]}, mask);
}

// Once for all layers that see the same.
Tensor mask_of(Lowering& lowering, const Tensor& position, const Tensor* blocks, const Shape& shape,
               const CacheMaskAttrs& sees) {
  if (shape.numel() < kLargeMask || sees.window > 0 || sees.chunk > 0 || sees.ring > 0 || sees.by_cache_row != 0 ||
      blocks)
    return of_positions(lowering, kCacheMask, position, DType::f16, shape, sees, blocks);
  const std::vector<Launch>& launches = lowering.sequence().launches;
  for (std::size_t i = kMaskLaunches; i <= launches.size(); ++i) {
    const Launch &first = launches[i - kMaskLaunches], &last = launches[i - 1];
    if (first.kernel == &kCopy && same_tensor(first.inputs[0], position) && !last.kernel &&
        last.ggml_op == GGML_OP_CPY && last.outputs[0].dtype() == DType::f16 && last.outputs[0].shape() == shape &&
        launches[i - 2].ggml_op == GGML_OP_LOG)
      return last.outputs[0];
  }
  const Tensor mask = lowering.allocate(DType::f16, shape);
  if (launch_mask(lowering, position, mask)) return mask;
  return of_positions(lowering, kCacheMask, position, DType::f16, shape, sees);
}

// The steps of attention as products, for devices whose FLASH_ATTN_EXT would round f32 caches.
struct Products {
  Tensor scores, weights;    // f32 [rows, H, T, slots]
  Tensor columns, averages;  // f32 [rows, H of values, Dv, slots], [rows, H, T, Dv]
  Params scale;
};

Products products_of(Lowering& lowering, const Tensor& query, const Tensor& values, double scale, double softcap) {
  const i64 rows = query.size(0), heads = query.size(1), tokens = query.size(2), slots = values.size(2);
  const auto f32 = [&](const Shape& shape) { return lowering.allocate(DType::f32, shape); };
  const Shape square{rows, heads, tokens, slots};
  return {f32(square), f32(square), f32(Shape{rows, values.size(1), values.size(3), slots}),
          f32(Shape{rows, heads, tokens, values.size(3)}), Params{bits(softcap > 0 ? 1 : scale)}};
}

// As FLASH_ATTN_EXT, which has the operands q, k, v, mask and sinks, if any.
void launch_products(Lowering& lowering, const std::vector<Tensor>& operands, const CachedAttentionAttrs& attrs,
                     const Products& steps, const Tensor& result) {
  lowering.launch_device(GGML_OP_MUL_MAT, {operands[1], lowering.contiguous(operands[0])}, steps.scores,
                         Params{GGML_PREC_F32});
  Tensor scores = steps.scores;
  if (attrs.softcap > 0) {
    std::array<Tensor, 3> t;
    for (Tensor& step : t) step = lowering.allocate(DType::f32, scores.shape());
    lowering.launch_device(GGML_OP_SCALE, {scores}, t[0], Params{bits(attrs.scale / attrs.softcap), 0}, 1);
    lowering.launch_device(GGML_OP_UNARY, {t[0]}, t[1], Params{GGML_UNARY_OP_TANH}, 1);
    lowering.launch_device(GGML_OP_SCALE, {t[1]}, t[2], Params{bits(attrs.softcap), 0}, 1);
    scores = t[2];
  }
  std::vector<Tensor> weighed{scores, operands[3]};
  if (operands.size() > 4) weighed.push_back(operands[4]);
  lowering.launch_device(GGML_OP_SOFT_MAX, weighed, steps.weights, steps.scale);
  lowering.copy(permuted(operands[2], std::array{0, 1, 3, 2}), steps.columns);
  lowering.launch_device(GGML_OP_MUL_MAT, {steps.columns, steps.weights}, steps.averages, Params{GGML_PREC_F32});
  lowering.copy(permuted(steps.averages, kSwapMiddle), result);
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
  const CacheMaskAttrs sees{attrs.window,    attrs.chunk,         attrs.ring,
                            any_row ? 1 : 0, what.blocks ? 1 : 0, attrs.whole_blocks};
  const Tensor mask = mask_of(lowering, what.position, what.blocks, Shape{rows, tokens, slots}, sees);
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
  const auto is = [&](const auto& test) { return test(what.key_cache.dtype()) && test(what.value_cache.dtype()); };
  const bool exact = lowering.device_rounds_attention() && lowering.matmul_precision() == MatmulPrecision::highest &&
                     is([](DType dtype) { return dtype == DType::f32; });
  const bool fused = !exact && lowering.device_has(GGML_OP_FLASH_ATTN_EXT, operands, result, params);
  std::optional<Products> products;
  if (!fused && is([](DType dtype) { return dtype != DType::u8; }))
    products = products_of(lowering, query, operands[2], attrs.scale, attrs.softcap);
  const auto attends = [&] {
    if (!products) return fused;
    std::vector<Tensor> weighed{products->scores, operands[3]};
    if (what.sinks) weighed.push_back(*what.sinks);
    return lowering.device_has(GGML_OP_MUL_MAT, {operands[1], query}, products->scores, Params{GGML_PREC_F32}) &&
           lowering.device_has(GGML_OP_SOFT_MAX, weighed, products->weights, products->scale);
  };
  // Asked before anything is written to a cache.
  if (!lowering.device_has(GGML_OP_SET_ROWS, {key.rows, key.slots}, key.target) ||
      !lowering.device_has(GGML_OP_SET_ROWS, {value.rows, value.slots}, value.target) || !attends())
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
  if (products)
    launch_products(lowering, operands, attrs, *products, result);
  else
    lowering.launch_device(GGML_OP_FLASH_ATTN_EXT, operands, result, params);
  if (any_row) lowering.launch_device(GGML_OP_GET_ROWS, {as_rows(result), cached_row}, as_rows(target));
  finish(lowering, target, out);
  return true;
}

}  // namespace graft::device
