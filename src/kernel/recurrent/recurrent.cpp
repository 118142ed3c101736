#include "kernel/recurrent/recurrent.h"

#include <algorithm>
#include <climits>
#include <string>

#include "base/ceil_div.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;
using i64 = std::int64_t;

constexpr i64 kRows = simd::kMaxDotRows;  // rows of the batch in one product
constexpr i64 kWeightRows = 12;           // rows of a work item; kernel/matmul/matmul.cpp divides dot products likewise
constexpr i64 kBlock = 128;               // elements of a state updated at once
// From this many products in at most kSharedSteps steps threads divide them: fewer take less time than waking a thread
// and the barriers after each step.
constexpr i64 kSharedProducts = 1 << 18;
constexpr i64 kSharedSteps = 4;

// A launch's operands by name.
struct Layer {
  RecurrentAttrs attrs;
  i64 steps, batch, hidden, size, gates, inputs;  // T, B, H, P, G H, I
  int c0 = -1, b_hh = -1, w_ih = -1, b_ih = -1, w_hr = -1, c_out = -1, h_out = -1;

  explicit Layer(const KernelContext& ctx) : attrs(ctx.attrs<RecurrentAttrs>()) {
    steps = ctx.out().shape[0];
    batch = ctx.out().shape[1];
    size = ctx.out().shape[2];
    gates = ctx.in(2).shape[0];
    hidden = gates / gate_count(attrs.cell);
    inputs = attrs.from_gates != 0 ? 0 : ctx.in(0).shape[2];
    int next = 3;
    if (attrs.cell == RecurrentCell::lstm) c0 = next++;
    if (attrs.has_bias != 0) b_hh = next++;
    if (attrs.from_gates == 0) w_ih = next++;
    if (attrs.from_gates == 0 && attrs.has_bias != 0) b_ih = next++;
    if (attrs.has_projection != 0) w_hr = next++;
    next = 1;
    if (attrs.cell == RecurrentCell::lstm) c_out = next++;
    if (attrs.has_last != 0) h_out = next++;
  }

  int phases_per_step() const { return attrs.has_projection != 0 ? 3 : 2; }
  i64 chunks() const { return ceil_div(batch, kRows); }
  i64 products(i64 rows, i64 of_steps) const { return gates * (size + inputs) * rows * of_steps; }
  bool share_weights(int threads) const {
    return threads > chunks() && products(std::min(batch, kRows), std::min(steps, kSharedSteps)) >= kSharedProducts;
  }
};

struct Span {
  i64 begin, end;
};

class Recurrence {
 public:
  Recurrence(const KernelContext& ctx, const simd::MatmulTable& products, const simd::ElementwiseTable& functions)
      : ctx_(ctx), l_(ctx), products_(products), functions_(functions) {}

  void run() const {
    if (!l_.share_weights(ctx_.tasks)) {
      const auto [begin, end] = ctx_.range(l_.chunks());
      const Span rows = {begin * kRows, std::min(end * kRows, l_.batch)};
      for (i64 step = 0; step < l_.steps && rows.begin < rows.end; ++step) {
        multiply(step, rows, {0, l_.gates});
        update(step, rows, {0, l_.hidden});
        if (l_.w_hr >= 0) project(step, rows, {0, l_.size});
      }
      return;
    }
    const i64 step = ctx_.phase / l_.phases_per_step();
    const Span all = {0, l_.batch};
    switch (ctx_.phase % l_.phases_per_step()) {
      case 0:
        return multiply(step, all, part(l_.gates, kWeightRows));
      case 1:
        return update(step, all, part(l_.hidden, kBlock));
      default:
        return project(step, all, part(l_.size, kWeightRows));
    }
  }

 private:
  Span part(i64 count, i64 unit) const {
    const auto [begin, end] = ctx_.range(ceil_div(count, unit));
    return {begin * unit, std::min(end * unit, count)};
  }

  i64 time_of(i64 step) const { return l_.attrs.reverse != 0 ? l_.steps - 1 - step : step; }

