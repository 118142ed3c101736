#include "kernel/strided.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace graft {
namespace {

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

bool Walk::linear(int operand, std::int64_t element_bytes) const {
  std::int64_t expected = element_bytes;
  for (int d = rank - 1; d >= 0; --d) {
    if (sizes[at(d)] != 1 && stride(operand, d) != expected) return false;
    expected *= sizes[at(d)];
  }
  return true;
}

Walk make_walk(std::span<const TensorDesc* const> operands) {
  GRAFT_ASSERT(!operands.empty() && operands.size() <= kMaxOperands);
  const TensorDesc& out = *operands[0];
  Walk walk;
  walk.operands = static_cast<int>(operands.size());
  walk.total = 1;

  // Dimensions of size 1 are dropped; the others are ordered by operand 0's strides, largest first.
  std::array<int, kMaxRank> order{};
  int rank = 0;
  for (int d = 0; d < out.rank(); ++d) {
    walk.total *= out.shape[d];
    if (out.shape[d] != 1) order[at(rank++)] = d;
  }
  if (walk.total == 0) return walk;
  // An insertion sort: stable, and unlike std::stable_sort it never allocates.
  for (int i = 1; i < rank; ++i)
    for (int j = i; j > 0 && out.strides[at(order[at(j)])] > out.strides[at(order[at(j - 1)])]; --j)
      std::swap(order[at(j)], order[at(j - 1)]);

  int merged = 0;
  for (int i = 0; i < rank; ++i) {
    const int d = order[at(i)];
    const std::int64_t size = out.shape[d];
    std::array<std::int64_t, kMaxOperands> strides{};
    bool merges = merged > 0;
    for (int k = 0; k < walk.operands; ++k) {
      const TensorDesc& desc = *operands[at(k)];
      const int own = d - (out.rank() - desc.rank());
      const bool present = own >= 0 && desc.shape[own] != 1;
      GRAFT_ASSERT(!present || desc.shape[own] == size);
      if (present) strides[at(k)] = desc.strides[at(own)] * static_cast<std::int64_t>(byte_size(desc.dtype));
      merges = merges && walk.stride(k, merged - 1) == strides[at(k)] * size;
    }
    if (!merges) walk.sizes[at(merged++)] = 1;
    walk.sizes[at(merged - 1)] *= size;
    for (int k = 0; k < walk.operands; ++k) walk.strides[at(k)][at(merged - 1)] = strides[at(k)];
  }
  if (merged == 0) walk.sizes[at(merged++)] = 1;
  walk.rank = merged;
  return walk;
}

void Cursor::seek(std::int64_t element) {
  offsets_ = {};
  for (int d = walk_.rank - 1; d >= 0; --d) {
    const std::int64_t size = walk_.sizes[at(d)];
    index_[at(d)] = d == 0 ? element : element % size;
    element /= size;
    for (int k = 0; k < walk_.operands; ++k) offsets_[at(k)] += index_[at(d)] * walk_.stride(k, d);
  }
}

std::int64_t Cursor::row_left() const { return walk_.inner() - index_[at(walk_.rank - 1)]; }

void Cursor::advance(std::int64_t n) {
  int d = walk_.rank - 1;
  index_[at(d)] += n;
  for (int k = 0; k < walk_.operands; ++k) offsets_[at(k)] += n * walk_.stride(k, d);
  while (d > 0 && index_[at(d)] == walk_.sizes[at(d)]) {
    index_[at(d)] = 0;
    ++index_[at(d - 1)];
    for (int k = 0; k < walk_.operands; ++k)
      offsets_[at(k)] += walk_.stride(k, d - 1) - walk_.sizes[at(d)] * walk_.stride(k, d);
    --d;
  }
}

KernelContext::Range element_range(const KernelContext& ctx, std::int64_t total) {
  constexpr std::int64_t kUnit = 64;
  const KernelContext::Range units = ctx.range((total + kUnit - 1) / kUnit);
  return {std::min(units.begin * kUnit, total), std::min(units.end * kUnit, total)};
}

namespace {

using simd::BlockClass;

// Rows shorter than this are gathered into blocks of several rows, so that a block function runs on enough elements.
constexpr std::int64_t kShortRow = 32;

// This many elements of any dtype stay in the first-level cache in any order of visits.
constexpr std::int64_t kFewElements = 2048;

// Makes a long dimension along which an operand is contiguous the innermost one: for example, a result with a new
// layout is then visited in the order of what is read.
void lengthen_rows(Walk& walk) {
  constexpr std::int64_t kLargestElement = 8;
  const auto has_no_gaps = [&](int d) {
    for (int k = 0; k < walk.operands; ++k)
      if (walk.stride(k, d) > 0 && walk.stride(k, d) <= kLargestElement) return true;
    return false;
  };
  for (int d = walk.rank - 2; d >= 0; --d) {
    if (walk.sizes[at(d)] < kShortRow || !has_no_gaps(d)) continue;
    for (; d + 1 < walk.rank; ++d) {
      std::swap(walk.sizes[at(d)], walk.sizes[at(d + 1)]);
      for (int k = 0; k < walk.operands; ++k) std::swap(walk.strides[at(k)][at(d)], walk.strides[at(k)][at(d + 1)]);
    }
    return;
  }
}

std::int64_t class_bytes(BlockClass c) { return static_cast<std::int64_t>(byte_size(block_dtype(c))); }

// Fills the first n elements with the element at `first`.
void repeat_element(BlockClass c, const void* first, std::int64_t n, void* block) {
  const auto fill = [&]<typename T>(T) {
    T value;
    std::memcpy(&value, first, sizeof(T));
    std::fill_n(static_cast<T*>(block), n, value);
  };
  switch (c) {
    case BlockClass::f32:
      return fill(float{});
    case BlockClass::f64:
      return fill(double{});
    case BlockClass::i64:
      return fill(std::int64_t{});
    case BlockClass::b8:
      return fill(std::uint8_t{});
  }
}

}  // namespace

void fill_block(BlockClass c, const simd::Number& number, std::int64_t n, Block& block) {
  const float f = static_cast<float>(number.f);
  const std::uint8_t b = number.f != 0 || number.i != 0;
  switch (c) {
    case BlockClass::f32:
      return repeat_element(c, &f, n, block.bytes);
    case BlockClass::f64:
      return repeat_element(c, &number.f, n, block.bytes);
    case BlockClass::i64:
      return repeat_element(c, &number.i, n, block.bytes);
    case BlockClass::b8:
      return repeat_element(c, &b, n, block.bytes);
  }
}

namespace {

// One tensor operand of a launch, and how it becomes blocks.
struct Operand {
  int walk_index = 0;
  std::byte* data = nullptr;
  BlockClass block_class = BlockClass::f32;
  bool same = false;    // elements have the block's own representation
  bool linear = false;  // contiguous in the order of the walk
  std::int64_t element_bytes = 0;
  std::int64_t inner_stride = 0;
  simd::LoadFn load = nullptr;
  simd::StoreFn store = nullptr;
  // The element that a broadcast block is filled with.
  const std::byte* filled_from = nullptr;
  std::int64_t filled = 0;
};

Operand make_operand(const Walk& walk, int walk_index, const TensorDesc& desc, void* data, BlockClass c) {
  const simd::ConvertFns& convert = *simd::elementwise().convert;
  Operand o;
  o.walk_index = walk_index;
  o.data = static_cast<std::byte*>(data);
  o.block_class = c;
  o.same = desc.dtype == block_dtype(c);
  o.element_bytes = static_cast<std::int64_t>(byte_size(desc.dtype));
  o.linear = walk.linear(walk_index, o.element_bytes);
  o.inner_stride = walk.inner_stride(walk_index);
  o.load = convert.load[static_cast<int>(c)][static_cast<int>(desc.dtype)];
  o.store = convert.store[static_cast<int>(c)][static_cast<int>(desc.dtype)];
  return o;
}

// Runs blocks that are each within one innermost row.
class RowRunner {
 public:
  RowRunner(const Walk& walk, const BlockJob& job, Operand* inputs, const Operand& output, Block* blocks)
      : cursor_(walk), job_(job), inputs_(inputs), output_(output), blocks_(blocks) {
    output_direct_ = output.same && output.inner_stride == output.element_bytes;
    bool all_direct = output_direct_ && job.immediate_mask == 0 && job.program == nullptr;
    for (int k = 0; k < job.inputs; ++k) all_direct = all_direct && direct(inputs[k]);
    limit_ = all_direct ? std::numeric_limits<std::int64_t>::max() : kBlock;
  }

