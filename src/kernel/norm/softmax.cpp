#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/norm/softmax.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::BlockClass;
using simd::ElementwiseOp;

// Elements of a block: adjacent columns computed together, or independent sums along a row.
constexpr i64 kLanes = 512;
// Elements of a part of a long row. The division of a few long rows into parts does not depend on the number of
// threads, and so neither does the result.
constexpr i64 kPart = 1 << 14;
constexpr i64 kLongRow = 4 * kPart;
constexpr i64 kFewRows = 16;

i64 part_count(const SoftmaxAttrs& attrs, i64 elements) {
  if (attrs.inner != 1 || attrs.row < kLongRow || elements / attrs.row >= kFewRows) return 1;
  return (attrs.row + kPart - 1) / kPart;
}

// Loads and stores blocks of T of the launch's contiguous operands.
template <typename T>
class Blocks {
 public:
  explicit Blocks(const KernelContext& ctx)
      : table_(simd::elementwise()),
        x_(ctx.input<std::byte>(0)),
        y_(ctx.output<std::byte>()),
        from_(ctx.in(0).dtype),
        to_(ctx.out().dtype) {}

  // Whether y's dtype is the block's own.
  bool keeps_blocks() const { return to_ == block_dtype(kClass); }
  T* y_block(i64 at) const { return reinterpret_cast<T*>(y_) + at; }
  const T* x(i64 at, i64 n, T* buffer) const { return load(x_, from_, at, n, buffer); }
  void set_y(i64 at, i64 n, const T* block) const {
    const auto size = static_cast<i64>(byte_size(to_));
    table_.convert->store[static_cast<int>(kClass)][static_cast<int>(to_)](block, size, n, y_ + at * size);
  }
  void apply(ElementwiseOp op, const T* a, const T* b, i64 n, T* out) const {
    constexpr simd::Number kParams[3] = {{1, 1}, {}, {}};
    const void* in[] = {a, b};
    table_.function(kClass, op)(in, out, n, kParams);
  }
  void apply(ElementwiseOp op, const T* a, i64 n, T* out) const { apply(op, a, nullptr, n, out); }

 private:
  static constexpr BlockClass kClass = sizeof(T) == sizeof(double) ? BlockClass::f64 : BlockClass::f32;

  const T* load(const std::byte* from, DType dtype, i64 at, i64 n, T* buffer) const {
    const auto size = static_cast<i64>(byte_size(dtype));
    if (dtype == block_dtype(kClass)) return reinterpret_cast<const T*>(from + at * size);
    table_.convert->load[static_cast<int>(kClass)][static_cast<int>(dtype)](from + at * size, size, n, buffer);
    return buffer;
  }

  const simd::ElementwiseTable& table_;
  const std::byte* x_;
  std::byte* y_;
  DType from_, to_;
};

// Tiles of adjacent columns.
template <typename T>
void columns(const KernelContext& ctx, const SoftmaxAttrs& attrs) {
  const Blocks<T> blocks(ctx);
  const i64 tiles = (attrs.inner + kLanes - 1) / kLanes;
  const auto [begin, end] = ctx.range(ctx.in(0).numel() / (attrs.row * attrs.inner) * tiles);
  alignas(64) T top[kLanes], total[kLanes], buffer[kLanes], e[kLanes];
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 column = unit % tiles * kLanes;
    const i64 first = unit / tiles * attrs.row * attrs.inner + column;
    const i64 n = std::min(kLanes, attrs.inner - column);
    std::fill_n(top, n, -std::numeric_limits<T>::infinity());
    std::fill_n(total, n, T(0));
    const auto at = [&](i64 r) { return first + r * attrs.inner; };
    // Exponentials are kept in y where its dtype is the block's own, and recomputed otherwise.
    const bool keeps = blocks.keeps_blocks() && attrs.logarithm == 0;
    const auto difference = [&](i64 r) { blocks.apply(ElementwiseOp::sub, blocks.x(at(r), n, buffer), top, n, e); };
    for (i64 r = 0; r < attrs.row; ++r) blocks.apply(ElementwiseOp::maximum, top, blocks.x(at(r), n, buffer), n, top);
    for (i64 r = 0; r < attrs.row; ++r) {
      T* to = keeps ? blocks.y_block(at(r)) : e;
      difference(r);
      blocks.apply(ElementwiseOp::exp, e, n, to);
      blocks.apply(ElementwiseOp::add, total, to, n, total);
    }
    blocks.apply(attrs.logarithm != 0 ? ElementwiseOp::log : ElementwiseOp::reciprocal, total, n, total);
    for (i64 r = 0; r < attrs.row; ++r) {
      if (keeps) {
        blocks.apply(ElementwiseOp::mul, blocks.y_block(at(r)), total, n, blocks.y_block(at(r)));
        continue;
      }
      difference(r);
      if (attrs.logarithm == 0) blocks.apply(ElementwiseOp::exp, e, n, e);
      blocks.apply(attrs.logarithm != 0 ? ElementwiseOp::sub : ElementwiseOp::mul, e, total, n, e);
      blocks.set_y(at(r), n, e);
    }
  }
}

// A part of a long row: its largest element, and its sum of exponentials.
struct Part {
  double top, total;
};
enum PartPhase : int { kTops, kTotals, kResults, kPartPhases };

