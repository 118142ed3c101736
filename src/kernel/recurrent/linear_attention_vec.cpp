#include "kernel/recurrent/linear_attention_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr int kVectors = 4;  // of columns: as many chains of sums hide the latency of fma

GRAFT_VEC vf load_part(const float* p, i64 n) { return load_some<F32>(p, n); }
GRAFT_VEC void store_part(float* p, vf v, i64 n) { store_some<F32>(p, v, n); }

// What decays to less than 2^-64 of itself is forgotten: as it went on to the numbers that are not normal, each product
// with it would take the CPU some 150 cycles.
constexpr float kLeastDecay = 0x1p-64f;
GRAFT_VEC float decay_of(float decay) { return decay < kLeastDecay ? 0.f : decay; }
GRAFT_VEC vf decay_of_log(vf x) { return select(x < splat(-44.36142f), zero(), exp(x)); }  // log of kLeastDecay

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
      const vf w = splat(decay_of(h.one_decay ? decay[0] : decay[i])), key = splat(k[i]);
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

// One step, which reads the state twice instead of keeping it.
template <int vectors>
GRAFT_VEC void delta_step(const DeltaHead& h, i64 column, i64 n) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  const auto decayed = [&](i64 i, int c) {
    const vf w = splat(decay_of(h.decay[h.one_decay ? 0 : i]));
    return load_part(h.first + i * h.state_row + column + c * kLanes, width(c)) * w;
  };
  vf seen[vectors], out[vectors];
  for (int c = 0; c < vectors; ++c) seen[c] = out[c] = zero();
  for (i64 i = 0; h.first != nullptr && i < h.keys; ++i)
    for (int c = 0; c < vectors; ++c) seen[c] = fma(splat(h.key[i]), decayed(i, c), seen[c]);
  for (int c = 0; c < vectors; ++c)
    seen[c] = (load_part(h.value + column + c * kLanes, width(c)) - seen[c]) * splat(h.beta[0]);
  for (i64 i = 0; i < h.keys; ++i)
    for (int c = 0; c < vectors; ++c) {
      const vf v = fma(splat(h.key[i]), seen[c], h.first != nullptr ? decayed(i, c) : zero());
      store_part(h.last + i * h.state_row + column + c * kLanes, v, width(c));
      out[c] = fma(splat(h.query[i]), v, out[c]);
    }
  for (int c = 0; c < vectors; ++c) store_part(h.out + column + c * kLanes, out[c], width(c));
}

template <int vectors>
GRAFT_VEC void delta_part(const DeltaHead& h, i64 column, i64 n, float* scratch) {
  if (h.steps == 1) {
    delta_step<vectors>(h, column, n);
  } else {
    delta_columns<vectors>(h, column, n, scratch);
  }
}

void delta(const DeltaHead& h, float* scratch) {
  i64 column = 0;
  for (; column + kVectors * kLanes <= h.columns; column += kVectors * kLanes)
    delta_part<kVectors>(h, column, kLanes, scratch);
  for (; column < h.columns; column += kLanes) {
    const i64 left = h.columns - column;
    delta_part<1>(h, column, left < kLanes ? left : i64{kLanes}, scratch);
  }
}

