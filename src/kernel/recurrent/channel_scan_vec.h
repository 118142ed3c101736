#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Recurrences of some channels, each for itself, over all their steps. f32; strides are in elements, channels are
// contiguous.
namespace graft::simd {

// Per step s = decay s + x, which is the result too.
struct DiagonalChannels {
  const float *x = nullptr, *decay = nullptr;
  const float* first = nullptr;  // s before the first step; null: zeros
  float *out = nullptr, *last = nullptr;
  std::int64_t steps = 0, channels = 0;
  std::int64_t x_step = 0, decay_step = 0, out_step = 0;
};

// The WKV of RWKV (arXiv 2305.13048, appendix "RWKV Recurrent Form"): a mean of the values, weighted by the
// exponentials of their keys, which decay; a token's own key has `bonus` more. The state is numerator and denominator
// in units of exp(maximum).
struct WkvChannels {
  const float *log_decay = nullptr, *bonus = nullptr, *key = nullptr, *value = nullptr;
  // Numerator, denominator and maximum before the first step, rows `state_row` apart; null: those of no tokens.
  const float* first = nullptr;
  float *out = nullptr, *last = nullptr;
  std::int64_t steps = 0, channels = 0;
  std::int64_t key_step = 0, value_step = 0, out_step = 0, state_row = 0;
};

struct ChannelScanTable {
  void (*diagonal)(const DiagonalChannels&);
  void (*wkv)(const WkvChannels&);
};

GRAFT_TABLE("vec", ChannelScanTable, kChannelScan, channel_scan)

}  // namespace graft::simd
