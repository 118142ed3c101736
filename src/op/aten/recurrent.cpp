// Recurrent nets, kept whole: sequences (torch.nn.LSTM, GRU, RNN) and single steps (LSTMCell, GRUCell, RNNCell).
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernel/recurrent/recurrent.h"
#include "lowering/lowering.h"
#include "op/aten/linear.h"
#include "op/aten/view.h"
#include "op/operator.h"

namespace graft {
namespace {

// --- predicates ---

// Other dtypes and empty matrices are decomposed.
Refusal refuse_value(std::string_view what, const ir::Value* value, int rank) {
  if (value == nullptr) return str(what, " holds None");
  if (value->dtype != DType::f32) return str(what, " is ", name(value->dtype), ", expected f32");
  if (value->rank() != rank) return str(what, " has rank ", value->rank(), ", expected ", rank);
  return {};
}

Refusal refuse_weight(std::string_view what, const ir::Value* value, int rank) {
  if (Refusal r = refuse_value(what, value, rank); !r.empty()) return r;
  for (const ir::Dim& dim : value->dims)
    if (dim.min != dim.max || dim.min < 1) return str(what, " is ", value->str(), ", expected sizes of at least 1");
  return {};
}

Refusal refuse_input(const NodeView& node, int rank) {
  if (Refusal r = refuse_value("input", &node.tensor("input"), rank); !r.empty()) return r;
  for (std::size_t i = 0; i < node.output_count(); ++i)
    if (node.output(i).dtype != DType::f32) return str("output ", i, " is ", name(node.output(i).dtype));
  return {};
}

Refusal refuse_states(const NodeView& node, int rank) {
  const bool list = node.arg("hx").kind == ir::Arg::Kind::list;
  const std::vector<const ir::Value*> states =
      list ? node.tensors("hx") : std::vector<const ir::Value*>{&node.tensor("hx")};
  for (const ir::Value* state : states)
    if (Refusal r = refuse_value("hx", state, rank); !r.empty()) return r;
  return {};
}

Refusal refuse_cell(const NodeView& node) {
  if (Refusal r = refuse_input(node, 2); !r.empty()) return r;
  if (Refusal r = refuse_states(node, 2); !r.empty()) return r;
  for (const std::string_view weight : {"w_ih", "w_hh"})
    if (Refusal r = refuse_weight(weight, &node.tensor(weight), 2); !r.empty()) return r;
  if (node.has("b_ih") != node.has("b_hh")) return "one of b_ih and b_hh alone";
  for (const std::string_view bias : {"b_ih", "b_hh"})
    if (node.has(bias))
      if (Refusal r = refuse_weight(bias, &node.tensor(bias), 1); !r.empty()) return r;
  return {};
}

Refusal refuse_sequence(const NodeView& node) {
  if (Refusal r = refuse_input(node, 3); !r.empty()) return r;
  if (Refusal r = refuse_states(node, 3); !r.empty()) return r;
  for (const ir::Value* weight : node.tensors("params"))
    if (Refusal r = refuse_weight("params", weight, weight != nullptr && weight->rank() == 1 ? 1 : 2); !r.empty())
      return r;
  if (node.constant("train").value_or(1) != 0) return "it is in training: dropout is not for running";
  return {};
}

// --- one direction of one layer ---

struct Weights {
  Tensor w_ih, w_hh;
  std::optional<Tensor> b_ih, b_hh, w_hr;
};

struct States {
  Tensor h;
  std::optional<Tensor> c;
};

template <RecurrentCell cell>
States states_of(const Call& call) {
  if constexpr (cell != RecurrentCell::lstm) return {call.tensor("hx"), {}};
  const std::vector<Tensor> states = call.tensors("hx");
  GRAFT_CHECK(InvalidArgument, states.size() == 2, "hx: expected two states, found ", states.size());
  return {states[0], states[1]};
}

void check_size(std::string_view what, const Shape& found, const Shape& expected) {
  GRAFT_CHECK(InvalidArgument, found == expected, what, " has size ", found.str(), ", expected ", expected.str());
}

// For x [T, B, I], with weights and states of the cell.
void check_layer(RecurrentCell cell, const Shape& x, const Weights& w, const States& states) {
  const std::int64_t gates = w.w_ih.size(0), hidden = gates / gate_count(cell);
  const std::int64_t size = w.w_hr ? w.w_hr->size(0) : hidden;
  check_size("W_ih", w.w_ih.shape(), {gate_count(cell) * hidden, x[2]});
  check_size("W_hh", w.w_hh.shape(), {gates, size});
  for (const std::optional<Tensor>& bias : {w.b_ih, w.b_hh})
    if (bias) check_size("a bias", bias->shape(), {gates});
  if (w.w_hr) check_size("W_hr", w.w_hr->shape(), {size, hidden});
  check_size("h of hx", states.h.shape(), {x[1], size});
  if (states.c) check_size("c of hx", states.c->shape(), {x[1], hidden});
}

// W x + b of all steps as one product, whose rows are in the memory order of x's.
Tensor gates_of(const Tensor& x, const Weights& w, Lowering& lowering) {
  const std::int64_t rows = x.size(0) * x.size(1), gates = w.w_ih.size(0);
  const Tensor batch_first = permuted(x, std::array{1, 0, 2});
  const bool swapped = !try_reshape(x, {rows, x.size(2)}) && try_reshape(batch_first, {rows, x.size(2)});
  const Tensor& from = swapped ? batch_first : x;
  std::optional<Tensor> a = try_reshape(from, {rows, x.size(2)});
  if (!a) a = try_reshape(lowering.contiguous(from), {rows, x.size(2)});
  const Tensor out = lowering.allocate(DType::f32, {from.size(0), from.size(1), gates});
  launch_linear(*a, w.w_ih, w.b_ih, *try_reshape(out, {rows, gates}), lowering);
  return swapped ? permuted(out, std::array{1, 0, 2}) : out;
}

// x [T, B, I] to y [T, B, P]; `last` are the states after the last step: h only if it is needed besides y.
void launch_layer(RecurrentCell cell, bool reverse, const Tensor& x, const Weights& w, const States& states,
                  const Tensor& y, const std::optional<Tensor>& last_h, const std::optional<Tensor>& last_c,
                  Lowering& lowering) {
  if (y.numel() == 0) return;
  RecurrentAttrs attrs;
  attrs.cell = cell;
  attrs.reverse = reverse ? 1 : 0;
  attrs.has_bias = w.b_hh ? 1 : 0;
  attrs.has_projection = w.w_hr ? 1 : 0;
  attrs.has_last = last_h ? 1 : 0;
  attrs.from_gates = x.size(0) * x.size(1) > simd::kMaxDotRows ? 1 : 0;
  std::vector<Tensor> inputs = {attrs.from_gates != 0 ? gates_of(x, w, lowering) : lowering.with_contiguous_rows(x),
                                lowering.with_contiguous_rows(states.h), lowering.with_contiguous_rows(w.w_hh)};
  if (states.c) inputs.push_back(lowering.with_contiguous_rows(*states.c));
  if (w.b_hh) inputs.push_back(lowering.contiguous(*w.b_hh));
  if (attrs.from_gates == 0) {
    inputs.push_back(lowering.with_contiguous_rows(w.w_ih));
    if (w.b_ih) inputs.push_back(lowering.contiguous(*w.b_ih));
  }
  if (w.w_hr) inputs.push_back(lowering.with_contiguous_rows(*w.w_hr));
  std::vector<Tensor> outputs = {y};
  if (last_c) outputs.push_back(*last_c);
  if (last_h) outputs.push_back(*last_h);
  const std::int64_t hidden = w.w_ih.size(0) / gate_count(cell);
  lowering.launch(kRecurrent, std::move(inputs), std::move(outputs), attrs,
                  recurrent_scratch_bytes(attrs, x.size(1), hidden));
}

// --- cells ---

Weights cell_weights(const Call& call) {
  return {call.tensor("w_ih"), call.tensor("w_hh"), call.optional_tensor("b_ih"), call.optional_tensor("b_hh"), {}};
}

template <RecurrentCell cell>
std::vector<Shape> cell_shape(const Call& call) {
  const Shape& x = call.tensor("input").shape();
  const States states = states_of<cell>(call);
  check_layer(cell, {1, x[0], x[1]}, cell_weights(call), states);
  std::vector<Shape> shapes = {states.h.shape()};
  if (states.c) shapes.push_back(states.c->shape());
  return shapes;
}

template <RecurrentCell cell>
std::vector<Tensor> lower_cell(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  std::vector<Tensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(lowering.allocate(DType::f32, shape));
  const Tensor& x = call.tensor("input");
  launch_layer(cell, false, *try_reshape(x, {1, x.size(0), x.size(1)}), cell_weights(call), states_of<cell>(call),
               *try_reshape(outputs[0], {1, shapes[0][0], shapes[0][1]}), {},
               outputs.size() > 1 ? std::optional(outputs[1]) : std::nullopt, lowering);
  return outputs;
}

// --- sequences ---

struct Net {
  std::int64_t layers = 0, directions = 1;
  bool batch_first = false;
  std::vector<Weights> weights;  // of each direction of each layer
  Tensor x;                      // [T, B, I]
  States first;                  // h [layers * directions, B, P], c [layers * directions, B, H]

