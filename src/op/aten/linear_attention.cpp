// Linear attention and the convolutions before it: graft.gated_delta_rule, graft.selective_scan, graft.diagonal_scan,
// graft.wkv and graft.causal_conv1d (python/graft/llm/recurrence.py), and what src/pass/graph/kv_cache.cpp makes of
// those with a cache.
#include "kernel/recurrent/linear_attention.h"

#include <array>

#include "base/check.h"
#include "kernel/recurrent/causal_conv.h"
#include "kernel/recurrent/channel_scan.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

// How kernels read an operand: with any strides, its last dimension contiguous where it has four, always, or all of it.
enum class Read : std::uint8_t { strided, rows, whole };
struct Operand {
  std::string_view name;
  int rank, other_rank;  // either
  Read read = Read::strided;
};
constexpr std::array<Operand, 6> kDelta = {
    {{"query", 4, 4}, {"key", 4, 4}, {"value", 4, 4}, {"decay", 3, 4}, {"beta", 3, 3}, {"state", 4, 4, Read::whole}}};
constexpr std::array<Operand, 6> kScan = {
    {{"x", 4, 4}, {"dt", 3, 3}, {"a", 2, 2, Read::rows}, {"b", 4, 4}, {"c", 4, 4}, {"state", 4, 4, Read::whole}}};
constexpr std::array<Operand, 3> kDiagonalOperands = {
    {{"x", 3, 3, Read::rows}, {"decay", 3, 3, Read::rows}, {"state", 2, 2, Read::whole}}};
constexpr std::array<Operand, 5> kWkvOperands = {{{"log_decay", 1, 1, Read::whole},
                                                  {"bonus", 1, 1, Read::whole},
                                                  {"key", 3, 3, Read::rows},
                                                  {"value", 3, 3, Read::rows},
                                                  {"state", 3, 3, Read::whole}}};

// Those of the operators with a cache.
constexpr std::span<const Operand> without_state(std::span<const Operand> operands) {
  return operands.first(operands.size() - 1);
}

Refusal refuse_operands(const NodeView& node, std::span<const Operand> operands) {
  for (const Operand& operand : operands) {
    const ir::Value& value = node.tensor(operand.name);
    if (value.rank() != operand.rank && value.rank() != operand.other_rank)
      return str(operand.name, " has rank ", value.rank(), ", expected ", operand.rank);
    if (value.dtype != DType::f32) return str(operand.name, " is ", name(value.dtype), ", expected f32");
  }
  return {};
}

template <const auto& operands>
Refusal refuse(const NodeView& node) {
  return refuse_operands(node, operands);
}

// Of the arguments that operators with a cache have besides.
Refusal refuse_cache(const NodeView& node) {
  const ir::Value& position = node.tensor("cache_position");
  if (position.dtype != DType::i64 || position.rank() != 2) return str("cache_position is ", position.str());
  for (const std::string_view argument : {"layer", "index"})
    if (const auto value = node.constant(argument); !value || *value < 0)
      return str(argument, " must be known at export and not negative");
  return {};
}

template <const auto& operands>
Refusal refuse_cached(const NodeView& node) {
  const Refusal refusal = refuse_operands(node, without_state(operands));
  return refusal.empty() ? refuse_cache(node) : refusal;
}

Refusal refuse_conv(const NodeView& node) {
  constexpr Operand kOperands[] = {{"x", 3, 3}, {"weight", 2, 2}};
  if (const Refusal refusal = refuse_operands(node, kOperands); !refusal.empty()) return refusal;
  if (node.has("bias") && (node.tensor("bias").dtype != DType::f32 || node.tensor("bias").rank() != 1))
    return str("bias is ", node.tensor("bias").str(), ", expected f32 [C]");
  if (!node.constant("silu")) return "silu must be known at export";
  return refuse_cache(node);
}

void check_size(std::string_view what, const Shape& found, const Shape& expected) {
  GRAFT_CHECK(InvalidArgument, found == expected, what, " has size ", found.str(), ", expected ", expected.str());
}

void check_groups(std::string_view what, std::int64_t groups, std::int64_t heads) {
  GRAFT_CHECK(InvalidArgument, groups > 0 ? heads % groups == 0 : heads == 0, what, " has ", groups,
              " heads, expected a divisor of ", heads);
}

std::vector<Shape> cached_delta_shape(const Call& call) {
  const Shape &value = call.tensor("value").shape(), &key = call.tensor("key").shape();
  const std::int64_t batch = value[0], steps = value[1], heads = value[2];
  check_size("key", key, {batch, steps, key[2], key[3]});
  check_size("query", call.tensor("query").shape(), key);
  check_groups("key", key[2], heads);
  const Shape& decay = call.tensor("decay").shape();
  check_size("decay", decay, decay.rank() == 3 ? Shape{batch, steps, heads} : Shape{batch, steps, heads, key[3]});
  check_size("beta", call.tensor("beta").shape(), {batch, steps, heads});
  return {value};
}

