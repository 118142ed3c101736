#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "session/session_impl.h"

// The cache of keys and values: how many tokens each row holds, and what callers do to them between runs.
namespace graft {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

}  // namespace

void Session::Impl::check_kv(const KvOptions& kv) const {
  GRAFT_CHECK(InvalidArgument, kv.rows >= 1 && kv.rows <= kMaxTokens, "a cache has 1 to ", kMaxTokens, " rows, got ",
              kv.rows);
  GRAFT_CHECK(InvalidArgument, kv.length >= 1 && kv.length <= kMaxTokens, "a cache has 1 to ", kMaxTokens,
              " tokens, got ", kv.length);
  GRAFT_CHECK(InvalidArgument, kv.window_slack >= 1 && kv.window_slack <= kMaxTokens, "a cache takes 1 to ", kMaxTokens,
              " tokens beside a window, got ", kv.window_slack);
  GRAFT_CHECK(InvalidArgument, kv.encoder_length >= 1 && kv.encoder_length <= kMaxTokens, "a cache takes 1 to ",
              kMaxTokens, " tokens of an encoder, got ", kv.encoder_length);
  for (const StateInfo& info : loaded().states) state_desc(info.state, kv);  // throws
}

void Session::Impl::check_kv_rows(std::span<const std::int64_t> rows) const {
  GRAFT_CHECK(InvalidArgument, has_kv, "kv_rows: the program has no cache of keys and values");
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    GRAFT_CHECK(InvalidArgument, *row >= 0 && *row < options.kv.rows, "kv_rows: the cache has ", options.kv.rows,
                " rows, got row ", *row);
    GRAFT_CHECK(InvalidArgument, std::find(rows.begin(), row, *row) == row, "kv_rows: row ", *row, " stands twice");
  }
}

std::span<std::int64_t> Session::Impl::numbers_of(ir::StateKind kind) {
  for (std::uint32_t i = 0; i < loaded().states.size(); ++i)
    if (loaded().states[i].state.kind == kind)
      return {reinterpret_cast<std::int64_t*>(state(i)), static_cast<std::size_t>(desc_of(i).shape.numel())};
  return {};
}

std::span<std::int64_t> Session::Impl::lengths() {
  GRAFT_CHECK(InvalidArgument, has_kv, "the program has no cache of keys and values: no graft::attention nodes");
  return numbers_of(ir::StateKind::kv_length);
}

std::span<std::int64_t> Session::Impl::source_lengths() { return numbers_of(ir::StateKind::kv_source_length); }

std::span<std::int64_t> Session::Impl::firsts() { return numbers_of(ir::StateKind::kv_first); }

std::span<const std::int64_t> Session::Impl::reaches() const {
  for (const StateInfo& info : loaded().states)
    if (info.state.kind == ir::StateKind::kv_first) return info.state.reaches;
  return {};
}

std::optional<std::size_t> Session::Impl::kind_of(const ir::State& state) const {
  if (state.reaches.empty()) return {};
  return static_cast<std::size_t>(std::ranges::find(reaches(), state.reaches[0]) - reaches().begin());
}

std::int64_t Session::Impl::slots_of(std::size_t kind) const { return ring_slots(reaches()[kind], options.kv); }

std::pair<std::int64_t, std::int64_t> Session::Impl::held(const ir::State& state, std::size_t row) {
  const std::int64_t length = state.kind == ir::StateKind::kv_source ? source_lengths()[row] : lengths()[row];
  const std::optional<std::size_t> kind = kind_of(state);
  return {kind ? std::min(firsts()[row * reaches().size() + *kind], length) : 0, length};
}

std::int64_t Session::Impl::shortest(std::size_t row) {
  std::int64_t length = 1;
  for (std::size_t k = 0; k < reaches().size(); ++k)
    if (const std::int64_t first = firsts()[row * reaches().size() + k]; first > 0)
      length = std::max(length, first + reaches()[k] - 1);
  return length;
}

std::span<const std::int64_t> Session::kv_lengths() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  return impl_->lengths();
}

