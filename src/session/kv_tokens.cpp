#include "session/kv_tokens.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernel/attention/attention_vec.h"

namespace graft {
namespace {

ggml_type type_of(simd::RowType type) {
  switch (type) {
    case simd::RowType::f16:
      return GGML_TYPE_F16;
    case simd::RowType::bf16:
      return GGML_TYPE_BF16;
    case simd::RowType::q8_0:
      return GGML_TYPE_Q8_0;
    case simd::RowType::q4_0:
      return GGML_TYPE_Q4_0;
    case simd::RowType::f32:
      break;
  }
  return GGML_TYPE_F32;
}

void to_f32(const std::byte* from, simd::RowType type, std::int64_t n, float* to) {
  if (type == simd::RowType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    ggml_get_type_traits(type_of(type))->to_float(from, to, n);
  }
}

}  // namespace

// Keys or values of one layer: [rows, heads, slots, size] in the cache, and [heads, count, size] of the caller.
struct KvTokens::Side {
  const ir::State* state = nullptr;
  std::byte* cache = nullptr;
  TensorDesc desc;        // of the cache, as stored
  std::int64_t size = 0;  // elements of a token
  float* given = nullptr;
  std::int64_t count = 0;

  simd::RowType type() const { return simd::row_type(desc.dtype, desc.shape[3], size); }

  template <typename Move>
  void each(std::int64_t row, std::int64_t first, const Move& move) const {
    const std::int64_t heads = desc.shape[1], slots = desc.shape[2];
    const std::size_t bytes = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = 0; t < count; ++t)
        move(cache + static_cast<std::size_t>((row * heads + h) * slots + (first + t) % slots) * bytes,
             given + (h * count + t) * size);
  }
};

KvTokens::Side KvTokens::side(std::int64_t layer, std::string_view which, const TensorView& view) {
  const std::string name = str("kv.", layer, ".", which);
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    const ir::State& state = states_.info(i);
    if (state.fqn != name) continue;
    Side side{&state, states_.data(i), states_.desc(i), state.shape[3], static_cast<float*>(view.data), 0};
    const bool fits = view.dtype == DType::f32 && view.shape.rank() == 3 && view.shape[0] == side.desc.shape[1] &&
                      view.shape[2] == side.size;
    GRAFT_CHECK(InvalidArgument, fits, which, "s of layer ", layer, ": expected f32[", side.desc.shape[1], ", tokens, ",
                side.size, "], found ", graft::name(view.dtype), view.shape.str());
    side.count = view.shape[1];
    return side;
  }
  throw InvalidArgument(str("the cache has no layer ", layer));
}

void KvTokens::read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                    const TensorView& values) {
  cache_.check_row(row);
  for (const Side& from : {side(layer, "key", keys), side(layer, "value", values)}) {
    const auto [begin, length] = cache_.held(*from.state, static_cast<std::size_t>(row));
    const std::int64_t end = std::min(length, cache_.held_by_layer(*from.state, static_cast<std::size_t>(row)));
    GRAFT_CHECK(InvalidArgument, first >= 0 && first + from.count <= end, "row ", row, " holds ", end,
                " tokens, got a request for ", from.count, " from token ", first);
    GRAFT_CHECK(InvalidArgument, first >= begin, "layer ", layer, " holds the tokens of row ", row, " from ", begin,
                " on, as many as its window and KvOptions::window_slack say; got a request for those from ", first,
                " on");
    from.each(row, first, [&](const std::byte* stored, float* out) { to_f32(stored, from.type(), from.size, out); });
  }
}

void KvTokens::write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                     const TensorView& values) {
  cache_.check_row(row);
  const std::int64_t most = states_.kv().length, length = cache_.lengths()[static_cast<std::size_t>(row)];
  for (const Side& to : {side(layer, "key", keys), side(layer, "value", values)}) {
    GRAFT_CHECK(InvalidArgument, first >= 0 && first + to.count <= most, "the cache has room for ", most,
                " tokens, got ", to.count, " from token ", first);
    const simd::RowType type = to.type();
    to.each(row, first, [&](std::byte* stored, const float* in) {
      simd::attention().store_row(in, DType::f32, to.size, type, stored);
    });
    cache_.written(*to.state, static_cast<std::size_t>(row), first, to.count);
    const std::optional<std::size_t> window = cache_.window_of(*to.state);
    if (!window || to.count == 0) continue;
    std::int64_t& held = cache_.first_held()[static_cast<std::size_t>(row) * cache_.windows().size() + *window];
    if (first > length) held = std::max(held, first);  // tokens in between are missing
    if (const std::int64_t slots = cache_.ring_slots(*window); slots > 0)
      held = std::max(held, first + to.count - slots);
  }
}

