#include "kernel/recurrent/channel_scan_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

GRAFT_VEC vf load_part(const float* p, i64 n) { return load_some<F32>(p, n); }
GRAFT_VEC void store_part(float* p, vf v, i64 n) { store_some<F32>(p, v, n); }

// Channels [at, at + vectors * lanes), `n` of the last vector, whose states stay in registers.
template <int vectors>
GRAFT_VEC void diagonal_tile(const DiagonalChannels& d, i64 at, i64 n) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  vf s[vectors];
  for (int c = 0; c < vectors; ++c) s[c] = d.first != nullptr ? load_part(d.first + at + c * kLanes, width(c)) : zero();
  for (i64 t = 0; t < d.steps; ++t)
    for (int c = 0; c < vectors; ++c) {
      const i64 channel = at + c * kLanes;
      s[c] = fma(load_part(d.decay + t * d.decay_step + channel, width(c)), s[c],
                 load_part(d.x + t * d.x_step + channel, width(c)));
      store_part(d.out + t * d.out_step + channel, s[c], width(c));
    }
  for (int c = 0; c < vectors; ++c) store_part(d.last + at + c * kLanes, s[c], width(c));
}

constexpr float kNoMaximum = -1e38f;  // before all tokens, as RWKV's own code has it

// exp(-|x|), and 0 below 2^-64: what is so small beside 1 is lost anyway, and numbers that are not normal take the CPU
// some 150 cycles.
GRAFT_VEC vf exp_of_distance(vf x) {
  const vf distance = absolute(x);
  return select(distance > 44.36142f, zero(), exp(-distance));  // -log(2^-64)
}

// Of the two weights exp(a - max(a, b)) and exp(b - max(a, b)) one is 1.
struct Weights {
  vf a, b;
};
GRAFT_VEC Weights weights_of(vf a, vf b) {
  const vf less = exp_of_distance(a - b), one = splat(1.f);
  return {select(a >= b, one, less), select(a >= b, less, one)};
}

template <int vectors>
GRAFT_VEC void wkv_tile(const WkvChannels& r, i64 at, i64 n) {
  const auto width = [n](int c) { return c + 1 == vectors ? n : i64{kLanes}; };
  vf numerator[vectors], denominator[vectors], maximum[vectors], log_decay[vectors], bonus[vectors];
  for (int c = 0; c < vectors; ++c) {
    const i64 channel = at + c * kLanes;
    log_decay[c] = load_part(r.log_decay + channel, width(c));
    bonus[c] = load_part(r.bonus + channel, width(c));
    numerator[c] = r.first != nullptr ? load_part(r.first + channel, width(c)) : zero();
    denominator[c] = r.first != nullptr ? load_part(r.first + r.state_row + channel, width(c)) : zero();
    maximum[c] = r.first != nullptr ? load_part(r.first + 2 * r.state_row + channel, width(c)) : splat(kNoMaximum);
  }
  for (i64 t = 0; t < r.steps; ++t)
    for (int c = 0; c < vectors; ++c) {
      const i64 channel = at + c * kLanes;
      const vf key = load_part(r.key + t * r.key_step + channel, width(c));
      const vf value = load_part(r.value + t * r.value_step + channel, width(c));
      const Weights seen = weights_of(maximum[c], key + bonus[c]);
      store_part(r.out + t * r.out_step + channel,
                 fma(seen.a, numerator[c], seen.b * value) / fma(seen.a, denominator[c], seen.b), width(c));
      const vf decayed = maximum[c] + log_decay[c];
      const Weights kept = weights_of(decayed, key);
      numerator[c] = fma(kept.a, numerator[c], kept.b * value);
      denominator[c] = fma(kept.a, denominator[c], kept.b);
      maximum[c] = select(decayed >= key, decayed, key);
    }
  for (int c = 0; c < vectors; ++c) {
    const i64 channel = at + c * kLanes;
    store_part(r.last + channel, numerator[c], width(c));
    store_part(r.last + r.state_row + channel, denominator[c], width(c));
    store_part(r.last + 2 * r.state_row + channel, maximum[c], width(c));
  }
}

void diagonal(const DiagonalChannels& d) {
  constexpr int kVectors = 4;  // as many chains of sums hide the latency of fma
  i64 at = 0;
  for (; at + kVectors * kLanes <= d.channels; at += kVectors * kLanes) diagonal_tile<kVectors>(d, at, kLanes);
  for (; at < d.channels; at += kLanes) {
    const i64 left = d.channels - at;
    diagonal_tile<1>(d, at, left < kLanes ? left : i64{kLanes});
  }
}

void wkv(const WkvChannels& r) {
  constexpr int kVectors = 2;  // what is kept of more does not fit into 16 registers
  i64 at = 0;
  for (; at + kVectors * kLanes <= r.channels; at += kVectors * kLanes) wkv_tile<kVectors>(r, at, kLanes);
  for (; at < r.channels; at += kLanes) {
    const i64 left = r.channels - at;
    wkv_tile<1>(r, at, left < kLanes ? left : i64{kLanes});
  }
}

}  // namespace

const ChannelScanTable kChannelScan = {diagonal, wkv};

}  // namespace graft::simd::GRAFT_ISA
