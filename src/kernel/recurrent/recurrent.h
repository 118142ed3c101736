#pragma once

#include <cstdint>

#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"

namespace graft {

enum class RecurrentCell : std::int32_t { lstm, gru, rnn_tanh, rnn_relu };

// Rows of a cell's weights per hidden element.
constexpr std::int64_t gate_count(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

struct RecurrentAttrs {
  RecurrentCell cell = RecurrentCell::lstm;
  std::int32_t reverse = 0;     // from the last step to the first
  std::int32_t from_gates = 0;  // input 0 already is W_ih x + b_ih
  std::int32_t has_bias = 0;
  std::int32_t has_projection = 0;
  std::int32_t has_last = 0;
};

// One direction of one layer of a recurrent net over all its steps: torch.nn.LSTM, GRU and RNN, whose documentation has
// the formulas. f32, contiguous rows. H is the hidden size, G = gate_count(cell), P the size of y (H without a
// projection); sizes of T, B and H are at least 1, of I and P too.
// Inputs: x [T, B, I] or, from_gates, [T, B, G H]; h0 [B, P]; W_hh [G H, P]; then, each when present, c0 [B, H] (lstm),
// b_hh [G H] (has_bias), W_ih [G H, I] (not from_gates), b_ih [G H] (both), W_hr [P, H] (has_projection). Outputs: y
// [T, B, P]; c [B, H] after the last step (lstm); h [B, P], that of y (has_last).
//
// Rows of the batch are independent: tasks divide them, eight at a time. When there are fewer such groups than threads,
// and the weights are large, tasks divide the rows of the weights instead, in two or three phases per step. Every sum
// is computed in the same order in both cases.
extern const Kernel kRecurrent;

// Scratch bytes of a launch: W_ih x and W_hh h of one step, and the hidden state before a projection.
std::int64_t recurrent_scratch_bytes(const RecurrentAttrs& attrs, std::int64_t batch, std::int64_t hidden);

// With the kernels of a given instruction set.
void run_recurrent(const KernelContext& ctx, const simd::MatmulTable& products,
                   const simd::ElementwiseTable& functions) noexcept;

}  // namespace graft
