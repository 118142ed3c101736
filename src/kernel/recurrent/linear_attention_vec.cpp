#include "kernel/recurrent/linear_attention_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr int kVectors = 4;  // of columns: as many chains of sums hide the latency of fma

GRAFT_VEC vf load_part(const float* p, i64 n) { return load_some<F32>(p, n); }
GRAFT_VEC void store_part(float* p, vf v, i64 n) { store_some<F32>(p, v, n); }

// `n`: columns of the last vector. The state is kept in scratch, [keys][vectors][lanes], which stays in the first
// cache.
template <int vectors>
GRAFT_VEC void delta_columns(const DeltaHead& h, i64 column, i64 n, float* s) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  for (i64 i = 0; i < h.keys; ++i)
    for (int c = 0; c < vectors; ++c)
      store(s + (i * vectors + c) * kLanes,
            h.first != nullptr ? load_part(h.first + i * h.state_row + column + c * kLanes, width(c)) : zero());
  for (i64 t = 0; t < h.steps; ++t) {
    const float *q = h.query + t * h.query_step, *k = h.key + t * h.key_step, *decay = h.decay + t * h.decay_step;
    vf seen[vectors], out[vectors];
    for (int c = 0; c < vectors; ++c) seen[c] = out[c] = zero();
    for (i64 i = 0; i < h.keys; ++i) {
      const vf w = splat(h.one_decay ? decay[0] : decay[i]), key = splat(k[i]);
      float* row = s + i * vectors * kLanes;
      for (int c = 0; c < vectors; ++c) {
        const vf v = load(row + c * kLanes) * w;
        store(row + c * kLanes, v);
        seen[c] = fma(key, v, seen[c]);
      }
    }
    const vf beta = splat(h.beta[t * h.beta_step]);
    for (int c = 0; c < vectors; ++c)
      seen[c] = (load_part(h.value + t * h.value_step + column + c * kLanes, width(c)) - seen[c]) * beta;
    for (i64 i = 0; i < h.keys; ++i) {
      const vf key = splat(k[i]), query = splat(q[i]);
      float* row = s + i * vectors * kLanes;
      for (int c = 0; c < vectors; ++c) {
        const vf v = fma(key, seen[c], load(row + c * kLanes));
        store(row + c * kLanes, v);
        out[c] = fma(query, v, out[c]);
      }
    }
    for (int c = 0; c < vectors; ++c) store_part(h.out + t * h.out_step + column + c * kLanes, out[c], width(c));
  }
  for (i64 i = 0; i < h.keys; ++i)
    for (int c = 0; c < vectors; ++c)
      store_part(h.last + i * h.state_row + column + c * kLanes, load(s + (i * vectors + c) * kLanes), width(c));
}

void delta(const DeltaHead& h, float* scratch) {
  i64 column = 0;
  for (; column + kVectors * kLanes <= h.columns; column += kVectors * kLanes)
    delta_columns<kVectors>(h, column, kLanes, scratch);
  for (; column < h.columns; column += kLanes) {
    const i64 left = h.columns - column;
    delta_columns<1>(h, column, left < kLanes ? left : i64{kLanes}, scratch);
  }
}

// Elements `at` and up of the row, `n` of the last vector; adds to what earlier ones left in `out`.
template <int vectors>
GRAFT_VEC void scan_part(const ScanRow& r, i64 at, i64 n) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  vf s[vectors], a[vectors];
  for (int c = 0; c < vectors; ++c) {
    s[c] = r.first != nullptr ? load_part(r.first + at + c * kLanes, width(c)) : zero();
    a[c] = r.decays != nullptr ? zero() : load_part(r.a + at + c * kLanes, width(c));
  }
  for (i64 t = 0; t < r.steps; ++t) {
    const float dt = r.dt[t * r.dt_step];
    const vf step = splat(dt), given = splat(dt * r.x[t * r.x_step]);
    const vf decay = r.decays != nullptr ? splat(r.decays[t]) : zero();
    vf y = zero();
    for (int c = 0; c < vectors; ++c) {
      const vf w = r.decays != nullptr ? decay : exp(step * a[c]);
      const vf b = load_part(r.b + t * r.b_step + at + c * kLanes, width(c));
      s[c] = fma(given, b, s[c] * w);
      y = fma(s[c], load_part(r.c + t * r.c_step + at + c * kLanes, width(c)), y);
    }
    float* out = r.out + t * r.out_step;
    *out = at == 0 ? sum_lanes(y) : *out + sum_lanes(y);
  }
  for (int c = 0; c < vectors; ++c) store_part(r.last + at + c * kLanes, s[c], width(c));
}

void scan(const ScanRow& r) {
  i64 at = 0;
  for (; at + kVectors * kLanes <= r.size; at += kVectors * kLanes) scan_part<kVectors>(r, at, kLanes);
  for (; at < r.size; at += kLanes) {
    const i64 left = r.size - at;
    scan_part<1>(r, at, left < kLanes ? left : i64{kLanes});
  }
}

void decays(const float* dt, i64 stride, float a, i64 steps, float* to) {
  for (i64 t = 0; t < steps; ++t) to[t] = dt[t * stride] * a;
  for (i64 t = 0; t < steps; t += kLanes) store_part(to + t, exp(load_part(to + t, steps - t)), steps - t);
}

}  // namespace

const LinearAttentionTable kLinearAttention = {kVectors * kLanes, delta, scan, decays};

}  // namespace graft::simd::GRAFT_ISA