std::size_t KvTokens::token_bytes() {
  cache_.lengths();  // throws where there is no cache
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < states_.count(); ++i)
    if (states_.info(i).kind == ir::StateKind::kv) {
      const TensorDesc desc = states_.desc(i);
      bytes += static_cast<std::size_t>(desc.shape[1] * desc.shape[3]) * byte_size(desc.dtype);
    }
  return bytes;
}

void KvTokens::check(std::int64_t row, std::int64_t first, std::int64_t count, std::size_t bytes) {
  cache_.check_row(row);
  const std::int64_t most = states_.kv().length;
  GRAFT_CHECK(InvalidArgument, first >= 0 && count >= 0 && first <= most && count <= most - first,
              "the cache has room for ", most, " tokens, got ", count, " from token ", first);
  const std::size_t wanted = static_cast<std::size_t>(count) * token_bytes();
  GRAFT_CHECK(InvalidArgument, bytes == wanted, count, " tokens have ", wanted, " bytes, got ", bytes);
}

// In `bytes` a layer's keys or values are [heads, count, size].
template <typename Move>
void KvTokens::each_part(std::int64_t row, std::int64_t first, std::int64_t count, const Move& move) {
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    if (states_.info(i).kind != ir::StateKind::kv) continue;
    const TensorDesc desc = states_.desc(i);
    const std::size_t token = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
    std::byte* const cache = states_.data(i);
    for (std::int64_t head = row * desc.shape[1], end = head + desc.shape[1]; head < end; ++head)
      for (std::int64_t p = first, n = 0; p < first + count; p += n) {
        const std::int64_t slot = p % desc.shape[2];
        n = std::min(first + count - p, desc.shape[2] - slot);
        const std::size_t part = static_cast<std::size_t>(n) * token;
        move(cache + static_cast<std::size_t>(head * desc.shape[2] + slot) * token, at, part);
        at += part;
      }
  }
}

bool KvTokens::copy_out(std::int64_t row, std::int64_t first, std::int64_t count, std::span<std::byte> bytes) {
  check(row, first, count, bytes.size());
  const auto at = static_cast<std::size_t>(row);
  const std::int64_t length = cache_.lengths()[at];
  GRAFT_CHECK(InvalidArgument, first + count <= length, "row ", row, " holds ", length, " tokens, got a request for ",
              count, " from token ", first);
  if (cache_.is_recurrent()) return false;
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    const ir::State& state = states_.info(i);
    if (state.kind != ir::StateKind::kv) continue;
    if (first < cache_.held(state, at).first || first + count > cache_.held_by_layer(state, at)) return false;
  }
  each_part(row, first, count,
            [&](const std::byte* cache, std::size_t to, std::size_t n) { std::memcpy(bytes.data() + to, cache, n); });
  return true;
}

void KvTokens::copy_in(std::int64_t row, std::int64_t first, std::int64_t count, std::span<const std::byte> bytes) {
  check(row, first, count, bytes.size());
  GRAFT_CHECK(InvalidArgument, !cache_.is_recurrent(), "row ", row,
              " has recurrent states, which come of its tokens alone: nothing is copied into it");
  const auto at = static_cast<std::size_t>(row);
  cache_.truncate_row(at, first);
  // Of more tokens than a ring buffer has slots the last ones win.
  each_part(row, first, count,
            [&](std::byte* cache, std::size_t from, std::size_t n) { std::memcpy(cache, bytes.data() + from, n); });
  for (std::uint32_t i = 0; i < states_.count(); ++i)
    if (states_.info(i).kind == ir::StateKind::kv) cache_.written(states_.info(i), at, first, count);
  for (std::size_t w = 0; w < cache_.windows().size(); ++w)
    if (const std::int64_t slots = cache_.ring_slots(w); slots > 0) {
      std::int64_t& held = cache_.first_held()[at * cache_.windows().size() + w];
      held = std::max(held, first + count - slots);
    }
  cache_.lengths()[at] = first + count;
}

}  // namespace graft