void Session::Impl::check_reach(std::size_t row, std::int64_t length) {
  GRAFT_CHECK(InvalidArgument, length == 0 || length >= shortest(row), "row ", row, " of ", lengths()[row],
              " tokens cannot be truncated to ", length, ": layers with a window hold enough for ", shortest(row),
              " tokens and more (KvOptions::window_slack is ", options.kv.window_slack, ")");
}

void Session::kv_truncate(std::int64_t length) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  GRAFT_CHECK(InvalidArgument, length >= 0, "a cache keeps 0 tokens or more, got ", length);
  const std::span<std::int64_t> lengths = impl_->lengths();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    if (length < lengths[r]) impl_->check_reach(r, length);
  for (std::int64_t& row : lengths) row = std::min(row, length);
  if (length == 0) std::ranges::fill(impl_->firsts(), 0);
}

std::int64_t Session::kv_shortest(std::int64_t row) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::span<const std::int64_t> lengths = impl_->lengths();
  GRAFT_CHECK(InvalidArgument, row >= 0 && row < std::ssize(lengths), "the cache has ", lengths.size(),
              " rows, got row ", row);
  return impl_->shortest(static_cast<std::size_t>(row));
}

void Session::kv_select(std::span<const std::int64_t> rows) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::span<std::int64_t> lengths = impl_->lengths();
  GRAFT_CHECK(InvalidArgument, rows.size() <= lengths.size(), "the cache has ", lengths.size(), " rows, got ",
              rows.size(), " to fill");
  for (const std::int64_t row : rows)
    GRAFT_CHECK(InvalidArgument, row >= 0 && row < static_cast<std::int64_t>(lengths.size()), "the cache has ",
                lengths.size(), " rows, got row ", row);
  std::vector<std::int64_t> after(lengths.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) after[i] = lengths[static_cast<std::size_t>(rows[i])];
  const std::span<std::int64_t> source_lengths = impl_->source_lengths();
  std::vector<std::int64_t> source_after(source_lengths.size(), 0);
  for (std::size_t i = 0; i < rows.size() && !source_after.empty(); ++i)
    source_after[i] = source_lengths[static_cast<std::size_t>(rows[i])];
  const std::span<std::int64_t> firsts = impl_->firsts();
  const std::size_t kinds = firsts.size() / lengths.size();
  std::vector<std::int64_t> first_after(firsts.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy_n(firsts.begin() + rows[i] * static_cast<std::ptrdiff_t>(kinds), kinds,
                first_after.begin() + static_cast<std::ptrdiff_t>(i * kinds));
  std::vector<std::byte> kept;
  for (std::uint32_t s = 0; s < impl_->states.size(); ++s) {
    if (!Impl::is_tokens(impl_->loaded().states[s].state.kind) || !impl_->states[s].data()) continue;
    const bool of_source = impl_->loaded().states[s].state.kind == ir::StateKind::kv_source;
    const TensorDesc desc = impl_->desc_of(s);
    const std::size_t slot = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
    const std::size_t head = slot * static_cast<std::size_t>(desc.shape[2]);
    const auto heads = static_cast<std::size_t>(desc.shape[1]);
    // Slots of a row to copy: a ring that has gone round holds something in all.
    const std::optional<std::size_t> kind = impl_->kind_of(impl_->loaded().states[s].state);
    const auto used = [&](std::size_t i) {
      const bool round = kind && first_after[i * kinds + *kind] > 0;
      return static_cast<std::size_t>(round ? desc.shape[2]
                                            : std::min(of_source ? source_after[i] : after[i], desc.shape[2])) *
             slot;
    };
    // Head by head: what is read is set aside before the first row is written.
    for (std::size_t h = 0; h < heads; ++h) {
      std::byte* base = impl_->states[s].data() + h * head;
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
  std::ranges::copy(after, lengths.begin());
  std::ranges::copy(first_after, firsts.begin());
  std::ranges::copy(source_after, source_lengths.begin());
}

void Session::kv_resize(std::int64_t rows, std::int64_t length) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  KvOptions kv = impl_->options.kv;
  kv.rows = rows;
  kv.length = length;
  impl_->check_kv(kv);
  if (rows == impl_->options.kv.rows && length == impl_->options.kv.length) return;
  const std::span<const std::int64_t> lengths = impl_->lengths();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    GRAFT_CHECK(InvalidArgument, lengths[r] == 0 || (static_cast<std::int64_t>(r) < rows && lengths[r] <= length),
                "row ", r, " holds ", lengths[r], " tokens; they do not fit a cache of ", rows, " rows of ", length);
  const std::vector<std::int64_t> before(lengths.begin(), lengths.end());
  for (std::size_t r = static_cast<std::size_t>(rows); r < impl_->source_lengths().size(); ++r)
    GRAFT_CHECK(InvalidArgument, impl_->source_lengths()[r] == 0, "row ", r, " holds ", impl_->source_lengths()[r],
                " tokens of an encoder; they do not fit a cache of ", rows, " rows");
  const std::span<const std::int64_t> sources = impl_->source_lengths();
  const std::vector<std::int64_t> source_before(sources.begin(), sources.end());
  // By state: what it holds, while the sizes are the old ones.
  const std::size_t kinds = impl_->reaches().size();
  const std::span<const std::int64_t> firsts = impl_->firsts();
  std::vector<std::int64_t> first_after(static_cast<std::size_t>(rows) * kinds, 0);
  const auto kept = static_cast<std::size_t>(std::min(rows, std::ssize(lengths)));
  for (std::size_t f = 0; f < kept * kinds; ++f) {
    const std::int64_t slots = ring_slots(impl_->reaches()[f % kinds], kv), tokens = before[f / kinds];
    first_after[f] = tokens == 0 ? 0 : std::max(firsts[f], slots > 0 ? tokens - slots : 0);
  }
  for (std::uint32_t s = 0; s < impl_->states.size(); ++s) {
    const ir::State& info = impl_->loaded().states[s].state;
    if (info.kind == ir::StateKind::plain || !impl_->states[s].data()) continue;
    const TensorDesc from = impl_->desc_of(s), to = state_desc(info, kv);
    AlignedMemory memory(to.byte_count());
    const std::vector<std::int64_t>& held = info.kind == ir::StateKind::kv_source ? source_before : before;
    if (info.kind == ir::StateKind::kv_length || info.kind == ir::StateKind::kv_source_length) {
      std::memset(memory.data(), 0, memory.size());
      std::memcpy(memory.data(), impl_->states[s].data(), std::min(from.byte_count(), to.byte_count()));
    } else if (info.kind == ir::StateKind::kv_first) {
      std::memcpy(memory.data(), first_after.data(), memory.size());
    } else {
      const std::size_t slot = static_cast<std::size_t>(from.shape[3]) * byte_size(from.dtype);
      const std::optional<std::size_t> kind = impl_->kind_of(info);
      for (std::size_t r = 0; r < kept; ++r)
        for (std::int64_t h = 0; h < from.shape[1]; ++h) {
          const auto head = static_cast<std::int64_t>(r) * from.shape[1] + h;
          const std::byte* source = impl_->states[s].data() + static_cast<std::size_t>(head * from.shape[2]) * slot;
          std::byte* target = memory.data() + static_cast<std::size_t>(head * to.shape[2]) * slot;
          for (std::int64_t p = kind ? first_after[r * kinds + *kind] : 0, n = 0; p < held[r]; p += n) {
            const std::int64_t at = p % from.shape[2], place = p % to.shape[2];
            n = std::min({held[r] - p, from.shape[2] - at, to.shape[2] - place});
            std::memcpy(target + static_cast<std::size_t>(place) * slot, source + static_cast<std::size_t>(at) * slot,
                        static_cast<std::size_t>(n) * slot);
          }
        }
    }
    impl_->counters.state_bytes += memory.size();
    impl_->counters.state_bytes -= impl_->states[s].size();
    impl_->states[s] = std::move(memory);
  }
  impl_->options.kv = kv;
}

}  // namespace graft
