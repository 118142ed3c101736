#include "session/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"

namespace graft {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

// Bytes of a token of one head.
std::size_t slot_bytes(const TensorDesc& cache) {
  return static_cast<std::size_t>(cache.shape[3]) * byte_size(cache.dtype);
}

}  // namespace

KvCache::KvCache(StateStore& states)
    : states_(states), exists_(states.program().has_kv_cache()), recurrent_(states.program().has_recurrent_states()) {
  if (exists_) check_options(states.kv());
}

void KvCache::check_options(const KvOptions& kv) const {
  GRAFT_CHECK(InvalidArgument, kv.rows >= 1 && kv.rows <= kMaxTokens, "a cache has 1 to ", kMaxTokens, " rows, got ",
              kv.rows);
  GRAFT_CHECK(InvalidArgument, kv.length >= 1 && kv.length <= kMaxTokens, "a cache has 1 to ", kMaxTokens,
              " tokens, got ", kv.length);
  GRAFT_CHECK(InvalidArgument, kv.window_slack >= 1 && kv.window_slack <= kMaxTokens, "a cache takes 1 to ", kMaxTokens,
              " tokens beside a window, got ", kv.window_slack);
  GRAFT_CHECK(InvalidArgument, kv.encoder_length >= 1 && kv.encoder_length <= kMaxTokens, "a cache takes 1 to ",
              kMaxTokens, " tokens of an encoder, got ", kv.encoder_length);
  for (std::uint32_t i = 0; i < states_.count(); ++i) state_desc(states_.info(i), kv);  // throws
}

void KvCache::check_row(std::int64_t row) {
  const std::size_t rows = lengths().size();
  GRAFT_CHECK(InvalidArgument, row >= 0 && row < static_cast<std::int64_t>(rows), "the cache has ", rows,
              " rows, got row ", row);
}

void KvCache::check_rows(std::span<const std::int64_t> rows) const {
  GRAFT_CHECK(InvalidArgument, exists_, "kv_rows: the program has no cache of keys and values");
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    GRAFT_CHECK(InvalidArgument, *row >= 0 && *row < states_.kv().rows, "kv_rows: the cache has ", states_.kv().rows,
                " rows, got row ", *row);
    GRAFT_CHECK(InvalidArgument, std::find(rows.begin(), row, *row) == row, "kv_rows: row ", *row, " stands twice");
  }
}

std::span<std::int64_t> KvCache::numbers(ir::StateKind kind) {
  for (std::uint32_t i = 0; i < states_.count(); ++i)
    if (states_.info(i).kind == kind)
      return {reinterpret_cast<std::int64_t*>(states_.data(i)),
              static_cast<std::size_t>(states_.desc(i).shape.numel())};
  return {};
}

std::span<std::int64_t> KvCache::lengths() {
  GRAFT_CHECK(InvalidArgument, exists_, "the program has no cache of keys and values: no graft::attention nodes");
  return numbers(ir::StateKind::kv_length);
}

std::span<std::int64_t> KvCache::encoder_lengths() { return numbers(ir::StateKind::kv_encoder_length); }

std::span<std::int64_t> KvCache::first_held() { return numbers(ir::StateKind::kv_first); }

std::span<const std::int64_t> KvCache::windows() const {
  for (std::uint32_t i = 0; i < states_.count(); ++i)
    if (states_.info(i).kind == ir::StateKind::kv_first) return states_.info(i).windows;
  return {};
}

std::optional<std::size_t> KvCache::window_of(const ir::State& state) const {
  if (state.windows.empty()) return {};
  return static_cast<std::size_t>(std::ranges::find(windows(), state.windows[0]) - windows().begin());
}

std::int64_t KvCache::ring_slots(std::size_t window) const {
  return graft::ring_slots(windows()[window], states_.kv());
}

std::pair<std::int64_t, std::int64_t> KvCache::held(const ir::State& state, std::size_t row) {
  const std::int64_t length = state.kind == ir::StateKind::kv_encoder ? encoder_lengths()[row] : lengths()[row];
  const std::optional<std::size_t> window = window_of(state);
  return {window ? std::min(first_held()[row * windows().size() + *window], length) : 0, length};
}

std::int64_t* KvCache::layer_length(const ir::State& state, std::size_t row) {
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    const ir::State& lengths = states_.info(i);
    if (lengths.kind != ir::StateKind::kv_layer_length || state.kind != ir::StateKind::kv) continue;
    for (std::size_t column = 0; column < lengths.windows.size(); ++column)
      if (state.fqn.starts_with(str("kv.", lengths.windows[column], ".")))
        return numbers(lengths.kind).data() + row * lengths.windows.size() + column;
  }
  return nullptr;
}

