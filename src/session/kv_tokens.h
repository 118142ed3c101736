#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "session/kv_cache.h"

namespace graft {

// Reads and writes keys and values of single tokens, for callers that inspect a cache or import one.
class KvTokens {
 public:
  explicit KvTokens(KvCache& cache) : cache_(cache), states_(cache.states()) {}

  // As Session's functions of these names.
  void read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys, const TensorView& values);
  void write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
             const TensorView& values);
  std::size_t token_bytes();
  bool copy_out(std::int64_t row, std::int64_t first, std::int64_t count, std::span<std::byte> bytes);
  void copy_in(std::int64_t row, std::int64_t first, std::int64_t count, std::span<const std::byte> bytes);

 private:
  struct Side;
  Side side(std::int64_t layer, std::string_view which, const TensorView& view);
  // Calls move(in the cache, in `bytes`, how many) for each part of these tokens that lies together.
  template <typename Move>
  void each_part(std::int64_t row, std::int64_t first, std::int64_t count, const Move& move);
  void check(std::int64_t row, std::int64_t first, std::int64_t count, std::size_t bytes);

  KvCache& cache_;
  StateStore& states_;
};

}  // namespace graft
