#include <algorithm>

#include "kernel/reduce/scan.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using Int = std::int64_t;
using simd::BlockClass;

// Adjacent scans computed together when their elements are closer in memory than those of one scan.
constexpr Int kColumns = 64;
// Independent runs computed at once otherwise, to hide the latency of additions.
constexpr Int kRuns = 4;
// A few long scans are divided into runs of this length, independently of the number of threads, so that the result
// does not depend on it.
constexpr Int kRunLength = 8192;
constexpr Int kLongLine = 4 * kRunLength;
constexpr Int kFewLines = 16;

Int run_count(Int lines, Int length) {
  return lines < kFewLines && length >= kLongLine ? (length + kRunLength - 1) / kRunLength : 1;
}

template <ScanOp op, typename T>
T combined(T a, T b) {
  if constexpr (std::is_same_v<T, Int>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<Int>(op == ScanOp::sum ? x + y : x * y);
  } else {
    return op == ScanOp::sum ? a + b : a * b;
  }
}

template <ScanOp op, typename T>
class Scanner {
 public:
  Scanner(const KernelContext& ctx, const ScanAttrs& attrs, BlockClass type) : ctx_(ctx) {
    const TensorDesc &from = ctx.in(0), &to = ctx.out();
    TensorDesc to_lines = to, from_lines = from;  // everything but the scanned dimension
    if (to.rank() > 0) {
      const auto dim = static_cast<std::size_t>(attrs.dim);
      length_ = to.shape[attrs.dim];
      from_step_ = from.strides[dim] * static_cast<Int>(byte_size(from.dtype));
      to_step_ = to.strides[dim] * static_cast<Int>(byte_size(to.dtype));
      to_lines.shape[attrs.dim] = from_lines.shape[attrs.dim] = 1;
    }
    const TensorDesc* operands[] = {&to_lines, &from_lines};
    walk_ = make_walk(operands);
    const simd::ConvertFns& convert = *simd::elementwise().convert;
    load_ = convert.load[static_cast<int>(type)][static_cast<int>(from.dtype)];
    store_ = convert.store[static_cast<int>(type)][static_cast<int>(to.dtype)];
  }

  void run() {
    if (walk_.total == 0 || length_ == 0) return;
    runs_ = run_count(walk_.total, length_);
    const bool along = runs_ > 1 || walk_.inner() < kRuns || std::abs(walk_.inner_stride(0)) > std::abs(to_step_);
    if (along) {
      along_lines();
    } else {
      across_lines();
    }
  }

 private:
  struct Run {
    const std::byte* x;
    std::byte* y;
    Int length;
    T value;
  };
  enum Phase : int { kTotals, kResults };

  void across_lines() {
    const KernelContext::Range mine = ctx_.range(walk_.total);
    Cursor cursor(walk_);
    if (mine.begin < mine.end) cursor.seek(mine.begin);
    for (Int at = mine.begin; at < mine.end;) {
      const Int n = std::min({cursor.row_left(), mine.end - at, kColumns});
      const std::byte* x = ctx_.input<std::byte>(0) + cursor.offset(1);
      std::byte* y = ctx_.output<std::byte>() + cursor.offset(0);
      T running[kColumns], block[kColumns];
      std::fill(running, running + n, kStart);
      for (Int i = 0; i < length_; ++i) {
        load_(x + i * from_step_, walk_.inner_stride(1), n, block);
        for (Int j = 0; j < n; ++j) running[j] = combined<op>(running[j], block[j]);
        store_(running, walk_.inner_stride(0), n, y + i * to_step_);
      }
      cursor.advance(n);
      at += n;
    }
  }

  // With several runs per scan: the first phase computes the total of each, the second starts each from the totals
  // before it.
  void along_lines() {
    const bool totals_only = runs_ > 1 && ctx_.phase == kTotals;
    T* totals = reinterpret_cast<T*>(ctx_.scratch_bytes);
    const KernelContext::Range mine = ctx_.range(walk_.total * runs_);
    for (Int first = mine.begin; first < mine.end; first += kRuns) {
      const Int count = std::min(kRuns, mine.end - first);
      Run run[kRuns];
      for (Int k = 0; k < count; ++k) run[k] = run_at(first + k, totals_only ? nullptr : totals);
      follow(run, count, !totals_only);
      for (Int k = 0; totals_only && k < count; ++k) totals[first + k] = run[k].value;
    }
  }

