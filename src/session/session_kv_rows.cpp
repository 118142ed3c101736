#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernel/attention/attention_vec.h"
#include "session/session_impl.h"

// Tokens of the cache of keys and values, in and out: for callers who show a cache or take one over.
namespace graft {
namespace {

ggml_type type_of(DType dtype) {
  switch (simd::row_type(dtype)) {
    case simd::RowType::f16:
      return GGML_TYPE_F16;
    case simd::RowType::bf16:
      return GGML_TYPE_BF16;
    case simd::RowType::q8_0:
      return GGML_TYPE_Q8_0;
    case simd::RowType::f32:
      break;
  }
  return GGML_TYPE_F32;
}

void to_f32(const std::byte* from, DType dtype, std::int64_t n, float* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    ggml_get_type_traits(type_of(dtype))->to_float(from, to, n);
  }
}

// One side of one layer: [rows, heads, slots, size] of a session, and what the caller has of it [heads, count, size].
struct KvSide {
  const ir::State* state = nullptr;
  std::byte* cache = nullptr;
  TensorDesc desc;         // of the cache, as stored
  std::int64_t size = 0;   // elements of a token
  float* given = nullptr;  // null: not asked for
  std::int64_t count = 0;

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

template <typename SessionImpl>
KvSide side_of(SessionImpl& session, std::int64_t layer, std::string_view which, const TensorView& view) {
  const std::string name = str("kv.", layer, ".", which);
  for (std::uint32_t i = 0; i < session.loaded().states.size(); ++i) {
    const ir::State& state = session.loaded().states[i].state;
    if (state.fqn != name) continue;
    KvSide side{&state, session.state(i), session.desc_of(i), state.shape[3], static_cast<float*>(view.data), 0};
    const bool fits = view.dtype == DType::f32 && view.shape.rank() == 3 && view.shape[0] == side.desc.shape[1] &&
                      view.shape[2] == side.size;
    GRAFT_CHECK(InvalidArgument, fits, which, "s of layer ", layer, ": expected f32[", side.desc.shape[1], ", tokens, ",
                side.size, "], found ", graft::name(view.dtype), view.shape.str());
    side.count = view.shape[1];
    return side;
  }
  throw InvalidArgument(str("the cache has no layer ", layer));
}

}  // namespace

void Session::kv_read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                      const TensorView& values) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::size_t rows = impl_->lengths().size();
  GRAFT_CHECK(InvalidArgument, row >= 0 && row < static_cast<std::int64_t>(rows), "the cache has ", rows,
              " rows, got row ", row);
  for (const KvSide& side : {side_of(*impl_, layer, "key", keys), side_of(*impl_, layer, "value", values)}) {
    const auto [begin, end] = impl_->held(*side.state, static_cast<std::size_t>(row));
    GRAFT_CHECK(InvalidArgument, first >= 0 && first + side.count <= end, "row ", row, " holds ", end,
                " tokens, got a request for ", side.count, " from token ", first);
    GRAFT_CHECK(InvalidArgument, first >= begin, "layer ", layer, " holds the tokens of row ", row, " from ", begin,
                " on, as many as its window and KvOptions::window_slack say; got a request for those from ", first,
                " on");
    side.each(row, first,
              [&](const std::byte* stored, float* out) { to_f32(stored, side.desc.dtype, side.size, out); });
  }
}

void Session::kv_write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                       const TensorView& values) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const KvOptions& kv = impl_->options.kv;
  const std::span<const std::int64_t> lengths = impl_->lengths();
  GRAFT_CHECK(InvalidArgument, row >= 0 && row < kv.rows, "the cache has ", kv.rows, " rows, got row ", row);
  for (const KvSide& side : {side_of(*impl_, layer, "key", keys), side_of(*impl_, layer, "value", values)}) {
    GRAFT_CHECK(InvalidArgument, first >= 0 && first + side.count <= kv.length, "the cache has room for ", kv.length,
                " tokens, got ", side.count, " from token ", first);
    const simd::RowType type = simd::row_type(side.desc.dtype);
    side.each(row, first, [&](std::byte* stored, const float* in) {
      simd::attention().store_row(in, DType::f32, side.size, type, stored);
    });
    const std::optional<std::size_t> kind = impl_->kind_of(*side.state);
    if (!kind || side.count == 0) continue;
    std::int64_t& held = impl_->firsts()[static_cast<std::size_t>(row) * impl_->reaches().size() + *kind];
    if (first > lengths[static_cast<std::size_t>(row)]) held = std::max(held, first);  // what lies between is not there
    if (const std::int64_t slots = impl_->slots_of(*kind); slots > 0) held = std::max(held, first + side.count - slots);
  }
}

void Session::kv_set_lengths(std::span<const std::int64_t> lengths) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::span<std::int64_t> held = impl_->lengths();
  GRAFT_CHECK(InvalidArgument, lengths.size() == held.size(), "the cache has ", held.size(), " rows, got ",
              lengths.size(), " lengths");
  const std::size_t kinds = impl_->reaches().size();
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    GRAFT_CHECK(InvalidArgument, lengths[r] >= 0 && lengths[r] <= impl_->options.kv.length, "the cache has room for ",
                impl_->options.kv.length, " tokens, got a length of ", lengths[r]);
    impl_->check_reach(r, lengths[r]);
  }
  for (std::size_t r = 0; r < lengths.size(); ++r)
    if (lengths[r] == 0) std::fill_n(impl_->firsts().begin() + static_cast<std::ptrdiff_t>(r * kinds), kinds, 0);
  std::ranges::copy(lengths, held.begin());
}

}  // namespace graft