  int run(std::int64_t begin, std::int64_t end) {
    cursor_.seek(begin);
    for (std::int64_t p = begin; p < end;) {
      const std::int64_t n = std::min({end - p, cursor_.row_left(), limit_});
      if (const int status = run_block(n); status != simd::kBlockOk) return status;
      cursor_.advance(n);
      p += n;
    }
    return simd::kBlockOk;
  }

 private:
  static bool direct(const Operand& o) { return o.same && o.inner_stride == o.element_bytes; }

  int run_block(std::int64_t n) {
    std::byte* out = output_.data + cursor_.offset(output_.walk_index);
    void* result = output_direct_ ? static_cast<void*>(out) : blocks_[job_.inputs].bytes;
    const void* in[kMaxBlockInputs] = {};
    for (int k = 0; k < job_.inputs; ++k) in[k] = input_block(k, n, job_.passes_on() ? result : blocks_[k].bytes);
    int status = simd::kBlockOk;
    if (!job_.passes_on()) {
      status = job_.apply(in, result, n);
    } else if (output_direct_ && in[0] == out) {
      return status;
    } else {
      result = const_cast<void*>(in[0]);
    }
    if (!output_direct_ || result != out) output_.store(result, output_.inner_stride, n, out);
    return status;
  }

  const void* input_block(int k, std::int64_t n, void* block) {
    if ((job_.immediate_mask >> k) & 1u) return blocks_[k].bytes;
    Operand& o = inputs_[k];
    const std::byte* from = o.data + cursor_.offset(o.walk_index);
    if (direct(o)) return from;
    if (o.inner_stride != 0) {
      o.load(from, o.inner_stride, n, block);
      return block;
    }
    // A broadcast operand keeps its block across rows while its element stays the same.
    if (o.filled_from != from || o.filled < n) {
      alignas(8) std::byte first[8];
      o.load(from, 0, 1, first);
      repeat_element(o.block_class, first, n, blocks_[k].bytes);
      o.filled_from = from;
      o.filled = n;
    }
    return blocks_[k].bytes;
  }

