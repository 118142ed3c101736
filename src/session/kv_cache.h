#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "graft/graft.h"
#include "session/state_store.h"

namespace graft {

// The KV cache: how many tokens each row holds, and what callers do to them between runs. Its memory is states of the
// session: per layer [rows, heads, slots, size], where position p of a row is in slot p mod slots, and the numbers
// below.
class KvCache {
 public:
  // Of a program without one only exists(), check_rows() and used_ranges() may be called. Throws InvalidArgument for
  // sizes that no cache has.
  explicit KvCache(StateStore& states);

  bool exists() const { return exists_; }
  StateStore& states() { return states_; }

  // Tokens of each row. Throws InvalidArgument when there is no cache.
  std::span<std::int64_t> lengths();
  // Tokens of each row's encoder output; empty for a program without an encoder.
  std::span<std::int64_t> encoder_lengths();
  // The distinct windows of layers that have one, in positions that a token sees.
  std::span<const std::int64_t> windows() const;
  // By row and window, the first position that caches with that window still hold; empty when no layer has one.
  std::span<std::int64_t> first_held();
  // The tokens of a row that the layer of this state holds: fewer than lengths() where runs have skipped it.
  std::int64_t held_by_layer(const ir::State& state, std::size_t row);
  // Keys or values of the layer were written from outside.
  void written(const ir::State& state, std::size_t row, std::int64_t first, std::int64_t count);
  // Which of the windows() the layer of this state has; none: it holds all tokens.
  std::optional<std::size_t> window_of(const ir::State& state) const;
  // Slots of the ring buffers of a window; 0: its caches hold all tokens.
  std::int64_t ring_slots(std::size_t window) const;
  // The positions [first, second) that a layer holds of a row.
  std::pair<std::int64_t, std::int64_t> held(const ir::State& state, std::size_t row);

  // Whether layers keep states of all tokens of a row together: then a row keeps all of its tokens or none.
  bool is_recurrent() const { return recurrent_; }
  // The smallest length above 0 that a row can be truncated to such that everything the next token sees is still there.
  std::int64_t shortest(std::size_t row);
  // Throws InvalidArgument when the row cannot have that length: the next token would see tokens that are lost.
  void check_length(std::size_t row, std::int64_t length);
  void check_row(std::int64_t row);
  // RunOptions::kv_rows.
  void check_rows(std::span<const std::int64_t> rows) const;

  // As Session's functions of these names.
  void truncate(std::int64_t length);
  // Of one row, which has as many tokens or more.
  void truncate_row(std::size_t row, std::int64_t length);
  void select(std::span<const std::int64_t> rows);
  void resize(std::int64_t rows, std::int64_t length);
  void set_lengths(std::span<const std::int64_t> lengths);

  // The used bytes of a state: all, or for keys and values those of the tokens, by row, head and position.
  using Range = StateStore::Range;
  std::vector<Range> used_ranges(std::uint32_t state);

 private:
  void check_options(const KvOptions& kv) const;
  std::span<std::int64_t> numbers(ir::StateKind kind);
  // The layer's own length; null when no run skips it.
  std::int64_t* layer_length(const ir::State& state, std::size_t row);
  void select_tokens(std::uint32_t state, std::span<const std::int64_t> rows, std::span<const std::int64_t> tokens,
                     std::span<const std::int64_t> first_held);
  void select_recurrent(std::uint32_t state, std::span<const std::int64_t> rows);
  // Where a row's recurrent state of `desc` is.
  Range recurrent_range(const TensorDesc& desc, std::size_t row);

  StateStore& states_;
  bool exists_, recurrent_;
};

}  // namespace graft
