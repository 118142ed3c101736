#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/kernel.h"

// Iteration over operands of any strides, up to rank 8, for kernels that treat all elements alike.
namespace graft {

inline constexpr int kMaxOperands = 8;
// Below this many elements a second thread costs more than it saves.
inline constexpr std::int64_t kMinParallelElements = 8192;

// An iteration space with the byte strides of every operand. Dimensions are ordered so that operand 0 is written as
// sequentially as its strides allow, and merged where that is exact for every operand.
struct Walk {
  int rank = 1;  // at least 1
  int operands = 0;
  std::int64_t total = 0;  // elements; 0 means that there is nothing to do
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::array<std::int64_t, kMaxRank>, kMaxOperands> strides{};  // bytes; [operand][dim]

  std::int64_t inner() const { return sizes[static_cast<std::size_t>(rank - 1)]; }
  std::int64_t stride(int operand, int dim) const {
    return strides[static_cast<std::size_t>(operand)][static_cast<std::size_t>(dim)];
  }
  std::int64_t inner_stride(int operand) const { return stride(operand, rank - 1); }
  // True when the operand is contiguous in the order of the walk.
  bool linear(int operand, std::int64_t element_bytes) const;
};

// Operand 0 has the shape; the others have it or broadcast to it (aligned at the last dimension, as in PyTorch).
Walk make_walk(std::span<const TensorDesc* const> operands);

// The position in a walk: an index per dimension and the byte offset of each operand.
class Cursor {
 public:
  explicit Cursor(const Walk& walk) : walk_(walk) {}
  void seek(std::int64_t element);
  // Elements left in the current innermost row.
  std::int64_t row_left() const;
  // Moves by `n` elements, at most row_left().
  void advance(std::int64_t n);
  std::int64_t offset(int operand) const { return offsets_[static_cast<std::size_t>(operand)]; }

 private:
  const Walk& walk_;
  std::array<std::int64_t, kMaxRank> index_{};
  std::array<std::int64_t, kMaxOperands> offsets_{};
};

// This task's range of elements, in multiples of 64 to avoid false sharing of cache lines.
KernelContext::Range element_range(const KernelContext& ctx, std::int64_t total);

// Elements of a block: four blocks of doubles fit into the first-level cache.
inline constexpr std::int64_t kBlock = 512;
inline constexpr int kMaxBlockInputs = kMaxOperands - 1;

// A block function with state: in[k] and out as for a BlockFn, at most kBlock elements.
class BlockProgram {
 public:
  virtual int run(const void* const* in, void* out, std::int64_t n) noexcept = 0;

 protected:
  ~BlockProgram() = default;
};

// What run_blocks does to each block. Input k of the function is the number `immediates[k]` when bit k of
// `immediate_mask` is set, else the next input tensor of the launch.
struct BlockJob {
  simd::BlockFn function = nullptr;
  BlockProgram* program = nullptr;  // instead of the function; with neither, the one input is passed on unchanged
  int inputs = 1;
  std::array<simd::BlockClass, kMaxBlockInputs> input_class{};
  simd::BlockClass output_class = simd::BlockClass::f32;
  std::uint32_t immediate_mask = 0;
  std::array<simd::Number, kMaxBlockInputs> immediates{};
  const simd::Number* params = nullptr;

  bool passes_on() const { return function == nullptr && program == nullptr; }
  int apply(const void* const* in, void* out, std::int64_t n) const {
    return program != nullptr ? program->run(in, out, n) : function(in, out, n, params);
  }
};

// Runs the job over this task's range of output 0. Operands are converted to and from the blocks' classes; those
// already in a block's representation are used in place. Returns the first status that is not kBlockOk.
int run_blocks(const KernelContext& ctx, const BlockJob& job);
// The same; a status that is not kBlockOk fails the launch with PyTorch's message.
void run_or_fail(const KernelContext& ctx, const BlockJob& job);

// The class that holds all values of a dtype exactly.
constexpr simd::BlockClass block_class(DType dtype) {
  if (dtype == DType::f64) return simd::BlockClass::f64;
  if (is_float(dtype)) return simd::BlockClass::f32;
  return dtype == DType::b8 ? simd::BlockClass::b8 : simd::BlockClass::i64;
}

// The class through which a conversion is exact until its last step.
constexpr simd::BlockClass conversion_class(DType from, DType to) {
  if (to == DType::b8) return simd::BlockClass::b8;
  if (from == DType::f64 || to == DType::f64) return simd::BlockClass::f64;
  return is_float(from) || is_float(to) ? simd::BlockClass::f32 : simd::BlockClass::i64;
}

// The dtype of a block's own elements, and their size.
constexpr DType block_dtype(simd::BlockClass c) {
  constexpr DType dtypes[simd::kBlockClassCount] = {DType::f32, DType::f64, DType::i64, DType::b8};
  return dtypes[static_cast<int>(c)];
}

// Memory of a block of any class.
struct Block {
  alignas(64) std::byte bytes[kBlock * 8];
};
// Fills the first n elements with the number.
void fill_block(simd::BlockClass c, const simd::Number& number, std::int64_t n, Block& block);

}  // namespace graft