std::int64_t KvCache::held_by_layer(const ir::State& state, std::size_t row) {
  const std::int64_t* own = layer_length(state, row);
  return own ? std::min(*own, lengths()[row]) : lengths()[row];
}

void KvCache::written(const ir::State& state, std::size_t row, std::int64_t first, std::int64_t count) {
  std::int64_t* own = layer_length(state, row);
  if (own && first <= *own) *own = std::max(*own, first + count);
}

std::int64_t KvCache::shortest(std::size_t row) {
  if (recurrent_) return std::max<std::int64_t>(lengths()[row], 1);
  std::int64_t length = 1;
  for (std::size_t w = 0; w < windows().size(); ++w)
    if (const std::int64_t first = first_held()[row * windows().size() + w]; first > 0)
      length = std::max(length, first + windows()[w] - 1);
  return length;
}

void KvCache::check_length(std::size_t row, std::int64_t length) {
  GRAFT_CHECK(InvalidArgument, !recurrent_ || length == 0 || length == lengths()[row], "row ", row, " of ",
              lengths()[row], " tokens cannot have ", length, ": its recurrent states are those of all of them");
  GRAFT_CHECK(InvalidArgument, length == 0 || length >= shortest(row), "row ", row, " of ", lengths()[row],
              " tokens cannot be truncated to ", length, ": layers with a window hold enough for ", shortest(row),
              " tokens and more (KvOptions::window_slack is ", states_.kv().window_slack, ")");
}

void KvCache::truncate(std::int64_t length) {
  GRAFT_CHECK(InvalidArgument, length >= 0, "a cache keeps 0 tokens or more, got ", length);
  const std::span<std::int64_t> lengths = this->lengths();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    if (length < lengths[r]) check_length(r, length);
  for (std::int64_t& row : lengths) row = std::min(row, length);
  if (length == 0) std::ranges::fill(first_held(), 0);
}

void KvCache::truncate_row(std::size_t row, std::int64_t length) {
  const std::int64_t now = lengths()[row];
  GRAFT_CHECK(InvalidArgument, length >= 0 && length <= now, "row ", row, " holds ", now, " tokens, got ", length,
              " to keep");
  if (length < now) check_length(row, length);
  const std::size_t count = windows().size();
  if (length == 0) std::fill_n(first_held().begin() + static_cast<std::ptrdiff_t>(row * count), count, 0);
  for (std::uint32_t i = 0; i < states_.count(); ++i)
    if (std::int64_t* own = layer_length(states_.info(i), row)) *own = std::min(*own, length);
  lengths()[row] = length;
}

void KvCache::set_lengths(std::span<const std::int64_t> lengths) {
  const std::span<std::int64_t> now = this->lengths();
  GRAFT_CHECK(InvalidArgument, lengths.size() == now.size(), "the cache has ", now.size(), " rows, got ",
              lengths.size(), " lengths");
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    GRAFT_CHECK(InvalidArgument, lengths[r] >= 0 && lengths[r] <= states_.kv().length, "the cache has room for ",
                states_.kv().length, " tokens, got a length of ", lengths[r]);
    check_length(r, lengths[r]);
  }
  const std::size_t count = windows().size();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    if (lengths[r] == 0) std::fill_n(first_held().begin() + static_cast<std::ptrdiff_t>(r * count), count, 0);
  std::ranges::copy(lengths, now.begin());
}

