#define GRAFT_ISA test_reference
#include "kernel/recurrent/recurrent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Sizes {
  i64 steps, batch, inputs, hidden, size;  // size < hidden: with a projection
};

// A layer with all its operands, and a reference in double.
struct Layer {
  RecurrentAttrs attrs;
  Sizes s;
  i64 gates;
  TestTensor x, h0, w_hh, c0, b_hh, w_ih, b_ih, w_hr, y, c, h;

  Layer(RecurrentCell cell, Sizes sizes, bool from_gates, bool bias, bool reverse, std::mt19937& rng)
      : s(sizes),
        gates(gate_count(cell) * s.hidden),
        x(TensorDesc(DType::f32, Shape{s.steps, s.batch, from_gates ? gates : s.inputs})),
        h0(TensorDesc(DType::f32, Shape{s.batch, s.size})),
        w_hh(TensorDesc(DType::f32, Shape{gates, s.size})),
        c0(TensorDesc(DType::f32, Shape{s.batch, s.hidden})),
        b_hh(TensorDesc(DType::f32, Shape{gates})),
        w_ih(TensorDesc(DType::f32, Shape{gates, s.inputs})),
        b_ih(b_hh.desc),
        w_hr(TensorDesc(DType::f32, Shape{s.size, s.hidden})),
        y(TensorDesc(DType::f32, Shape{s.steps, s.batch, s.size})),
        c(c0.desc),
        h(h0.desc) {
    attrs.cell = cell;
    attrs.from_gates = from_gates ? 1 : 0;
    attrs.has_bias = bias ? 1 : 0;
    attrs.reverse = reverse ? 1 : 0;
    attrs.has_projection = s.size != s.hidden ? 1 : 0;
    attrs.has_last = 1;
    for (TestTensor* t : {&x, &h0, &c0, &b_hh, &b_ih}) t->fill(rng, -0.7f, 0.7f);
    for (TestTensor* t : {&w_hh, &w_ih, &w_hr}) {
      const float most = 1.5f / std::sqrt(static_cast<float>(t->desc.shape[1]));
      t->fill(rng, -most, most);
    }
  }

  bool lstm() const { return attrs.cell == RecurrentCell::lstm; }

  void run(simd::Isa isa, int threads) {
    std::vector<const TestTensor*> inputs = {&x, &h0, &w_hh};
    if (lstm()) inputs.push_back(&c0);
    if (attrs.has_bias != 0) inputs.push_back(&b_hh);
    if (attrs.from_gates == 0) inputs.push_back(&w_ih);
    if (attrs.from_gates == 0 && attrs.has_bias != 0) inputs.push_back(&b_ih);
    if (attrs.has_projection != 0) inputs.push_back(&w_hr);
    std::vector<TestTensor*> outputs = {&y};
    if (lstm()) outputs.push_back(&c);
    outputs.push_back(&h);
    run_on_threads(
        inputs, outputs, attrs, recurrent_scratch_bytes(attrs, s.batch, s.hidden), threads,
        [&](const KernelContext& ctx) { run_recurrent(ctx, simd::matmul(isa), simd::elementwise(isa)); },
        kRecurrent.phases);
    for (const TestTensor* t : outputs) EXPECT_TRUE(t->guards_intact());
  }

