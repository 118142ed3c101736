#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "run/session_impl.h"

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
  for (const StateInfo& info : loaded().states) state_desc(info.state, kv);  // throws
}

std::span<std::int64_t> Session::Impl::lengths() {
  GRAFT_CHECK(InvalidArgument, has_kv, "the program has no cache of keys and values: no graft::attention nodes");
  for (std::uint32_t i = 0; i < loaded().states.size(); ++i)
    if (loaded().states[i].state.kind == ir::StateKind::kv_length)
      return {reinterpret_cast<std::int64_t*>(state(i)), static_cast<std::size_t>(options.kv.rows)};
  GRAFT_ASSERT(false);
  return {};
}

std::span<const std::int64_t> Session::kv_lengths() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  return impl_->lengths();
}

void Session::kv_truncate(std::int64_t length) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  GRAFT_CHECK(InvalidArgument, length >= 0, "a cache keeps 0 tokens or more, got ", length);
  for (std::int64_t& row : impl_->lengths()) row = std::min(row, length);
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
  std::vector<std::byte> kept;
  for (std::uint32_t s = 0; s < impl_->states.size(); ++s) {
    if (impl_->loaded().states[s].state.kind != ir::StateKind::kv || !impl_->states[s].data()) continue;
    const TensorDesc desc = impl_->desc_of(s);
    const std::size_t slot = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
    const std::size_t head = slot * static_cast<std::size_t>(desc.shape[2]);
    const auto heads = static_cast<std::size_t>(desc.shape[1]);
    // Head by head: what is read is set aside before the first row is written.
    for (std::size_t h = 0; h < heads; ++h) {
      std::byte* base = impl_->states[s].data() + h * head;
      const auto row_at = [&](std::int64_t row) { return base + static_cast<std::size_t>(row) * heads * head; };
      kept.clear();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == static_cast<std::int64_t>(i)) continue;
        const std::byte* from = row_at(rows[i]);
        kept.insert(kept.end(), from, from + static_cast<std::size_t>(after[i]) * slot);
      }
      const std::byte* from = kept.data();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == static_cast<std::int64_t>(i)) continue;
        const std::size_t bytes = static_cast<std::size_t>(after[i]) * slot;
        if (bytes > 0) std::memcpy(row_at(static_cast<std::int64_t>(i)), from, bytes);
        from += bytes;
      }
    }
  }
  std::ranges::copy(after, lengths.begin());
}

void Session::kv_resize(std::int64_t rows, std::int64_t length) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  KvOptions kv = impl_->options.kv;
  kv.rows = rows;
  kv.length = length;
  impl_->check_kv(kv);
  const std::span<const std::int64_t> lengths = impl_->lengths();
  for (std::size_t r = 0; r < lengths.size(); ++r)
    GRAFT_CHECK(InvalidArgument, lengths[r] == 0 || (static_cast<std::int64_t>(r) < rows && lengths[r] <= length),
                "row ", r, " holds ", lengths[r], " tokens; they do not fit a cache of ", rows, " rows of ", length);
  const std::vector<std::int64_t> held(lengths.begin(), lengths.end());
  for (std::uint32_t s = 0; s < impl_->states.size(); ++s) {
    const ir::StateKind kind = impl_->loaded().states[s].state.kind;
    if (kind == ir::StateKind::plain || !impl_->states[s].data()) continue;
    const TensorDesc from = impl_->desc_of(s), to = state_desc(impl_->loaded().states[s].state, kv);
    AlignedMemory memory(to.byte_count());
    if (kind == ir::StateKind::kv_length) {
      std::memset(memory.data(), 0, memory.size());
      std::memcpy(memory.data(), impl_->states[s].data(), std::min(from.byte_count(), to.byte_count()));
    } else {
      const std::size_t slot = static_cast<std::size_t>(from.shape[3]) * byte_size(from.dtype);
      for (std::int64_t r = 0; r < std::min(from.shape[0], to.shape[0]); ++r)
        for (std::int64_t h = 0; h < from.shape[1]; ++h)
          std::memcpy(
              memory.data() + static_cast<std::size_t>((r * to.shape[1] + h) * to.shape[2]) * slot,
              impl_->states[s].data() + static_cast<std::size_t>((r * from.shape[1] + h) * from.shape[2]) * slot,
              static_cast<std::size_t>(held[static_cast<std::size_t>(r)]) * slot);
    }
    impl_->counters.state_bytes += memory.size();
    impl_->counters.state_bytes -= impl_->states[s].size();
    impl_->states[s] = std::move(memory);
  }
  impl_->options.kv = kv;
}

}  // namespace graft