  Run run_at(Int unit, const T* totals) const {
    const Int line = unit / runs_, at = unit % runs_ * kRunLength;
    Cursor cursor(walk_);
    cursor.seek(line);
    Run run{ctx_.input<std::byte>(0) + cursor.offset(1) + at * from_step_,
            ctx_.output<std::byte>() + cursor.offset(0) + at * to_step_,
            runs_ == 1 ? length_ : std::min(kRunLength, length_ - at), kStart};
    for (Int earlier = line * runs_; totals != nullptr && earlier < unit; ++earlier)
      run.value = combined<op>(run.value, totals[earlier]);
    return run;
  }

  void follow(Run* run, Int count, bool stores) const {
    T block[kRuns][kBlock];
    Int longest = 0;
    for (Int k = 0; k < count; ++k) longest = std::max(longest, run[k].length);
    for (Int at = 0; at < longest; at += kBlock) {
      Int width[kRuns] = {}, all = kBlock;
      for (Int k = 0; k < count; ++k) {
        width[k] = std::clamp<Int>(run[k].length - at, 0, kBlock);
        all = std::min(all, width[k]);
        if (width[k] > 0) load_(run[k].x + at * from_step_, from_step_, width[k], block[k]);
      }
      Int done = 0;
      if (count == kRuns) {
        T value[kRuns] = {run[0].value, run[1].value, run[2].value, run[3].value};
        for (; done < all; ++done)
          for (Int k = 0; k < kRuns; ++k) block[k][done] = value[k] = combined<op>(value[k], block[k][done]);
        for (Int k = 0; k < kRuns; ++k) run[k].value = value[k];
      }
      for (Int k = 0; k < count; ++k) {
        for (Int i = done; i < width[k]; ++i) block[k][i] = run[k].value = combined<op>(run[k].value, block[k][i]);
        if (stores && width[k] > 0) store_(block[k], to_step_, width[k], run[k].y + at * to_step_);
      }
    }
  }

  const KernelContext& ctx_;
  static constexpr T kStart = op == ScanOp::sum ? T(0) : T(1);
  Int length_ = 1, from_step_ = 0, to_step_ = 0, runs_ = 1;
  Walk walk_;
  simd::LoadFn load_;
  simd::StoreFn store_;
};

void scan(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ScanAttrs>();
  const bool sums = attrs.op == ScanOp::sum;
  if (is_float(ctx.out().dtype)) {
    if (sums) return Scanner<ScanOp::sum, double>(ctx, attrs, BlockClass::f64).run();
    return Scanner<ScanOp::prod, double>(ctx, attrs, BlockClass::f64).run();
  }
  if (sums) return Scanner<ScanOp::sum, Int>(ctx, attrs, BlockClass::i64).run();
  Scanner<ScanOp::prod, Int>(ctx, attrs, BlockClass::i64).run();
}

Int length_of(const TensorDesc& x, const ScanAttrs& attrs) { return x.rank() > 0 ? x.shape[attrs.dim] : 1; }

int scan_phases(const KernelContext& ctx) noexcept {
  return scan_scratch_bytes(ctx.in(0), ctx.attrs<ScanAttrs>()) > 0 ? 2 : 1;
}

}  // namespace

std::int64_t scan_scratch_bytes(const TensorDesc& x, const ScanAttrs& attrs) {
  const Int length = length_of(x, attrs);
  if (length == 0) return 0;
  const Int lines = x.numel() / length, runs = run_count(lines, length);
  return runs > 1 ? lines * runs * 8 : 0;
}

const Kernel kScan{"scan", scan, kMinParallelElements, scan_phases};

}  // namespace graft
