#include "kernel/index/index.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;

template <typename T>
void move_elements(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                   std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
}

// `n` elements of `size` bytes, strides in bytes.
void move(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t n,
          std::int64_t size) {
  if (from_stride == size && to_stride == size) {
    std::memcpy(to, from, static_cast<std::size_t>(n * size));
    return;
  }
  switch (size) {
    case 1:
      return move_elements<std::uint8_t>(from, from_stride, to, to_stride, n);
    case 2:
      return move_elements<std::uint16_t>(from, from_stride, to, to_stride, n);
    case 4:
      return move_elements<std::uint32_t>(from, from_stride, to, to_stride, n);
    default:
      return move_elements<std::uint64_t>(from, from_stride, to, to_stride, n);
  }
}

std::int64_t read_index(const std::byte* at, DType dtype) {
  if (dtype == DType::i32) {
    std::int32_t v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
  std::int64_t v;
  std::memcpy(&v, at, sizeof(v));
  return v;
}

// Index tensors are inputs 1, 2, ... of both kernels.
class Indices {
 public:
  Indices(const KernelContext& ctx, const IndexAttrs& attrs) : ctx_(ctx), attrs_(attrs) {
    for (int k = 0; k < attrs.count; ++k) {
      base_[k] = ctx.input<std::byte>(k + 1);
      dtype_[k] = ctx.in(k + 1).dtype;
    }
  }

  // Byte offset from the window to the element; false, with the failure recorded, when an index is out of range.
  // `offset(k)` is the byte offset in index tensor k.
  template <typename Offset>
  bool locate(Offset&& offset, std::int64_t& place) const {
    place = 0;
    for (int k = 0; k < attrs_.count; ++k) {
      const std::int64_t given = read_index(base_[k] + offset(k), dtype_[k]);
      const std::int64_t size = attrs_.size[k];
      const std::int64_t index = given < 0 && attrs_.wrap ? given + size : given;
      if (index < 0 || index >= size) {
        ctx_.fail("index ", given, " is out of range for dimension ", attrs_.dim[k], " of size ", size);
        return false;
      }
      place += index * attrs_.stride[k];
    }
    return true;
  }

  int count() const { return attrs_.count; }

 private:
  const KernelContext& ctx_;
  const IndexAttrs& attrs_;
  const std::byte* base_[kMaxIndexTensors] = {};
  DType dtype_[kMaxIndexTensors] = {};
};

// A row whose elements are gathered at individual positions along one dimension.
struct IndexedRow {
  const std::byte* from;
  const std::byte* index;
  std::byte* to;
  std::int64_t from_stride, index_stride, to_stride;  // bytes between elements of the row
  std::int64_t size, stride;                          // of the dimension, in elements and bytes
  bool wrap;
};

// Copies elements up to the first whose index is out of range; returns how many.
template <typename T, typename Index>
std::int64_t gather_row(const IndexedRow& row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    Index index;
    std::memcpy(&index, row.index + i * row.index_stride, sizeof(index));
    const std::int64_t place = index < 0 && row.wrap ? index + row.size : index;
    if (place < 0 || place >= row.size) return i;
    std::memcpy(row.to + i * row.to_stride, row.from + i * row.from_stride + place * row.stride, sizeof(T));
  }
  return n;
}

using GatherRow = std::int64_t (*)(const IndexedRow&, std::int64_t);
template <typename Index>
GatherRow gather_row_of(std::int64_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return gather_row<std::uint8_t, Index>;
    case 2:
      return gather_row<std::uint16_t, Index>;
    case 4:
      return gather_row<std::uint32_t, Index>;
    default:
      return gather_row<std::uint64_t, Index>;
  }
}