void KvCache::select(std::span<const std::int64_t> rows) {
  const std::span<std::int64_t> lengths = this->lengths(), encoder = encoder_lengths(), first = first_held(),
                                layers = numbers(ir::StateKind::kv_layer_length),
                                halves = numbers(ir::StateKind::recurrent_half);
  GRAFT_CHECK(InvalidArgument, rows.size() <= lengths.size(), "the cache has ", lengths.size(), " rows, got ",
              rows.size(), " to fill");
  for (const std::int64_t row : rows) check_row(row);
  // Selects these per-row numbers by row; those of unfilled rows are 0.
  const auto selected = [&](std::span<const std::int64_t> numbers) {
    std::vector<std::int64_t> after(numbers.size(), 0);
    const std::size_t per_row = numbers.size() / lengths.size();
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(numbers.begin() + rows[i] * static_cast<std::ptrdiff_t>(per_row), per_row,
                  after.begin() + static_cast<std::ptrdiff_t>(i * per_row));
    return after;
  };
  const std::vector<std::int64_t> after = selected(lengths), encoder_after = selected(encoder),
                                  first_after = selected(first), layers_after = selected(layers),
                                  halves_after = selected(halves);
  for (std::uint32_t s = 0; s < states_.count(); ++s)
    if (states_.info(s).kind == ir::StateKind::recurrent && states_.existing(s)) {
      select_recurrent(s, rows);
    } else if (holds_tokens(states_.info(s).kind) && states_.existing(s)) {
      select_tokens(s, rows, states_.info(s).kind == ir::StateKind::kv_encoder ? encoder_after : after, first_after);
    }
  std::ranges::copy(after, lengths.begin());
  std::ranges::copy(first_after, first.begin());
  std::ranges::copy(layers_after, layers.begin());
  std::ranges::copy(halves_after, halves.begin());
  std::ranges::copy(encoder_after, encoder.begin());
}

// `tokens` and `first_held` are those after it.
void KvCache::select_tokens(std::uint32_t state, std::span<const std::int64_t> rows,
                            std::span<const std::int64_t> tokens, std::span<const std::int64_t> first_held) {
  const TensorDesc desc = states_.desc(state);
  const std::size_t slot = slot_bytes(desc), head = slot * static_cast<std::size_t>(desc.shape[2]);
  const auto heads = static_cast<std::size_t>(desc.shape[1]);
  const std::optional<std::size_t> window = window_of(states_.info(state));
  // Bytes of a row to copy: a ring buffer that has wrapped around uses all slots.
  const auto used = [&](std::size_t i) {
    const bool round = window && first_held[i * windows().size() + *window] > 0;
    return static_cast<std::size_t>(round ? desc.shape[2] : std::min(tokens[i], desc.shape[2])) * slot;
  };
  // Head by head, reading into a buffer before the first row is written, since rows may be source and target.
  std::vector<std::byte> kept;
  for (std::size_t h = 0; h < heads; ++h) {
    std::byte* base = states_.data(state) + h * head;
    const auto row_at = [&](std::int64_t row) { return base + static_cast<std::size_t>(row) * heads * head; };
    kept.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == static_cast<std::int64_t>(i)) continue;
      const std::byte* from = row_at(rows[i]);
      kept.insert(kept.end(), from, from + used(i));
    }
    const std::byte* from = kept.data();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == static_cast<std::int64_t>(i)) continue;
      const std::size_t bytes = used(i);
      if (bytes > 0) std::memcpy(row_at(static_cast<std::int64_t>(i)), from, bytes);
      from += bytes;
    }
  }
}

KvCache::Range KvCache::recurrent_range(const TensorDesc& desc, std::size_t row) {
  const std::size_t bytes = desc.byte_count() / static_cast<std::size_t>(2 * desc.shape[0]);
  return {(2 * row + static_cast<std::size_t>(numbers(ir::StateKind::recurrent_half)[row])) * bytes, bytes};
}

// Each row gets it in the half that it is in.
void KvCache::select_recurrent(std::uint32_t state, std::span<const std::int64_t> rows) {
  const TensorDesc desc = states_.desc(state);
  std::byte* const data = states_.data(state);
  // Into a buffer before the first row is written, since rows may be source and target.
  std::vector<std::byte> kept;
  for (const std::int64_t row : rows) {
    const auto [offset, bytes] = recurrent_range(desc, static_cast<std::size_t>(row));
    kept.insert(kept.end(), data + offset, data + offset + bytes);
  }
  const std::byte* from = kept.data();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [offset, bytes] = recurrent_range(desc, static_cast<std::size_t>(rows[i]));
    if (bytes > 0) std::memcpy(data + offset % (2 * bytes) + 2 * bytes * i, from, bytes);
    from += bytes;
  }
}