std::vector<Shape> delta_shape(const Call& call) {
  std::vector<Shape> shapes = cached_delta_shape(call);
  const Shape &value = shapes[0], state = {value[0], value[2], call.tensor("key").size(3), value[3]};
  check_size("state", call.tensor("state").shape(), state);
  shapes.push_back(state);
  return shapes;
}

std::vector<Shape> cached_scan_shape(const Call& call) {
  const Shape &x = call.tensor("x").shape(), &b = call.tensor("b").shape(), &a = call.tensor("a").shape();
  check_size("dt", call.tensor("dt").shape(), {x[0], x[1], x[2]});
  check_size("b", b, {x[0], x[1], b[2], b[3]});
  check_size("c", call.tensor("c").shape(), b);
  check_groups("b", b[2], x[2]);
  check_size("a", a, {x[2], a[1] == 1 ? 1 : b[3]});
  return {x};
}

std::vector<Shape> scan_shape(const Call& call) {
  std::vector<Shape> shapes = cached_scan_shape(call);
  const Shape &x = shapes[0], state = {x[0], x[2], x[3], call.tensor("b").size(3)};
  check_size("state", call.tensor("state").shape(), state);
  shapes.push_back(state);
  return shapes;
}

std::vector<Shape> cached_diagonal_shape(const Call& call) {
  const Shape& x = call.tensor("x").shape();
  check_size("decay", call.tensor("decay").shape(), x);
  return {x};
}

std::vector<Shape> diagonal_shape(const Call& call) {
  std::vector<Shape> shapes = cached_diagonal_shape(call);
  const Shape state = {shapes[0][0], shapes[0][2]};
  check_size("state", call.tensor("state").shape(), state);
  shapes.push_back(state);
  return shapes;
}

std::vector<Shape> cached_wkv_shape(const Call& call) {
  const Shape& key = call.tensor("key").shape();
  check_size("value", call.tensor("value").shape(), key);
  for (const std::string_view name : {"log_decay", "bonus"}) check_size(name, call.tensor(name).shape(), {key[2]});
  return {key};
}

std::vector<Shape> wkv_shape(const Call& call) {
  std::vector<Shape> shapes = cached_wkv_shape(call);
  const Shape state = {shapes[0][0], 3, shapes[0][2]};
  check_size("state", call.tensor("state").shape(), state);
  shapes.push_back(state);
  return shapes;
}

std::vector<Shape> conv_shape(const Call& call) {
  const Shape &x = call.tensor("x").shape(), &weight = call.tensor("weight").shape();
  GRAFT_CHECK(InvalidArgument, weight[0] >= 1 && weight[1] == x[2], "weight has size ", weight.str(),
              ", expected taps by the channels of x ", x.str());
  if (call.has("bias")) check_size("bias", call.tensor("bias").shape(), {x[2]});
  return {x};
}

std::vector<Tensor> inputs_of(const Call& call, std::span<const Operand> operands, Lowering& lowering) {
  std::vector<Tensor> inputs;
  for (const Operand& operand : operands) {
    const Tensor& tensor = call.tensor(operand.name);
    const bool by_rows = operand.read == Read::rows || tensor.rank() == 4;
    inputs.push_back(operand.read == Read::whole ? lowering.contiguous(tensor)
                     : by_rows                   ? lowering.with_contiguous_rows(tensor)
                                                 : tensor);
  }
  return inputs;
}

std::vector<Tensor> launch(const Kernel& kernel, std::span<const Operand> operands, const Call& call,
                           std::span<const Shape> shapes, std::int64_t scratch, Lowering& lowering) {
  std::vector<Tensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(lowering.allocate(DType::f32, shape));
  const Tensor& state = call.tensor("state");
  if (outputs[0].numel() == 0) {  // no steps, or nothing in them
    if (state.numel() != 0) lowering.copy(state, outputs[1]);
    return outputs;
  }
  if (state.numel() == 0) return {lowering.full(DType::f32, shapes[0], Scalar::of(0.0)), outputs[1]};
  lowering.launch(kernel, inputs_of(call, operands, lowering), outputs, std::int64_t{0}, scratch);
  return outputs;
}

