#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "op/operator.h"

// Operators whose results, or their sizes, are known only from data, so that no plan can contain them. They run on the
// host between plans and cut their method into segments (src/pass/graph/partition.h).
namespace graft {

// Input or output of a host operator: contiguous, on the CPU, in the caller's memory.
struct HostValue {
  bool is_tensor = false;
  TensorView tensor;
  Scalar scalar;
};

// A node with the values of its arguments in this run.
class HostCall {
 public:
  // `value` gives the value of an id; `allocate` memory for a tensor output of the node.
  HostCall(const ir::Op& op, const ir::Node& node, std::span<const ir::Value> results,
           const std::function<HostValue(ir::ValueId)>& value,
           const std::function<void*(std::size_t output, DType dtype, const Shape& shape)>& allocate)
      : op_(op), node_(node), results_(results), value_(value), allocate_(allocate) {}

  // These throw InvalidProgram if the argument is of another kind.
  TensorView tensor(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const { return integer(name) != 0; }

  std::string_view target() const { return op_.target; }
  // Memory for output `i`, never null. Throws InvalidProgram for a dtype or rank that the program does not declare,
  // InvalidArgument for a size outside its range, which means data that the program was not made for.
  std::byte* make(std::size_t i, DType dtype, const Shape& shape);
  void set(std::size_t i, const Scalar& scalar);
  // By output, after the run.
  const std::vector<HostValue>& outputs() const { return outputs_; }

 private:
  const ir::Arg& arg(std::string_view name) const;

  const ir::Op& op_;
  const ir::Node& node_;
  std::span<const ir::Value> results_;
  const std::function<HostValue(ir::ValueId)>& value_;
  const std::function<void*(std::size_t output, DType dtype, const Shape& shape)>& allocate_;
  std::vector<HostValue> outputs_ = std::vector<HostValue>(node_.outputs.size());
};

struct HostOperator {
  std::string_view target;
  Refusal (*refuse)(const NodeView&);
  void (*run)(HostCall&);
};

// nullptr if there is no such operator.
const HostOperator* find_host_operator(std::string_view target);
std::span<const HostOperator> host_operators();

// Nodes that call sub-graphs: "higher_order.cond" (predicate, graph, graph, operands) and "higher_order.while_loop"
// (graph, graph, carried operands, other operands).
inline constexpr std::string_view kCond = "higher_order.cond";
inline constexpr std::string_view kWhileLoop = "higher_order.while_loop";
// Whether it is one of these or a host operator: not part of a plan.
bool runs_between_plans(std::string_view target);
// Empty if the node's sub-graphs fit its operands and results and every node in them is accepted.
Refusal refuse_control_flow(const NodeView& node);

}  // namespace graft