void KvCache::resize(std::int64_t rows, std::int64_t length) {
  KvOptions kv = states_.kv();
  kv.rows = rows;
  kv.length = length;
  check_options(kv);
  if (rows == states_.kv().rows && length == states_.kv().length) return;
  GRAFT_CHECK(InvalidArgument, !states_.shared(),
              "the cache is shared with other sessions (SessionOptions::states): ", "its ", states_.kv().rows,
              " rows of ", states_.kv().length, " tokens cannot be resized");
  const std::span<const std::int64_t> lengths = this->lengths(), encoder = encoder_lengths(), first = first_held();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    GRAFT_CHECK(InvalidArgument, lengths[r] == 0 || (static_cast<std::int64_t>(r) < rows && lengths[r] <= length),
                "row ", r, " holds ", lengths[r], " tokens; they do not fit a cache of ", rows, " rows of ", length);
  for (std::size_t r = static_cast<std::size_t>(rows); r < encoder.size(); ++r)
    GRAFT_CHECK(InvalidArgument, encoder[r] == 0, "row ", r, " holds ", encoder[r],
                " tokens of an encoder; they do not fit a cache of ", rows, " rows");
  const std::size_t count = windows().size();
  const auto kept = static_cast<std::size_t>(std::min(rows, std::ssize(lengths)));
  std::vector<std::int64_t> first_after(static_cast<std::size_t>(rows) * count, 0);
  for (std::size_t f = 0; f < kept * count; ++f) {
    const std::int64_t slots = graft::ring_slots(windows()[f % count], kv), tokens = lengths[f / count];
    first_after[f] = tokens == 0 ? 0 : std::max(first[f], slots > 0 ? tokens - slots : 0);
  }
  StateStore::Resized resized;
  for (std::uint32_t s = 0; s < states_.count(); ++s) {
    const ir::State& info = states_.info(s);
    const std::byte* old = states_.existing(s);
    if (info.kind == ir::StateKind::plain || !old) continue;
    const TensorDesc from = states_.desc(s), to = state_desc(info, kv);
    AlignedMemory memory(to.byte_count());
    if (info.kind == ir::StateKind::kv_length || info.kind == ir::StateKind::kv_encoder_length ||
        info.kind == ir::StateKind::kv_layer_length || info.kind == ir::StateKind::recurrent ||
        info.kind == ir::StateKind::recurrent_half) {
      std::memset(memory.data(), 0, memory.size());
      std::memcpy(memory.data(), old, std::min(from.byte_count(), to.byte_count()));
    } else if (info.kind == ir::StateKind::kv_first) {
      std::memcpy(memory.data(), first_after.data(), memory.size());
    } else {
      const std::span<const std::int64_t> tokens = info.kind == ir::StateKind::kv_encoder ? encoder : lengths;
      const std::size_t slot = slot_bytes(from);
      const std::optional<std::size_t> window = window_of(info);
      for (std::size_t r = 0; r < kept; ++r)
        for (std::int64_t h = 0; h < from.shape[1]; ++h) {
          const auto head = static_cast<std::int64_t>(r) * from.shape[1] + h;
          const std::byte* source = old + static_cast<std::size_t>(head * from.shape[2]) * slot;
          std::byte* target = memory.data() + static_cast<std::size_t>(head * to.shape[2]) * slot;
          for (std::int64_t p = window ? first_after[r * count + *window] : 0, n = 0; p < tokens[r]; p += n) {
            const std::int64_t from_slot = p % from.shape[2], to_slot = p % to.shape[2];
            n = std::min({tokens[r] - p, from.shape[2] - from_slot, to.shape[2] - to_slot});
            std::memcpy(target + static_cast<std::size_t>(to_slot) * slot,
                        source + static_cast<std::size_t>(from_slot) * slot, static_cast<std::size_t>(n) * slot);
          }
        }
    }
    resized.emplace_back(s, std::move(memory));
  }
  states_.resize(kv, std::move(resized));
}

std::vector<KvCache::Range> KvCache::used_ranges(std::uint32_t state) {
  const TensorDesc desc = states_.desc(state);
  const ir::State& info = states_.info(state);
  if (!holds_tokens(info.kind)) return {{0, desc.byte_count()}};
  std::vector<Range> ranges;
  if (info.kind == ir::StateKind::recurrent) {
    for (std::size_t r = 0; r < lengths().size(); ++r)
      if (lengths()[r] > 0) ranges.push_back(recurrent_range(desc, r));
    return ranges;
  }
  const std::size_t slot = slot_bytes(desc);
  for (std::int64_t r = 0; r < desc.shape[0]; ++r) {
    const auto [begin, end] = held(info, static_cast<std::size_t>(r));
    for (std::int64_t h = 0; h < desc.shape[1]; ++h)
      for (std::int64_t p = begin, n = 0; p < end; p += n) {
        const std::int64_t at = p % desc.shape[2];
        n = std::min(end - p, desc.shape[2] - at);
        ranges.push_back({static_cast<std::size_t>((r * desc.shape[1] + h) * desc.shape[2] + at) * slot,
                          static_cast<std::size_t>(n) * slot});
      }
  }
  return ranges;
}

}  // namespace graft
