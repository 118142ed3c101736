#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "graft/dtype.h"
#include "kernel/elementwise/elementwise_vec.h"
#include "op/operator.h"

// PyTorch's rules for shapes and dtypes of elementwise operators, and their lowering.
namespace graft {

// Sizes after broadcasting. Throws InvalidArgument, worded as PyTorch's, when they do not broadcast.
Shape broadcast_shapes(const Shape& a, const Shape& b);

// The dtype that holds both: torch.promote_types.
DType promote_types(DType a, DType b);

// torch.result_type over any number of operands: tensors with dimensions decide before 0-d tensors, and these before
// Python numbers, unless the later one is of a higher category (bool < integer < float).
class ResultType {
 public:
  void add_tensor(DType dtype, int rank);
  void add_number(ir::ValueKind kind);
  DType dtype() const;

 private:
  struct Slot {
    bool any = false;
    DType dtype = DType::b8;
    void add(DType other);
  };
  static Slot combined(const Slot& higher, const Slot& lower);
  Slot dimensioned_, zero_dim_, numbers_;
};

// Whether aten.index and aten.index_put treat an index of this dtype as a mask: bool, or bytes, as PyTorch still
// allows.
constexpr bool is_mask(DType index) { return index == DType::b8 || index == DType::u8; }

// Whether aten.index_put takes its values in the order of the mask's true positions, without computing a list of these:
// for a single index, a mask of bools.
constexpr bool is_masked_put(std::size_t indices, DType first) { return indices == 1 && first == DType::b8; }

// The argument as a tensor or number.
Binding operand(const Call& call, std::string_view name);
DType result_type(std::span<const Binding> operands);
// The same over arguments of a node that is not planned yet; None and missing ones are ignored.
DType result_type(const NodeView& node, std::span<const std::string_view> names);

// One launch of the elementwise kernel; operators composed of such functions use it too.
struct Elementwise {
  simd::ElementwiseOp op{};
  DType compute = DType::f32;  // operands are converted to it first, as PyTorch casts to the common dtype
  DType output = DType::f32;
  std::array<simd::Number, 3> params{};
  // f16 and bf16: numbers and 0-d operands keep float precision (PyTorch's "opmath" of add, sub, mul, div).
  bool opmath = false;
};
// `shape` is the operands' broadcast shape.
Tensor emit(Lowering& lowering, const Elementwise& what, std::span<const Binding> operands, const Shape& shape);

// A number converted to a dtype: integers wrap, floats round, bool is "not zero". Both members hold the value.
simd::Number number_of(const Scalar& scalar, DType dtype);

// Empty if the elementwise kernel has the function for operands of that dtype.
Refusal refuse_elementwise(simd::ElementwiseOp op, DType compute);
// Empty if the tensor has at most kMaxRank dimensions.
Refusal refuse_rank_of(const ir::Value& value);

// --- declarative operators ---

// How an operator's operands are converted before the function runs.
enum class ComputeRule {
  output,    // to the output's dtype
  promoted,  // to the operands' result type (comparisons)
  logical,   // to bool
};

// An operator that is one function of its operands.
struct ElementwiseSpec {
  simd::ElementwiseOp op{};
  std::array<std::string_view, 3> operands{};
  ComputeRule rule = ComputeRule::output;
  void (*params)(const Call&, simd::Number*) = nullptr;  // nullptr: params are {1}, {0}, {0}
  bool opmath = false;
};

Refusal refuse_spec(const ElementwiseSpec& spec, const NodeView& node);
std::vector<Shape> shape_of_spec(const ElementwiseSpec& spec, const Call& call);
std::vector<Tensor> lower_spec(const ElementwiseSpec& spec, const Call& call, std::span<const Shape> shapes,
                               Lowering& lowering);

// The table entry; `kSpec` must be a constant of namespace scope.
template <const ElementwiseSpec& kSpec>
constexpr Operator elementwise_operator(std::string_view target, bool preserve = false) {
  return {target, [](const NodeView& node) { return refuse_spec(kSpec, node); },
          [](const Call& call) { return shape_of_spec(kSpec, call); },
          [](const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
            return lower_spec(kSpec, call, shapes, lowering);
          },
          preserve};
}

// Shape rule of an operator with one output, of the size of argument "self".
std::vector<Shape> shape_of_self(const Call& call);

}  // namespace graft