  States states(std::int64_t i) const {
    return {selected(first.h, 0, i), first.c ? std::optional(selected(*first.c, 0, i)) : std::nullopt};
  }
};

template <RecurrentCell cell>
Net net_of(const Call& call) {
  Net net;
  net.layers = call.integer("num_layers");
  net.directions = call.boolean("bidirectional") ? 2 : 1;
  net.batch_first = call.boolean("batch_first");
  const bool biases = call.boolean("has_biases");
  const std::vector<Tensor> params = call.tensors("params");
  const auto given = static_cast<std::int64_t>(params.size());
  const std::int64_t parts = net.layers > 0 && net.layers <= given ? net.layers * net.directions : 0;
  const std::size_t plain = biases ? 4 : 2;
  const std::size_t each = parts > 0 ? params.size() / static_cast<std::size_t>(parts) : 0;
  GRAFT_CHECK(InvalidArgument,
              parts > 0 && params.size() == each * static_cast<std::size_t>(parts) &&
                  (each == plain || (cell == RecurrentCell::lstm && each == plain + 1)),
              params.size(), " params do not fit ", net.layers, " layers in ", net.directions, " directions");
  for (std::size_t i = 0; i < params.size(); i += each) {
    Weights w{params[i], params[i + 1], {}, {}, {}};
    if (biases) w.b_ih = params[i + 2];
    if (biases) w.b_hh = params[i + 3];
    if (each > plain) w.w_hr = params[i + plain];
    net.weights.push_back(w);
  }
  net.x = call.tensor("input");
  if (net.batch_first) net.x = permuted(net.x, std::array{1, 0, 2});
  GRAFT_CHECK(InvalidArgument, net.x.size(0) > 0, "expected a sequence of at least one step");
  net.first = states_of<cell>(call);
  for (const std::optional<Tensor>& state : {std::optional(net.first.h), net.first.c})
    GRAFT_CHECK(InvalidArgument, !state || state->size(0) == parts, "hx has size ", state->shape().str(), ", expected ",
                parts, " states");
  return net;
}

std::int64_t output_size(const Weights& w) { return w.w_hh.size(1); }

template <RecurrentCell cell>
std::vector<Shape> sequence_shape(const Call& call) {
  const Net net = net_of<cell>(call);
  Shape x = net.x.shape();
  for (std::int64_t l = 0; l < net.layers; ++l) {
    for (std::int64_t d = 0; d < net.directions; ++d) {
      const std::int64_t i = l * net.directions + d;
      check_layer(cell, x, net.weights[static_cast<std::size_t>(i)], net.states(i));
    }
    x[2] = net.directions * output_size(net.weights[0]);
  }
  if (net.batch_first) std::swap(x[0], x[1]);
  std::vector<Shape> shapes = {x, net.first.h.shape()};
  if (net.first.c) shapes.push_back(net.first.c->shape());
  return shapes;
}

template <RecurrentCell cell>
std::vector<Tensor> lower_sequence(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Net net = net_of<cell>(call);
  std::vector<Tensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(lowering.allocate(DType::f32, shape));
  const std::int64_t size = output_size(net.weights[0]);
  Tensor x = net.x;
  for (std::int64_t l = 0; l < net.layers; ++l) {
    Tensor y;
    if (l + 1 < net.layers) {
      y = lowering.allocate(DType::f32, {x.size(0), x.size(1), net.directions * size});
    } else {
      y = net.batch_first ? permuted(outputs[0], std::array{1, 0, 2}) : outputs[0];
    }
    for (std::int64_t d = 0; d < net.directions; ++d) {
      const std::int64_t i = l * net.directions + d;
      std::optional<Tensor> last_c;
      if (net.first.c) last_c = selected(outputs[2], 0, i);
      launch_layer(cell, d == 1, x, net.weights[static_cast<std::size_t>(i)], net.states(i),
                   sliced(y, 2, d * size, size), selected(outputs[1], 0, i), last_c, lowering);
    }
    x = y;
  }
  return outputs;
}

template <RecurrentCell cell>
constexpr Operator cell_operator(std::string_view target) {
  return {target, refuse_cell, cell_shape<cell>, lower_cell<cell>, true};
}
template <RecurrentCell cell>
constexpr Operator sequence_operator(std::string_view target) {
  return {target, refuse_sequence, sequence_shape<cell>, lower_sequence<cell>, true};
}

}  // namespace

std::span<const Operator> recurrent_operators() {
  static constexpr Operator kOperators[] = {
      cell_operator<RecurrentCell::lstm>("aten.lstm_cell.default"),
      cell_operator<RecurrentCell::gru>("aten.gru_cell.default"),
      cell_operator<RecurrentCell::rnn_tanh>("aten.rnn_tanh_cell.default"),
      cell_operator<RecurrentCell::rnn_relu>("aten.rnn_relu_cell.default"),
      sequence_operator<RecurrentCell::lstm>("aten.lstm.input"),
      sequence_operator<RecurrentCell::gru>("aten.gru.input"),
      sequence_operator<RecurrentCell::rnn_tanh>("aten.rnn_tanh.input"),
      sequence_operator<RecurrentCell::rnn_relu>("aten.rnn_relu.input"),
  };
  return kOperators;
}

}  // namespace graft