void gather(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<IndexAttrs>();
  const Indices indices(ctx, attrs);
  const TensorDesc* operands[kMaxOperands] = {&ctx.out(), &ctx.in(0)};
  for (int k = 0; k < attrs.count; ++k) operands[k + 2] = &ctx.in(k + 1);
  const Walk walk = make_walk({operands, static_cast<std::size_t>(attrs.count + 2)});
  if (walk.total == 0) return;
  const auto size = static_cast<std::int64_t>(byte_size(ctx.out().dtype));
  const std::byte* from = ctx.input<std::byte>(0);
  std::byte* to = ctx.output<std::byte>();

  bool whole_rows = true;  // one element of every index tensor holds for a whole row
  for (int k = 0; k < attrs.count; ++k) whole_rows = whole_rows && walk.inner_stride(k + 2) == 0;

  // Most gathers have one index tensor and need no loop over index tensors for each element.
  GatherRow one_index = nullptr;
  if (attrs.count == 1 && !whole_rows)
    one_index = ctx.in(1).dtype == DType::i32 ? gather_row_of<std::int32_t>(size) : gather_row_of<std::int64_t>(size);

  const KernelContext::Range range = element_range(ctx, walk.total);
  Cursor cursor(walk);
  if (range.begin < range.end) cursor.seek(range.begin);
  for (std::int64_t at = range.begin; at < range.end;) {
    const std::int64_t n = std::min(cursor.row_left(), range.end - at);
    const std::int64_t step = whole_rows ? n : 1;
    std::int64_t moved = 0;
    if (one_index != nullptr) {
      const IndexedRow row = {from + cursor.offset(1),
                              ctx.input<std::byte>(1) + cursor.offset(2),
                              to + cursor.offset(0),
                              walk.inner_stride(1),
                              walk.inner_stride(2),
                              walk.inner_stride(0),
                              attrs.size[0],
                              attrs.stride[0],
                              attrs.wrap};
      moved = one_index(row, n);  // all, or the loop below reports the index that is out of range
    }
    for (std::int64_t i = moved; i < n; i += step) {
      std::int64_t place = 0;
      if (!indices.locate([&](int k) { return cursor.offset(k + 2) + i * walk.inner_stride(k + 2); }, place)) return;
      move(from + cursor.offset(1) + i * walk.inner_stride(1) + place, walk.inner_stride(1),
           to + cursor.offset(0) + i * walk.inner_stride(0), walk.inner_stride(0), step, size);
    }
    cursor.advance(n);
    at += n;
  }
}

// --- scatter ---

// Dimensions of an iteration space in row-major order, with byte strides for each operand: window, values, index
// tensors.
struct Space {
  int rank = 0;
  std::int64_t total = 1;
  std::int64_t sizes[kMaxRank] = {};
  std::int64_t strides[kMaxIndexTensors + 2][kMaxRank] = {};

  void add(std::int64_t size, const std::int64_t* stride_of, int operands) {
    total *= size;
    const int last = rank - 1;
    bool merges = rank > 0;
    for (int k = 0; k < operands && merges; ++k) merges = strides[k][last] == stride_of[k] * size;
    if (!merges) ++rank;
    const int d = rank - 1;
    sizes[d] = merges ? sizes[d] * size : size;
    for (int k = 0; k < operands; ++k) strides[k][d] = stride_of[k];
  }

  // Byte offset of operand `k` at element `element` of the space, counted row-major.
  std::int64_t offset(int k, std::int64_t element) const {
    std::int64_t result = 0;
    for (int d = rank - 1; d >= 0; --d) {
      result += element % sizes[d] * strides[k][d];
      element /= sizes[d];
    }
    return result;
  }
};

template <typename T>
T combined(ScatterMode mode, T a, T b) {
  switch (mode) {
    case ScatterMode::add:
      return static_cast<T>(a + b);
    case ScatterMode::multiply:
      return static_cast<T>(a * b);
    case ScatterMode::amax:
      return b > a || b != b ? b : a;
    case ScatterMode::amin:
      return b < a || b != b ? b : a;
    case ScatterMode::assign:
      break;
  }
  return b;
}

// Integers wrap around, as in PyTorch.
std::int64_t combined_integer(ScatterMode mode, std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  if (mode == ScatterMode::add) return static_cast<std::int64_t>(x + y);
  if (mode == ScatterMode::multiply) return static_cast<std::int64_t>(x * y);
  return combined(mode, a, b);
}

// Combines values with the target's elements, computed in the wider type of the dtype.
class Combiner {
 public:
  Combiner(DType dtype, ScatterMode mode) : mode_(mode), size_(static_cast<std::int64_t>(byte_size(dtype))) {
    class_ = dtype == DType::f64 ? BlockClass::f64 : is_float(dtype) ? BlockClass::f32 : BlockClass::i64;
    // true + true is true, true * false is false.
    if (dtype == DType::b8 && mode == ScatterMode::add) mode_ = ScatterMode::amax;
    if (dtype == DType::b8 && mode == ScatterMode::multiply) mode_ = ScatterMode::amin;
    const simd::ConvertFns& convert = *simd::elementwise().convert;
    load_ = convert.load[static_cast<int>(class_)][static_cast<int>(dtype)];
    store_ = convert.store[static_cast<int>(class_)][static_cast<int>(dtype)];
  }

  void run(const std::byte* values, std::int64_t values_stride, std::byte* target, std::int64_t target_stride,
           std::int64_t n) const {
    if (mode_ == ScatterMode::assign) {
      move(values, values_stride, target, target_stride, n, size_);
      return;
    }
    for (std::int64_t i = 0; i < n; i += kBlock) {
      const std::int64_t count = std::min(kBlock, n - i);
      const std::byte* from = values + i * values_stride;
      std::byte* to = target + i * target_stride;
      switch (class_) {
        case BlockClass::f32:
          block<float>(from, values_stride, to, target_stride, count);
          break;
        case BlockClass::f64:
          block<double>(from, values_stride, to, target_stride, count);
          break;
        default:
          block<std::int64_t>(from, values_stride, to, target_stride, count);
          break;
      }
    }
  }