// `inputs`: those before the operands of the cache.
template <typename Attrs>
std::vector<Tensor> launch_cached(const Kernel& kernel, std::vector<Tensor> inputs, const Call& call,
                                  std::span<const Shape> shapes, const Attrs& attrs, std::int64_t scratch,
                                  Lowering& lowering) {
  const Tensor &position = call.tensor("cache_position"), &state = call.tensor("state");
  check_size("cache_position", position.shape(), {shapes[0][0], shapes[0][1]});
  GRAFT_CHECK(InvalidArgument, shapes[0][0] <= state.size(0), "a batch of ", shapes[0][0],
              " needs as many rows of the cache, the session has ", state.size(0));
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  if (out.numel() == 0) return {out};
  inputs.push_back(lowering.contiguous(position));
  inputs.push_back(call.tensor("half"));
  lowering.launch(kernel, std::move(inputs), {out, state}, attrs, scratch);
  return {out};
}

std::int64_t delta_scratch(const Call& call, const Lowering& lowering) {
  return gated_delta_scratch_bytes(call.tensor("key").size(3), lowering.max_tasks());
}
std::int64_t scan_scratch(const Call& call, const Lowering& lowering) {
  return selective_scan_scratch_bytes(call.tensor("x").size(1), lowering.max_tasks());
}

std::vector<Tensor> lower_delta(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch(kGatedDelta, kDelta, call, shapes, delta_scratch(call, lowering), lowering);
}

std::vector<Tensor> lower_scan(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch(kSelectiveScan, kScan, call, shapes, scan_scratch(call, lowering), lowering);
}

std::vector<Tensor> lower_cached_delta(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch_cached(kCachedGatedDelta, inputs_of(call, without_state(kDelta), lowering), call, shapes,
                       std::int64_t{0}, delta_scratch(call, lowering), lowering);
}

std::vector<Tensor> lower_cached_scan(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch_cached(kCachedSelectiveScan, inputs_of(call, without_state(kScan), lowering), call, shapes,
                       std::int64_t{0}, scan_scratch(call, lowering), lowering);
}

template <const Kernel& kernel, const auto& operands>
std::vector<Tensor> lower_channels(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch(kernel, operands, call, shapes, 0, lowering);
}

template <const Kernel& kernel, const auto& operands>
std::vector<Tensor> lower_cached_channels(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch_cached(kernel, inputs_of(call, without_state(operands), lowering), call, shapes, std::int64_t{0}, 0,
                       lowering);
}

std::vector<Tensor> lower_cached_conv(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  CausalConvAttrs attrs;
  attrs.silu = call.boolean("silu") ? 1 : 0;
  std::vector<Tensor> inputs = {lowering.with_contiguous_rows(call.tensor("x")),
                                lowering.contiguous(call.tensor("weight"))};
  if (call.has("bias")) {
    attrs.has_bias = 1;
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
  }
  return launch_cached(kCachedCausalConv, std::move(inputs), call, shapes, attrs, 0, lowering);
}

std::vector<Tensor> lower_without_cache(const Call& call, std::span<const Shape>, Lowering&) {
  throw InvalidProgram(str(call.target(), " is run with the cache that loading gives it"));
}

}  // namespace

std::span<const Operator> linear_attention_operators() {
  static constexpr Operator kTable[] = {
      {"graft.gated_delta_rule.default", refuse<kDelta>, delta_shape, lower_delta, true},
      {"graft.gated_delta_rule.cached", refuse_cached<kDelta>, cached_delta_shape, lower_without_cache, true},
      {"graft.cached_gated_delta_rule", refuse_cached<kDelta>, cached_delta_shape, lower_cached_delta},
      {"graft.selective_scan.default", refuse<kScan>, scan_shape, lower_scan, true},
      {"graft.selective_scan.cached", refuse_cached<kScan>, cached_scan_shape, lower_without_cache, true},
      {"graft.cached_selective_scan", refuse_cached<kScan>, cached_scan_shape, lower_cached_scan},
      {"graft.diagonal_scan.default", refuse<kDiagonalOperands>, diagonal_shape,
       lower_channels<kDiagonalScan, kDiagonalOperands>, true},
      {"graft.diagonal_scan.cached", refuse_cached<kDiagonalOperands>, cached_diagonal_shape, lower_without_cache,
       true},
      {"graft.cached_diagonal_scan", refuse_cached<kDiagonalOperands>, cached_diagonal_shape,
       lower_cached_channels<kCachedDiagonalScan, kDiagonalOperands>},
      {"graft.wkv.default", refuse<kWkvOperands>, wkv_shape, lower_channels<kWkv, kWkvOperands>, true},
      {"graft.wkv.cached", refuse_cached<kWkvOperands>, cached_wkv_shape, lower_without_cache, true},
      {"graft.cached_wkv", refuse_cached<kWkvOperands>, cached_wkv_shape,
       lower_cached_channels<kCachedWkv, kWkvOperands>},
      {"graft.causal_conv1d.default", refuse_conv, conv_shape, lower_without_cache, true},
      {"graft.cached_causal_conv1d", refuse_conv, conv_shape, lower_cached_conv},
  };
  return kTable;
}

}  // namespace graft
