#pragma once

#include <cstdint>

#include "kernel/attention/cached_attention.h"
#include "kernel/kernel.h"

namespace graft {

// The recurrent state of a row of the batch, in a cache's state f32 [R, 2, ...]: one half is the row's, and a run
// writes the other one.
struct CachedState {
  const float* first = nullptr;  // before the row's first token; null: zeros
  float* last = nullptr;         // after its last one
  std::int64_t padding = 0;      // tokens of the row that come before its first

  // Operands of the launch: positions i64 [B, T] as kCachePositions has checked them (a row that begins at position 0
  // begins anew), half i64 [R], and as output the state.
  static CachedState of(const KernelContext& ctx, int positions, int half, int state, std::int64_t b) {
    const std::int64_t tokens = ctx.in(positions).shape[1];
    const std::int64_t* row = ctx.input<std::int64_t>(positions) + b * tokens;
    CachedState found;
    found.padding = first_token(row, tokens);
    if (found.padding == tokens) return found;
    const std::int64_t cached = ctx.kv_row(b), size = ctx.out(state).numel() / (2 * ctx.out(state).shape[0]);
    float* const halves = ctx.output<float>(state) + 2 * cached * size;
    const std::int64_t own = ctx.input<std::int64_t>(half)[cached];
    if (row[found.padding] > 0) found.first = halves + own * size;
    found.last = halves + (1 - own) * size;
    return found;
  }
};

}  // namespace graft
