// Batch and instance normalization, with given statistics or with those of the input.
#include <array>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernel/norm/norm.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

// Variants of the operators of this family.
enum class Form {
  given,     // no training argument
  flagged,   // "training"
  stats,     // "training", without arguments for given statistics
  instance,  // "use_input_stats": of each sample, not of all
};

template <Form form>
constexpr std::string_view kFlag = form == Form::instance ? "use_input_stats" : "training";

template <Form form, typename View>
bool has_given(const View& view) {
  if constexpr (form == Form::stats) return false;
  return view.has("running_mean") && view.has("running_var");
}

template <Form form>
Refusal refuse_batch_norm(const NodeView& node) {
  const ir::Value& input = node.tensor("input");
  if (!is_float(input.dtype)) return str("input is ", name(input.dtype), ", expected a floating-point dtype");
  if (input.rank() < 2) return "input has less than two dimensions";
  for (const std::string_view argument : {"weight", "bias", "running_mean", "running_var"}) {
    if (form == Form::stats && argument.starts_with("running")) continue;
    if (!node.has(argument)) continue;
    const DType found = node.tensor(argument).dtype;
    if (!is_float(found) || (found == DType::f64 && input.dtype != DType::f64))
      return str(argument, " is ", name(found), " but input is ", name(input.dtype));
  }
  if (node.output().dtype != input.dtype)
    return str("the output is ", name(node.output().dtype), " but input is ", name(input.dtype));
  const bool given = has_given<form>(node);
  bool of_input = false;
  if constexpr (form != Form::given) {
    const std::optional<std::int64_t> flag = node.constant(kFlag<form>);
    if (!flag) return str(kFlag<form>, " is computed in the graph");
    of_input = *flag != 0;
  }
  if (of_input && given) return "training changes running_mean and running_var";
  if (!of_input && !given) return "needs running_mean and running_var";
  if (node.output_count() > 3) return str(node.output_count(), " outputs, expected 3 at most");
  for (std::size_t i = 1; i < node.output_count(); ++i)
    if (!is_float(node.output(i).dtype)) return str("output ", i, " is ", name(node.output(i).dtype));
  return {};
}

template <Form form>
std::vector<Shape> batch_norm_shape(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  for (const std::string_view argument : {"weight", "bias", "running_mean", "running_var"}) {
    if (form == Form::stats && argument.starts_with("running")) continue;
    if (!call.has(argument)) continue;
    const Shape& found = call.tensor(argument).shape();
    GRAFT_CHECK(InvalidArgument, found == Shape{input[1]}, argument, " has size ", found.str(), ", expected [",
                input[1], "]");
  }
  std::vector<Shape> shapes(call.output_count(), has_given<form>(call) ? Shape{0} : Shape{input[1]});
  shapes[0] = input;
  return shapes;
}

// Appends weight and bias where present.
void add_affine(const Call& call, Lowering& lowering, std::vector<Tensor>& inputs, NormAttrs& attrs) {
  if (call.has("weight")) {
    inputs.push_back(lowering.contiguous(call.tensor("weight")));
    attrs.has_weight = 1;
  }
  if (call.has("bias")) {
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
    attrs.has_bias = 1;
  }
}

// [N, C, ...] with its first two dimensions swapped.
Tensor exchanged(const Tensor& tensor) {
  std::array<int, static_cast<std::size_t>(kMaxRank)> dims{};
  for (int d = 0; d < tensor.rank(); ++d) dims[static_cast<std::size_t>(d)] = d;
  std::swap(dims[0], dims[1]);
  return permuted(tensor, {dims.data(), static_cast<std::size_t>(tensor.rank())});
}

template <Form form>
std::vector<Tensor> lower_batch_norm(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) outputs.push_back(lowering.allocate(call.output_dtype(i), shapes[i]));
  Tensor input = call.tensor("input");
  NormAttrs attrs;
  attrs.eps = call.real("eps");
  attrs.channels = input.size(1);
  attrs.inner = 1;
  for (int d = 2; d < input.rank(); ++d) attrs.inner *= input.size(d);
  if (has_given<form>(call)) {
    if (input.numel() == 0) return outputs;
    std::vector<Tensor> inputs = {lowering.contiguous(input), lowering.contiguous(call.tensor("running_mean")),
                                  lowering.contiguous(call.tensor("running_var"))};
    add_affine(call, lowering, inputs, attrs);
    lowering.launch(kBatchNorm, std::move(inputs), {outputs[0]}, attrs, 0, 1u);
    return outputs;
  }
  // Statistics of the input: a group norm with one group per channel, after making each channel's samples adjacent.
  const bool together = form != Form::instance && input.size(0) != 1;
  if (together) {
    attrs.inner *= input.size(0);
    input = exchanged(input);
  }
  attrs.row = attrs.inner;
  std::vector<Tensor> inputs = {lowering.contiguous(input)};
  add_affine(call, lowering, inputs, attrs);
  std::vector<Tensor> results = outputs;
  if (together) results[0] = lowering.allocate(outputs[0].dtype(), input.shape());
  lowering.launch(kGroupNorm, std::move(inputs), results, attrs);
  if (together) lowering.copy(exchanged(results[0]), outputs[0]);
  return outputs;
}

template <Form form>
constexpr Operator batch_norm_operator(std::string_view target, bool preserve = false) {
  return {target, refuse_batch_norm<form>, batch_norm_shape<form>, lower_batch_norm<form>, preserve};
}

}  // namespace

std::span<const Operator> batch_norm_operators() {
  static constexpr Operator kOperators[] = {
      batch_norm_operator<Form::flagged>("aten.batch_norm.default", true),
      batch_norm_operator<Form::flagged>("aten.native_batch_norm.default"),
      batch_norm_operator<Form::given>("aten._native_batch_norm_legit_no_training.default"),
      batch_norm_operator<Form::stats>("aten._native_batch_norm_legit.no_stats"),
      batch_norm_operator<Form::instance>("aten.instance_norm.default", true),
  };
  return kOperators;
}

}  // namespace graft