  // Stride between rows of a matrix, or of a step of a sequence.
  static i64 row_stride(const TensorDesc& desc) { return desc.strides[static_cast<std::size_t>(desc.rank() - 2)]; }
  const float* in(int i, i64 b) const { return ctx_.input<float>(i) + b * row_stride(ctx_.in(i)); }
  float* out(int i, i64 b) const { return ctx_.output<float>(i) + b * row_stride(ctx_.out(i)); }
  const float* x(i64 step, i64 b) const { return in(0, b) + time_of(step) * ctx_.in(0).strides[0]; }
  float* y(i64 step, i64 b) const { return out(0, b) + time_of(step) * ctx_.out().strides[0]; }

  const float* state(i64 step, i64 b) const { return step == 0 ? in(1, b) : y(step - 1, b); }
  i64 state_stride(i64 step) const { return row_stride(step == 0 ? ctx_.in(1) : ctx_.out()); }

  float* scratch() const { return reinterpret_cast<float*>(ctx_.scratch_bytes); }
  float* of_state(i64 b) const { return scratch() + b * l_.gates; }  // W_hh h + b_hh
  float* of_input(i64 b) const { return scratch() + (l_.batch + b) * l_.gates; }
  float* unprojected(i64 b) const {
    return scratch() + (l_.attrs.from_gates != 0 ? 1 : 2) * l_.batch * l_.gates + b * l_.hidden;
  }
  const float* input_gates(i64 step, i64 b) const { return l_.attrs.from_gates != 0 ? x(step, b) : of_input(b); }

  // to[b, q] = sum over k of weight[q, k] * few[b, k], and the bias[q], for q in `span`.
  void dot(const float* few, i64 few_stride, i64 count, int weight, int bias, float* to, i64 to_stride, i64 depth,
           Span span) const {
    if (span.begin >= span.end) return;
    simd::Epilogue e;
    e.bias = bias < 0 ? nullptr : ctx_.inputs[bias];
    e.bias_r = 1;
    e.out = to;
    e.out_r = 1;
    e.out_j = to_stride;
    const simd::MatrixView many = {ctx_.inputs[weight], DType::f32, row_stride(ctx_.in(weight)), 1};
    products_.dot(few, few_stride, static_cast<int>(count), many, depth, span.begin, span.end, e);
  }

  void multiply(i64 step, Span rows, Span span) const {
    for (i64 b = rows.begin; b < rows.end; b += kRows) {
      const i64 count = std::min(kRows, rows.end - b);
      if (l_.w_ih >= 0)
        dot(x(step, b), row_stride(ctx_.in(0)), count, l_.w_ih, l_.b_ih, of_input(b), l_.gates, l_.inputs, span);
      dot(state(step, b), state_stride(step), count, 2, l_.b_hh, of_state(b), l_.gates, l_.size, span);
    }
  }

  void project(i64 step, Span rows, Span span) const {
    for (i64 b = rows.begin; b < rows.end; b += kRows)
      dot(unprojected(b), l_.hidden, std::min(kRows, rows.end - b), l_.w_hr, -1, y(step, b), row_stride(ctx_.out()),
          l_.hidden, span);
    if (step + 1 == l_.steps) keep(step, rows, span);
  }

  void keep(i64 step, Span rows, Span span) const {
    if (l_.h_out < 0) return;
    for (i64 b = rows.begin; b < rows.end && span.begin < span.end; ++b)
      std::copy(y(step, b) + span.begin, y(step, b) + span.end, out(l_.h_out, b) + span.begin);
  }

  void apply(ElementwiseOp op, const float* a, const float* b, float* to, i64 n) const {
    const void* operands[] = {a, b};
    const simd::Number one{1, 1};
    functions_.function(BlockClass::f32, op)(operands, to, n, &one);
  }

  // Updates elements `span` of the state from the products.
  void update(i64 step, Span rows, Span span) const {
    for (i64 b = rows.begin; b < rows.end; ++b)
      for (i64 i = span.begin; i < span.end; i += kBlock) {
        const i64 n = std::min(kBlock, span.end - i);
        float* to = (l_.w_hr >= 0 ? unprojected(b) : y(step, b)) + i;
        switch (l_.attrs.cell) {
          case RecurrentCell::lstm:
            lstm(step, b, i, n, to);
            break;
          case RecurrentCell::gru:
            gru(step, b, i, n, to);
            break;
          case RecurrentCell::rnn_tanh:
          case RecurrentCell::rnn_relu:
            apply(ElementwiseOp::add, input_gates(step, b) + i, of_state(b) + i, to, n);
            apply(l_.attrs.cell == RecurrentCell::rnn_tanh ? ElementwiseOp::tanh : ElementwiseOp::relu, to, nullptr, to,
                  n);
            break;
        }
      }
    if (step + 1 == l_.steps && l_.w_hr < 0) keep(step, rows, span);
  }