 private:
  template <typename T>
  void block(const std::byte* values, std::int64_t values_stride, std::byte* target, std::int64_t target_stride,
             std::int64_t n) const {
    alignas(64) T a[kBlock];
    alignas(64) T b[kBlock];
    load_(target, target_stride, n, a);
    load_(values, values_stride, n, b);
    for (std::int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, std::int64_t>) {
        a[i] = combined_integer(mode_, a[i], b[i]);
      } else {
        a[i] = combined(mode_, a[i], b[i]);
      }
    }
    store_(a, target_stride, n, target);
  }

  ScatterMode mode_;
  std::int64_t size_;
  BlockClass class_;
  simd::LoadFn load_;
  simd::StoreFn store_;
};

void scatter(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ScatterAttrs>();
  const Indices indices(ctx, attrs.index);
  const Combiner combiner(ctx.out().dtype, attrs.mode);
  const TensorDesc& window = ctx.out();
  const int operands = attrs.index.count + 2;

  // Along a free dimension the window moves, so different elements have different positions: threads divide those. The
  // other dimensions number the indices and may name a position twice: one thread walks them in order.
  Space free_dims, index_dims;
  for (int d = 0; d < window.rank(); ++d) {
    if (window.shape[d] == 0) return;
    if (window.shape[d] == 1) continue;
    std::int64_t strides[kMaxIndexTensors + 2] = {};
    for (int k = 0; k < operands; ++k) {
      const TensorDesc& desc = k == 0 ? window : ctx.in(k - 1);
      strides[k] = desc.strides[static_cast<std::size_t>(d)] * static_cast<std::int64_t>(byte_size(desc.dtype));
    }
    (strides[0] != 0 ? free_dims : index_dims).add(window.shape[d], strides, operands);
  }

  // The last free dimension is written in runs when the indices do not change along it.
  std::int64_t run = free_dims.rank > 0 ? free_dims.sizes[free_dims.rank - 1] : 1;
  for (int k = 0; k < attrs.index.count && free_dims.rank > 0; ++k)
    if (free_dims.strides[k + 2][free_dims.rank - 1] != 0) run = 1;
  const std::int64_t run_window = free_dims.rank > 0 ? free_dims.strides[0][free_dims.rank - 1] : 0;
  const std::int64_t run_values = free_dims.rank > 0 ? free_dims.strides[1][free_dims.rank - 1] : 0;

  // With few free elements, every thread walks all indices and writes the positions that hash to it.
  constexpr std::int64_t kLine = 64;  // elements: threads should not write one cache line
  const bool by_place = free_dims.total < kLine * ctx.tasks;
  KernelContext::Range range{0, free_dims.total};
  if (!by_place) {
    range = ctx.range((free_dims.total + kLine - 1) / kLine);
    range = {range.begin * kLine, std::min(range.end * kLine, free_dims.total)};
  }
  const auto threads = static_cast<std::uint64_t>(ctx.tasks);
  const std::byte* values = ctx.input<std::byte>(0);
  std::byte* target = ctx.output<std::byte>();

  for (std::int64_t at = range.begin; at < range.end;) {
    const std::int64_t n = std::min(run - at % run, range.end - at);
    std::int64_t base[kMaxIndexTensors + 2];
    for (int k = 0; k < operands; ++k) base[k] = free_dims.offset(k, at);
    // An odometer over the index dimensions.
    std::int64_t position[kMaxRank] = {};
    std::int64_t offset[kMaxIndexTensors + 2];
    std::copy(base, base + operands, offset);
    for (std::int64_t i = 0; i < index_dims.total; ++i) {
      std::int64_t place = 0;
      if (!indices.locate([&](int k) { return offset[k + 2]; }, place)) return;
      const auto hash = static_cast<std::uint64_t>(place + offset[0]) * 0x9E3779B97F4A7C15u;
      if (!by_place || (hash >> 32) % threads == static_cast<std::uint64_t>(ctx.task))
        combiner.run(values + offset[1], run_values, target + offset[0] + place, run_window, n);
      for (int d = index_dims.rank - 1; d >= 0; --d) {
        for (int k = 0; k < operands; ++k) offset[k] += index_dims.strides[k][d];
        if (++position[d] < index_dims.sizes[d]) break;
        for (int k = 0; k < operands; ++k) offset[k] -= index_dims.strides[k][d] * index_dims.sizes[d];
        position[d] = 0;
      }
    }
    at += n;
  }
}

}  // namespace

const Kernel kGather{"gather", gather, kMinParallelElements};
const Kernel kScatter{.name = "scatter", .run = scatter, .writes_by_input = true};

}  // namespace graft