  Cursor cursor_;
  const BlockJob& job_;
  Operand* inputs_;
  const Operand& output_;
  Block* blocks_;
  bool output_direct_ = false;
  std::int64_t limit_ = kBlock;
};

// Runs blocks that span several short rows.
class GatherRunner {
 public:
  GatherRunner(const Walk& walk, const BlockJob& job, Operand* inputs, const Operand& output, Block* blocks)
      : start_(walk), job_(job), inputs_(inputs), output_(output), blocks_(blocks) {}

  int run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; p += kBlock) {
      const std::int64_t n = std::min(end - p, kBlock);
      start_.seek(p);
      const bool direct = output_.same && output_.linear;
      void* result = direct ? static_cast<void*>(output_.data + p * output_.element_bytes) : blocks_[job_.inputs].bytes;
      const void* in[kMaxBlockInputs] = {};
      for (int k = 0; k < job_.inputs; ++k) in[k] = input_block(k, p, n);
      if (job_.passes_on()) {
        scatter(in[0], p, n);
        continue;
      }
      if (const int status = job_.apply(in, result, n); status != simd::kBlockOk) return status;
      if (!direct) scatter(result, p, n);
    }
    return simd::kBlockOk;
  }

 private:
  const void* input_block(int k, std::int64_t p, std::int64_t n) {
    std::byte* block = blocks_[k].bytes;
    if ((job_.immediate_mask >> k) & 1u) return block;
    const Operand& o = inputs_[k];
    if (o.linear) {
      const std::byte* from = o.data + p * o.element_bytes;
      if (o.same) return from;
      o.load(from, o.element_bytes, n, block);
      return block;
    }
    const std::int64_t bytes = class_bytes(o.block_class);
    Cursor cursor = start_;
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t run = std::min(n - done, cursor.row_left());
      o.load(o.data + cursor.offset(o.walk_index), o.inner_stride, run, block + done * bytes);
      cursor.advance(run);
      done += run;
    }
    return block;
  }

  void scatter(const void* block, std::int64_t p, std::int64_t n) {
    if (output_.linear) {
      output_.store(block, output_.element_bytes, n, output_.data + p * output_.element_bytes);
      return;
    }
    const std::int64_t bytes = class_bytes(output_.block_class);
    Cursor cursor = start_;
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t run = std::min(n - done, cursor.row_left());
      output_.store(static_cast<const std::byte*>(block) + done * bytes, output_.inner_stride, run,
                    output_.data + cursor.offset(output_.walk_index));
      cursor.advance(run);
      done += run;
    }
  }

  Cursor start_;
  const BlockJob& job_;
  Operand* inputs_;
  const Operand& output_;
  Block* blocks_;
};

}  // namespace