  void lstm(i64 step, i64 b, i64 i, i64 n, float* to) const {
    alignas(64) float gate[4][kBlock];  // input, forget, cell, output
    for (int g = 0; g < 4; ++g) {
      const i64 at = g * l_.hidden + i;
      apply(ElementwiseOp::add, input_gates(step, b) + at, of_state(b) + at, gate[g], n);
      apply(g == 2 ? ElementwiseOp::tanh : ElementwiseOp::sigmoid, gate[g], nullptr, gate[g], n);
    }
    float* c = out(l_.c_out, b) + i;
    apply(ElementwiseOp::mul, gate[1], step == 0 ? in(l_.c0, b) + i : c, c, n);
    apply(ElementwiseOp::mul, gate[0], gate[2], gate[0], n);
    apply(ElementwiseOp::add, c, gate[0], c, n);
    apply(ElementwiseOp::tanh, c, nullptr, gate[0], n);
    apply(ElementwiseOp::mul, gate[3], gate[0], to, n);
  }

  void gru(i64 step, i64 b, i64 i, i64 n, float* to) const {
    alignas(64) float reset[kBlock], keep[kBlock], made[kBlock];
    const float* x = input_gates(step, b) + i;
    const float* h = of_state(b) + i;
    apply(ElementwiseOp::add, x, h, reset, n);
    apply(ElementwiseOp::sigmoid, reset, nullptr, reset, n);
    apply(ElementwiseOp::add, x + l_.hidden, h + l_.hidden, keep, n);
    apply(ElementwiseOp::sigmoid, keep, nullptr, keep, n);
    apply(ElementwiseOp::mul, reset, h + 2 * l_.hidden, made, n);
    apply(ElementwiseOp::add, x + 2 * l_.hidden, made, made, n);
    apply(ElementwiseOp::tanh, made, nullptr, made, n);
    apply(ElementwiseOp::sub, state(step, b) + i, made, reset, n);
    apply(ElementwiseOp::mul, reset, keep, reset, n);
    apply(ElementwiseOp::add, reset, made, to, n);
  }

  const KernelContext& ctx_;
  const Layer l_;
  const simd::MatmulTable& products_;
  const simd::ElementwiseTable& functions_;
};

void run_here(const KernelContext& ctx) noexcept { run_recurrent(ctx, simd::matmul(), simd::elementwise()); }

int phases_here(const KernelContext& ctx) noexcept {
  const Layer l(ctx);
  return l.share_weights(ctx.tasks) ? static_cast<int>(l.steps) * l.phases_per_step() : 1;
}

std::string explain(const KernelContext& ctx) {
  static constexpr const char* kNames[] = {"LSTM", "GRU", "RNN", "RNN"};
  const Layer l(ctx);
  std::string text = std::string(kNames[static_cast<int>(l.attrs.cell)]) + ", f32, " + isa_name() + ", ";
  text += l.steps == 1 ? "one step" : "all steps";
  if (l.attrs.from_gates == 0) text += ", products of the input too";
  // The number of threads is not known here.
  return text + (l.share_weights(INT_MAX) ? ", threads divide batch or weights" : ", threads divide the batch");
}

}  // namespace

std::int64_t recurrent_scratch_bytes(const RecurrentAttrs& attrs, std::int64_t batch, std::int64_t hidden) {
  const i64 gates = gate_count(attrs.cell) * hidden;
  return 4 * batch * (gates * (attrs.from_gates != 0 ? 1 : 2) + (attrs.has_projection != 0 ? hidden : 0));
}

void run_recurrent(const KernelContext& ctx, const simd::MatmulTable& products,
                   const simd::ElementwiseTable& functions) noexcept {
  Recurrence(ctx, products, functions).run();
}

// With one tile of batch rows, threads divide a step's products or nothing.
i64 work(const KernelContext& ctx) {
  const Layer l(ctx);
  return l.chunks() > 1 || l.share_weights(INT_MAX) ? l.products(l.batch, l.steps) : 0;
}

const Kernel kRecurrent = {"recurrent", run_here, 1, phases_here, explain, work};

}  // namespace graft