  // Compares row b of the reference with what run() left.
  void expect_row(i64 b) const {
    std::vector<double> state(static_cast<std::size_t>(s.size)), cell(static_cast<std::size_t>(s.hidden)), made(cell);
    for (i64 i = 0; i < s.size; ++i) state[static_cast<std::size_t>(i)] = h0.get(b * s.size + i);
    for (i64 i = 0; i < s.hidden; ++i) cell[static_cast<std::size_t>(i)] = c0.get(b * s.hidden + i);
    for (i64 step = 0; step < s.steps; ++step) {
      const i64 t = attrs.reverse != 0 ? s.steps - 1 - step : step;
      const auto of_input = [&](i64 q) {
        if (attrs.from_gates != 0) return x.get((t * s.batch + b) * gates + q);
        double sum = attrs.has_bias != 0 ? b_ih.get(q) : 0;
        for (i64 k = 0; k < s.inputs; ++k) sum += w_ih.get(q * s.inputs + k) * x.get((t * s.batch + b) * s.inputs + k);
        return sum;
      };
      const auto of_state = [&](i64 q) {
        double sum = attrs.has_bias != 0 ? b_hh.get(q) : 0;
        for (i64 k = 0; k < s.size; ++k) sum += w_hh.get(q * s.size + k) * state[static_cast<std::size_t>(k)];
        return sum;
      };
      const auto gate = [&](int g, i64 i) { return of_input(g * s.hidden + i) + of_state(g * s.hidden + i); };
      for (i64 i = 0; i < s.hidden; ++i) {
        const auto at = static_cast<std::size_t>(i);
        switch (attrs.cell) {
          case RecurrentCell::lstm:
            cell[at] = sigmoid(gate(1, i)) * cell[at] + sigmoid(gate(0, i)) * std::tanh(gate(2, i));
            made[at] = sigmoid(gate(3, i)) * std::tanh(cell[at]);
            break;
          case RecurrentCell::gru: {
            const double n = std::tanh(of_input(2 * s.hidden + i) + sigmoid(gate(0, i)) * of_state(2 * s.hidden + i));
            const double z = sigmoid(gate(1, i));
            made[at] = (1 - z) * n + z * state[at];
            break;
          }
          case RecurrentCell::rnn_tanh:
            made[at] = std::tanh(gate(0, i));
            break;
          case RecurrentCell::rnn_relu:
            made[at] = std::max(gate(0, i), 0.0);
            break;
        }
      }
      for (i64 i = 0; i < s.size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (attrs.has_projection != 0) {
          state[at] = 0;
          for (i64 k = 0; k < s.hidden; ++k)
            state[at] += w_hr.get(i * s.hidden + k) * made[static_cast<std::size_t>(k)];
        } else {
          state[at] = made[at];
        }
        ASSERT_NEAR(y.get((t * s.batch + b) * s.size + i), state[at], 2e-5) << "step " << step << " element " << i;
      }
    }
    for (i64 i = 0; i < s.size; ++i) ASSERT_NEAR(h.get(b * s.size + i), state[static_cast<std::size_t>(i)], 2e-5);
    for (i64 i = 0; lstm() && i < s.hidden; ++i)
      ASSERT_NEAR(c.get(b * s.hidden + i), cell[static_cast<std::size_t>(i)], 2e-5);
  }
};

constexpr RecurrentCell kCells[] = {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn_tanh,
                                    RecurrentCell::rnn_relu};

TEST(Recurrent, MatchesDoubleReference) {
  std::mt19937 rng(1);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::MatmulTable>())
    for (const RecurrentCell cell : kCells)
      for (const i64 hidden : {1, 2, 7, 16, 33, 129})
        for (const i64 batch : {1, 8, 9}) {
          ++variant;
          Sizes s{1 + variant % 3, batch, 1 + variant % 19, hidden, hidden};
          if (cell == RecurrentCell::lstm && hidden > 1 && variant % 2 == 0) s.size = hidden / 2;
          Layer layer(cell, s, variant % 3 == 0, variant % 5 != 0, variant % 4 == 0, rng);
          SCOPED_TRACE(testing::Message() << simd::name(isa) << " cell " << static_cast<int>(cell) << " hidden "
                                          << hidden << " batch " << batch << " variant " << variant);
          layer.run(isa, 1 + variant % 3);
          for (i64 b = 0; b < batch; ++b) ASSERT_NO_FATAL_FAILURE(layer.expect_row(b));
        }
}

// Fewer rows than threads, and weights large enough that threads divide them.
TEST(Recurrent, ThreadsDoNotShowInTheBits) {
  std::mt19937 rng(2);
  for (const RecurrentCell cell : kCells)
    for (const i64 batch : {1, 3}) {
      Sizes s{3, batch, 150, 301, cell == RecurrentCell::lstm && batch == 3 ? 200 : 301};
      Layer layer(cell, s, false, true, false, rng);
      layer.run(simd::active_isa(), 1);
      ASSERT_NO_FATAL_FAILURE(layer.expect_row(batch - 1));
      const Layer one = layer;
      for (const int threads : {2, 5}) {
        layer.run(simd::active_isa(), threads);
        for (i64 i = 0; i < layer.y.elements(); ++i) ASSERT_EQ(layer.y.get(i), one.y.get(i)) << threads;
      }
    }
}

}  // namespace
}  // namespace graft
