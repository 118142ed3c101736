// Two operators that example.py defines with torch.library, for graft. docs/custom-operators.md explains them.
#include <graft/error.h>
#include <graft/op.h>

#include <cmath>
#include <stdexcept>

namespace {

// example::soft_shrink(Tensor x, float threshold=0.5) -> Tensor
graft::OpDefinition soft_shrink() {
  graft::OpDefinition op;
  op.target = "example.soft_shrink.default";
  op.refuse = [](const graft::OpNode& node) -> std::string {
    return node.dtype("x") == graft::DType::f32 ? "" : "x must be f32";
  };
  op.shape = [](const graft::OpCall& call) { return std::vector<graft::Shape>{call.shape("x")}; };
  op.parallel = true;
  op.run = [](const graft::OpRun& run) {
    const auto threshold = static_cast<float>(run.numbers[0].real);
    const auto* x = static_cast<const float*>(run.inputs[0].data);
    auto* y = static_cast<float*>(run.outputs[0].data);
    const std::int64_t n = run.outputs[0].shape.numel();
    for (std::int64_t i = n * run.task / run.tasks; i < n * (run.task + 1) / run.tasks; ++i)
      y[i] = std::copysign(std::fmax(std::fabs(x[i]) - threshold, 0.0f), x[i]);
  };
  return op;
}

// example::runs(Tensor[] parts, int[] counts) -> (Tensor, Tensor): row i of the first result is counts[i] times the sum
// of parts[i], in the second is the row's largest element.
graft::OpDefinition runs() {
  graft::OpDefinition op;
  op.target = "example.runs.default";
  op.shape = [](const graft::OpCall& call) {
    const auto rows = static_cast<std::int64_t>(call.integers("counts").size());
    return std::vector<graft::Shape>{graft::Shape{rows}, graft::Shape{rows}};
  };
  op.run = [](const graft::OpRun& run) {
    auto* sums = static_cast<float*>(run.outputs[0].data);
    auto* largest = static_cast<float*>(run.outputs[1].data);
    for (std::size_t i = 0; i < run.inputs.size(); ++i) {
      const auto* x = static_cast<const float*>(run.inputs[i].data);
      const std::int64_t n = run.inputs[i].shape.numel();
      if (n == 0) throw std::invalid_argument("part " + std::to_string(i) + " is empty");
      float sum = 0, most = x[0];
      for (std::int64_t k = 0; k < n; ++k) {
        sum += x[k];
        most = std::fmax(most, x[k]);
      }
      sums[i] = sum * static_cast<float>(run.numbers[i].integer);
      largest[i] = most;
    }
  };
  return op;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void graft_register_ops() {
  graft::register_op(soft_shrink());
  graft::register_op(runs());
}