int run_blocks(const KernelContext& ctx, const BlockJob& job) {
  const TensorDesc* descs[1 + kMaxBlockInputs] = {&ctx.out()};
  int tensors = 0;
  int tensor_of[kMaxBlockInputs] = {};
  for (int k = 0; k < job.inputs; ++k) {
    if ((job.immediate_mask >> k) & 1u) continue;
    tensor_of[k] = tensors;
    descs[++tensors] = &ctx.in(tensor_of[k]);
  }
  Walk walk = make_walk({descs, static_cast<std::size_t>(1 + tensors)});
  if (walk.rank > 1 && walk.inner() < kShortRow && walk.total <= kFewElements) lengthen_rows(walk);
  const auto [begin, end] = element_range(ctx, walk.total);
  if (begin == end) return simd::kBlockOk;

  Block blocks[kMaxBlockInputs + 1];
  Operand inputs[kMaxBlockInputs];
  for (int k = 0; k < job.inputs; ++k) {
    const BlockClass c = job.input_class[at(k)];
    if ((job.immediate_mask >> k) & 1u) {
      fill_block(c, job.immediates[at(k)], std::min(end - begin, kBlock), blocks[k]);
    } else {
      inputs[k] =
          make_operand(walk, 1 + tensor_of[k], ctx.in(tensor_of[k]), const_cast<void*>(ctx.inputs[tensor_of[k]]), c);
    }
  }
  const Operand output = make_operand(walk, 0, ctx.out(), ctx.outputs[0], job.output_class);
  // A program may declare dtypes that PyTorch would not produce.
  bool convert = output.store != nullptr;
  for (int k = 0; k < job.inputs; ++k) convert = convert && (((job.immediate_mask >> k) & 1u) || inputs[k].load);
  if (!convert) {
    ctx.fail("no conversion between the dtypes of its operands");
    return simd::kBlockOk;
  }
  if (walk.rank > 1 && walk.inner() < kShortRow) return GatherRunner(walk, job, inputs, output, blocks).run(begin, end);
  return RowRunner(walk, job, inputs, output, blocks).run(begin, end);
}

void run_or_fail(const KernelContext& ctx, const BlockJob& job) {
  switch (run_blocks(ctx, job)) {
    case simd::kBlockZeroDivision:
      return ctx.fail("ZeroDivisionError: integer division by zero");
    case simd::kBlockNegativeExponent:
      return ctx.fail("Integers to negative integer powers are not allowed.");
    default:
      return;
  }
}

}  // namespace graft
