#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Recurrences of linear attention: one head over all its steps. f32; strides are in elements, rows are contiguous.
namespace graft::simd {

// The gated delta rule, for some columns of a state S [keys, columns]: per step
//   S = diag(decay) S;  S += k (beta (v - k' S))';  y = q' S.
struct DeltaHead {
  const float *query = nullptr, *key = nullptr, *value = nullptr, *decay = nullptr, *beta = nullptr;
  // S before the first step (null: zeros), and `last` after the last one; rows `state_row` apart.
  const float* first = nullptr;
  float *out = nullptr, *last = nullptr;
  std::int64_t steps = 0, keys = 0, columns = 0;
  std::int64_t query_step = 0, key_step = 0, value_step = 0, decay_step = 0, beta_step = 0, out_step = 0;
  std::int64_t state_row = 0;
  bool one_decay = false;  // for all keys
};

// Rows of a selective scan's state s [rows, size], contiguous: per step s = s * decay + dt x b;  y = sum(s * c), where
// decay is exp(dt a), or `decays` of the step when that is not null. All rows share b and c; those of x, dt and a are
// `x_row`, `dt_row` and `a_row` apart, those of out follow each other.
struct ScanRows {
  const float *x = nullptr, *dt = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *decays = nullptr;
  const float* first = nullptr;  // null: zeros
  float *out = nullptr, *last = nullptr;
  std::int64_t steps = 0, rows = 0, size = 0;
  std::int64_t x_step = 0, dt_step = 0, b_step = 0, c_step = 0, out_step = 0;
  std::int64_t x_row = 0, dt_row = 0, a_row = 0;
};

struct LinearAttentionTable {
  // Columns that are computed together: tasks divide a state at multiples of it.
  std::int64_t columns;
  // `scratch`: keys * columns floats.
  void (*delta)(const DeltaHead&, float* scratch);
  void (*scan)(const ScanRows&);
  // to[t] = exp(dt[t * stride] * a) for t < steps.
  void (*decays)(const float* dt, std::int64_t stride, float a, std::int64_t steps, float* to);
};

GRAFT_TABLE("vec", LinearAttentionTable, kLinearAttention, linear_attention)

}  // namespace graft::simd
