#pragma once

#include <cstdint>
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

 private:
  struct Side;
  Side side(std::int64_t layer, std::string_view which, const TensorView& view);

  KvCache& cache_;
  StateStore& states_;
};

}  // namespace graft