// Long rows by parts: one phase over all parts finds the maxima, the next the sums, the last one the results.
template <typename T>
void by_part(const KernelContext& ctx, const SoftmaxAttrs& attrs, i64 parts) {
  const Blocks<T> blocks(ctx);
  auto* part = reinterpret_cast<Part*>(ctx.scratch_bytes);
  const auto [begin, end] = ctx.range(ctx.in(0).numel() / attrs.row * parts);
  const bool keeps = blocks.keeps_blocks() && attrs.logarithm == 0;
  alignas(64) T lanes[kLanes], shift[kLanes], last[kLanes], buffer[kLanes], e[kLanes];
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 row = unit / parts;
    const i64 first = row * attrs.row + unit % parts * kPart;
    const i64 stop = std::min(first + kPart, (row + 1) * attrs.row);
    const auto width = [&](i64 at) { return std::min(kLanes, stop - at); };
    if (ctx.phase == kTops) {
      std::fill_n(lanes, kLanes, -std::numeric_limits<T>::infinity());
      for (i64 at = first; at < stop; at += kLanes)
        blocks.apply(ElementwiseOp::maximum, lanes, blocks.x(at, width(at), buffer), width(at), lanes);
      T top = lanes[0];
      for (const T lane : lanes) top = lane > top || std::isnan(lane) ? lane : top;
      part[unit].top = static_cast<double>(top);
      continue;
    }
    double top = part[row * parts].top, total = 0;
    for (i64 p = row * parts; p < (row + 1) * parts; ++p) {
      if (part[p].top > top || std::isnan(part[p].top)) top = part[p].top;
      if (ctx.phase == kResults) total += part[p].total;
    }
    std::fill_n(shift, kLanes, static_cast<T>(top));
    const auto difference = [&](i64 at, i64 n) {
      blocks.apply(ElementwiseOp::sub, blocks.x(at, n, buffer), shift, n, e);
    };
    if (ctx.phase == kTotals) {
      std::fill_n(lanes, kLanes, T(0));
      for (i64 at = first; at < stop; at += kLanes) {
        const i64 n = width(at);
        T* to = keeps ? blocks.y_block(at) : e;
        difference(at, n);
        blocks.apply(ElementwiseOp::exp, e, n, to);
        blocks.apply(ElementwiseOp::add, lanes, to, n, lanes);
      }
      part[unit].total = 0;
      for (const T lane : lanes) part[unit].total += static_cast<double>(lane);
      continue;
    }
    std::fill_n(last, kLanes, static_cast<T>(attrs.logarithm != 0 ? std::log(total) : 1 / total));
    for (i64 at = first; at < stop; at += kLanes) {
      const i64 n = width(at);
      if (keeps) {
        blocks.apply(ElementwiseOp::mul, blocks.y_block(at), last, n, blocks.y_block(at));
        continue;
      }
      difference(at, n);
      if (attrs.logarithm == 0) blocks.apply(ElementwiseOp::exp, e, n, e);
      blocks.apply(attrs.logarithm != 0 ? ElementwiseOp::sub : ElementwiseOp::mul, e, last, n, e);
      blocks.set_y(at, n, e);
    }
  }
}

void softmax_f64(const double* x, double* y, i64 n, bool logarithm) {
  double top = -std::numeric_limits<double>::infinity();
  for (i64 i = 0; i < n; ++i) {
    if (x[i] > top || std::isnan(x[i])) top = x[i];
  }
  double total = 0;
  for (i64 i = 0; i < n; ++i) total += std::exp(x[i] - top);
  const double shift = std::log(total);
  for (i64 i = 0; i < n; ++i) y[i] = logarithm ? x[i] - top - shift : std::exp(x[i] - top) / total;
}

void softmax_here(const KernelContext& ctx) noexcept { run_softmax(ctx, simd::rows()); }

int softmax_phases(const KernelContext& ctx) noexcept {
  return part_count(ctx.attrs<SoftmaxAttrs>(), ctx.in(0).numel()) > 1 ? kPartPhases : 1;
}

// Elements; some 2 microseconds of one thread.
constexpr i64 kMinParallel = 4096;

}  // namespace

void run_softmax(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const auto attrs = ctx.attrs<SoftmaxAttrs>();
  const i64 elements = ctx.in(0).numel();
  if (elements == 0) return;
  const DType from = ctx.in(0).dtype, to = ctx.out().dtype;
  if (attrs.inner != 1) return from == DType::f64 ? columns<double>(ctx, attrs) : columns<float>(ctx, attrs);
  if (const i64 parts = part_count(attrs, elements); parts > 1)
    return from == DType::f64 ? by_part<double>(ctx, attrs, parts) : by_part<float>(ctx, attrs, parts);
  const auto [begin, end] = ctx.range(elements / attrs.row);
  for (i64 r = begin; r < end; ++r) {
    const std::byte* x = ctx.input<std::byte>(0) + r * attrs.row * static_cast<i64>(byte_size(from));
    std::byte* y = ctx.output<std::byte>() + r * attrs.row * static_cast<i64>(byte_size(to));
    if (from == DType::f64) {
      softmax_f64(reinterpret_cast<const double*>(x), reinterpret_cast<double*>(y), attrs.row, attrs.logarithm != 0);
    } else {
      table.softmax(x, from, y, to, attrs.row, attrs.logarithm != 0);
    }
  }
}

i64 softmax_scratch_bytes(const SoftmaxAttrs& attrs, i64 elements) {
  const i64 parts = part_count(attrs, elements);
  return parts > 1 ? elements / attrs.row * parts * static_cast<i64>(sizeof(Part)) : 0;
}

const Kernel kSoftmax = {"softmax", softmax_here, kMinParallel, softmax_phases};

}  // namespace graft