// Elements [at, at + vectors * lanes) of some rows, `n` of the last vector, in registers over all steps: so many chains
// of sums hide the latency of fma. Adds to what earlier elements left in `out`.
template <bool one_decay, int rows, int vectors>
GRAFT_VEC void scan_tile(const ScanRows& r, i64 row, i64 at, i64 n) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  const auto element = [&](const float* from, int p, int c) { return from + (row + p) * r.size + at + c * kLanes; };
  vf s[rows][vectors], a[rows][vectors];
  for (int p = 0; p < rows; ++p)
    for (int c = 0; c < vectors; ++c) {
      s[p][c] = r.first != nullptr ? load_part(element(r.first, p, c), width(c)) : zero();
      if constexpr (!one_decay) a[p][c] = load_part(r.a + (row + p) * r.a_row + at + c * kLanes, width(c));
    }
  for (i64 t = 0; t < r.steps; ++t) {
    const float *dt = r.dt + t * r.dt_step + row * r.dt_row, *x = r.x + t * r.x_step + row * r.x_row;
    const vf decay = one_decay ? splat(r.decays[t]) : zero();
    vf b[vectors], c_in[vectors];
    for (int c = 0; c < vectors; ++c) {
      b[c] = load_part(r.b + t * r.b_step + at + c * kLanes, width(c));
      c_in[c] = load_part(r.c + t * r.c_step + at + c * kLanes, width(c));
    }
    vf sums[rows];
    for (int p = 0; p < rows; ++p) {
      const float step = dt[p * r.dt_row];
      const vf given = splat(step * x[p * r.x_row]);
      vf y = zero();
      for (int c = 0; c < vectors; ++c) {
        const vf w = one_decay ? decay : decay_of_log(splat(step) * a[p][c]);
        s[p][c] = fma(given, b[c], s[p][c] * w);
        y = fma(s[p][c], c_in[c], y);
      }
      sums[p] = y;
    }
    float* out = r.out + t * r.out_step + row;
    if constexpr (rows == 4) {
      const v4 y = sum_lanes4(sums[0], sums[1], sums[2], sums[3]);
      for (int p = 0; p < rows; ++p) out[p] = at == 0 ? y[p] : out[p] + y[p];
    } else {
      for (int p = 0; p < rows; ++p) out[p] = at == 0 ? sum_lanes(sums[p]) : out[p] + sum_lanes(sums[p]);
    }
  }
  for (int p = 0; p < rows; ++p)
    for (int c = 0; c < vectors; ++c) store_part(r.last + (row + p) * r.size + at + c * kLanes, s[p][c], width(c));
}

template <bool one_decay, int rows>
GRAFT_VEC void scan_rows(const ScanRows& r, i64 row) {
  constexpr int kWide = kLanes > 8 ? 4 : 2;
  i64 at = 0;
  for (; at + kWide * kLanes <= r.size; at += kWide * kLanes) scan_tile<one_decay, rows, kWide>(r, row, at, kLanes);
  for (; at < r.size; at += kLanes) {
    const i64 left = r.size - at;
    scan_tile<one_decay, rows, 1>(r, row, at, left < kLanes ? left : i64{kLanes});
  }
}

template <bool one_decay>
GRAFT_VEC void scan_all(const ScanRows& r) {
  constexpr i64 kRows = 4;
  i64 row = 0;
  for (; row + kRows <= r.rows; row += kRows) scan_rows<one_decay, kRows>(r, row);
  for (; row < r.rows; ++row) scan_rows<one_decay, 1>(r, row);
}

// Some steps at a time, by all rows: b and c of these stay in the first cache.
void scan(const ScanRows& r) {
  constexpr i64 kSteps = 16;
  for (i64 t = 0; t < r.steps; t += kSteps) {
    ScanRows part = r;
    part.steps = r.steps - t < kSteps ? r.steps - t : kSteps;
    part.x += t * r.x_step;
    part.dt += t * r.dt_step;
    part.b += t * r.b_step;
    part.c += t * r.c_step;
    part.out += t * r.out_step;
    if (r.decays != nullptr) part.decays += t;
    if (t > 0) part.first = r.last;
    if (r.decays != nullptr) {
      scan_all<true>(part);
    } else {
      scan_all<false>(part);
    }
  }
}

void decays(const float* dt, i64 stride, float a, i64 steps, float* to) {
  for (i64 t = 0; t < steps; ++t) to[t] = dt[t * stride] * a;
  for (i64 t = 0; t < steps; t += kLanes) store_part(to + t, decay_of_log(load_part(to + t, steps - t)), steps - t);
}

}  // namespace

const LinearAttentionTable kLinearAttention = {kVectors * kLanes, delta, scan, decays};

}  // namespace graft::simd::GRAFT_ISA
