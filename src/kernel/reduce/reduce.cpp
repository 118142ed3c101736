#include "kernel/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernel/reduce/reduce_vec.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using Int = std::int64_t;

// Outputs accumulated at once when the innermost dimension in memory is kept.
constexpr Int kTile = 256;
// Independent accumulators of one output, to hide the latency of additions.
constexpr Int kLanes = simd::kReduceLanes;
// The elements of an output are reduced in parts of this many, whose results are combined in order: the result does not
// depend on how many threads divide them.
constexpr Int kPart = 8192;
constexpr Int part_count(Int elements) { return (elements + kPart - 1) / kPart; }

template <typename T>
bool is_nan(T x) {
  return x != x;
}

// Wide type that values of block type T accumulate in.
template <typename T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, Int>;

template <typename T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return a + b;
}

template <typename T>
T wrapping_mul(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return a * b;
}

// A reducer: `Acc`, its start value, how an element is added (x; its index; the output's shift; the op's parameter) and
// how two accumulators merge. `kKind`: the equivalent inner loop for floats, if there is one.
using simd::ReduceKind;
constexpr ReduceKind kNoKind = ReduceKind::count_;

template <typename T>
struct Sum {
  using Acc = Wide<T>;
  static constexpr ReduceKind kKind = ReduceKind::sum;
  static constexpr Acc kStart = 0;
  static void step(Acc& acc, T x, Int, double, double) { acc = wrapping_add<Acc>(acc, static_cast<Acc>(x)); }
  static void merge(Acc& acc, const Acc& other) { acc = wrapping_add(acc, other); }
};

template <typename T>
struct Product {
  using Acc = Wide<T>;
  static constexpr ReduceKind kKind = kNoKind;
  static constexpr Acc kStart = 1;
  static void step(Acc& acc, T x, Int, double, double) { acc = wrapping_mul<Acc>(acc, static_cast<Acc>(x)); }
  static void merge(Acc& acc, const Acc& other) { acc = wrapping_mul(acc, other); }
};

template <typename T, bool largest>
struct Extreme {
  using Acc = Wide<T>;
  static constexpr ReduceKind kKind = largest ? ReduceKind::largest : ReduceKind::smallest;
  static constexpr bool kFloat = std::is_floating_point_v<T>;
  static constexpr Acc kLow = kFloat ? -std::numeric_limits<Acc>::infinity() : std::numeric_limits<Acc>::min();
  static constexpr Acc kHigh = kFloat ? std::numeric_limits<Acc>::infinity() : std::numeric_limits<Acc>::max();
  static constexpr Acc kStart = largest ? kLow : kHigh;
  static void merge(Acc& acc, const Acc& x) { acc = (largest ? x > acc : x < acc) || is_nan(x) ? x : acc; }
  static void step(Acc& acc, T x, Int, double, double) { merge(acc, static_cast<Acc>(x)); }
};

template <typename T, bool largest>
struct AbsExtreme : Extreme<T, largest> {
  using Acc = Wide<T>;
  static constexpr ReduceKind kKind = kNoKind;
  static constexpr Acc kStart = largest ? 0 : std::numeric_limits<Acc>::infinity();
  static void step(Acc& acc, T x, Int, double, double) {
    Extreme<T, largest>::merge(acc, std::fabs(static_cast<Acc>(x)));
  }
};

template <typename T>
struct Any {
  using Acc = Int;
  static constexpr ReduceKind kKind = kNoKind;
  static constexpr Acc kStart = 0;
  static void step(Acc& acc, T x, Int, double, double) { acc |= x != T(0); }
  static void merge(Acc& acc, const Acc& other) { acc |= other; }
};

template <typename T>
struct All {
  using Acc = Int;
  static constexpr ReduceKind kKind = kNoKind;
  static constexpr Acc kStart = 1;
  static void step(Acc& acc, T x, Int, double, double) { acc &= x != T(0); }
  static void merge(Acc& acc, const Acc& other) { acc &= other; }
};

template <typename T>
struct CountNonzero {
  using Acc = Int;
  static constexpr ReduceKind kKind = kNoKind;
  static constexpr Acc kStart = 0;
  static void step(Acc& acc, T x, Int, double, double) { acc += x != T(0); }
  static void merge(Acc& acc, const Acc& other) { acc += other; }
};

// Sums of a function of the element; floats only.
template <typename T, double (*function)(double x, double shift, double parameter), ReduceKind kind = kNoKind>
struct SumOf {
  using Acc = double;
  static constexpr ReduceKind kKind = kind;
  static constexpr Acc kStart = 0;
  static void step(Acc& acc, T x, Int, double shift, double parameter) {
    acc += function(static_cast<double>(x), shift, parameter);
  }
  static void merge(Acc& acc, const Acc& other) { acc += other; }
};

inline double absolute(double x, double, double) { return std::fabs(x); }
inline double squared(double x, double, double) { return x * x; }
inline double power(double x, double, double p) { return std::pow(std::fabs(x), p); }
inline double squared_difference(double x, double mean, double) { return (x - mean) * (x - mean); }
inline double exponential(double x, double shift, double) { return std::exp(x - shift); }

template <typename T, bool largest>
struct ArgExtreme {
  static constexpr ReduceKind kKind = kNoKind;
  struct Acc {
    Wide<T> value;
    Int place;
  };
  static constexpr Acc kStart{0, -1};
  static bool beats(Wide<T> x, Wide<T> y) { return is_nan(x) ? !is_nan(y) : (largest ? x > y : x < y); }
  static void step(Acc& acc, T x, Int place, double, double) {
    const auto value = static_cast<Wide<T>>(x);
    if (acc.place < 0 || beats(value, acc.value)) acc = {value, place};
  }
  static void merge(Acc& acc, const Acc& other) {
    if (other.place < 0) return;
    if (acc.place < 0 || beats(other.value, acc.value) || (!beats(acc.value, other.value) && other.place < acc.place))
      acc = other;
  }
};

// Kept or reduced dimensions, outermost first, merged where exact. Strides in bytes of the input.
struct Dims {
  int rank = 0;
  Int total = 1;
  Int sizes[kMaxRank] = {};
  Int strides[kMaxRank] = {};

  void add(Int size, Int stride) {
    total *= size;
    if (size == 1) return;
    if (rank > 0 && strides[rank - 1] == stride * size) {
      sizes[rank - 1] *= size;
      strides[rank - 1] = stride;
      return;
    }
    sizes[rank] = size;
    strides[rank++] = stride;
  }
  void finish() {
    if (rank == 0) sizes[rank++] = 1;
  }
  Int inner() const { return sizes[rank - 1]; }
  Int inner_stride() const { return strides[rank - 1]; }
  Int offset(Int element) const {
    Int result = 0;
    for (int d = rank - 1; d >= 0; --d) {
      result += element % sizes[d] * strides[d];
      element /= sizes[d];
    }
    return result;
  }
};

struct Job {
  ReduceAttrs attrs;
  Dims kept, reduced;
  bool tiled = false;  // several outputs at once, along the innermost kept dimension
  const std::byte* data = nullptr;
  simd::LoadFn load = nullptr;
  bool is_block = false;  // the input's dtype is the block type
};

template <typename T>
const T* block_of(const Job& job, const std::byte* from, Int stride, Int n, T* buffer) {
  if (job.is_block && stride == static_cast<Int>(sizeof(T))) return reinterpret_cast<const T*>(from);
  job.load(from, stride, n, buffer);
  return buffer;
}

template <typename R, typename T>
constexpr bool kHasLoop = std::is_same_v<T, float>&& R::kKind != kNoKind;

// Adds elements [begin, end) of the reduced dimensions to the accumulators of outputs `first` .. `first + width`.
template <typename R, typename T>
void accumulate(const Job& job, Int first, Int width, Int begin, Int end, typename R::Acc* acc, const double* shift) {
  alignas(64) T buffer[kBlock];
  const double parameter = job.attrs.parameter;
  const simd::ReduceTable& loops = simd::reduce();
  const std::byte* base = job.data + job.kept.offset(first);
  if (job.tiled) {
    const Int row = job.reduced.inner_stride(), size = static_cast<Int>(sizeof(T));
    // Rows readable in place are added in one call.
    const bool in_place = job.is_block && job.kept.inner_stride() == size && row % size == 0;
    for (Int r = begin; r < end;) {
      const Int inner = job.reduced.inner();
      const Int rows = kHasLoop<R, T> && in_place ? std::min(inner - r % inner, end - r) : 1;
      const T* x = block_of(job, base + job.reduced.offset(r), job.kept.inner_stride(), width, buffer);
      if constexpr (kHasLoop<R, T>)
        loops.columns[static_cast<int>(R::kKind)](x, row / size, rows, width, shift, acc);
      else
        for (Int j = 0; j < width; ++j) R::step(acc[j], x[j], r, shift[j], parameter);
      r += rows;
    }
    return;
  }
  typename R::Acc lanes[kLanes];
  for (auto& lane : lanes) lane = R::kStart;
  const Int inner = job.reduced.inner(), stride = job.reduced.inner_stride();
  for (Int r = begin; r < end;) {
    const Int n = std::min({inner - r % inner, end - r, kBlock});
    const T* x = block_of(job, base + job.reduced.offset(r), stride, n, buffer);
    if constexpr (kHasLoop<R, T>) {
      loops.run[static_cast<int>(R::kKind)](x, n, shift[0], lanes);
    } else {
      Int i = 0;
      for (; i + kLanes <= n; i += kLanes)
        for (Int j = 0; j < kLanes; ++j) R::step(lanes[j], x[i + j], r + i + j, shift[0], parameter);
      for (Int j = 0; i + j < n; ++j) R::step(lanes[j], x[i + j], r + i + j, shift[0], parameter);
    }
    r += n;
  }
  for (const auto& lane : lanes) R::merge(acc[0], lane);
}

// Adds all elements, part by part.
template <typename R, typename T>
void accumulate_all(const Job& job, Int first, Int width, typename R::Acc* acc, const double* shift) {
  std::fill(acc, acc + width, R::kStart);
  for (Int begin = 0; begin < job.reduced.total; begin += kPart) {
    typename R::Acc part[kTile];
    std::fill(part, part + width, R::kStart);
    accumulate<R, T>(job, first, width, begin, std::min(begin + kPart, job.reduced.total), part, shift);
    for (Int j = 0; j < width; ++j) R::merge(acc[j], part[j]);
  }
}

// Writes `width` outputs from `first` on from their accumulators, which are complete.
template <typename R>
void write(const KernelContext& ctx, const Job& job, Int first, Int width, const typename R::Acc* acc,
           const double* shift) {
  const auto count = static_cast<double>(job.reduced.total);
  const double parameter = job.attrs.parameter;
  double real[2][kTile];
  Int integer[2][kTile];
  bool is_integer[2] = {false, true};
  for (Int j = 0; j < width; ++j) {
    if constexpr (std::is_same_v<typename R::Acc, double>) {
      double v = acc[j];
      switch (job.attrs.op) {
        case ReduceOp::mean:
          v /= count;
          break;
        case ReduceOp::root_of_squares:
          v = std::sqrt(v);
          break;
        case ReduceOp::power_norm:
          v = std::pow(v, 1 / parameter);
          break;
        case ReduceOp::variance:
        case ReduceOp::deviation:
        case ReduceOp::mean_and_variance:
          v /= std::max(0.0, count - parameter);
          if (job.attrs.op == ReduceOp::deviation) v = std::sqrt(v);
          real[1][j] = shift[j];
          is_integer[1] = false;
          break;
        case ReduceOp::log_sum_exp:
          v = std::log(v) + shift[j];
          break;
        default:
          break;
      }
      real[0][j] = v;
    } else if constexpr (std::is_same_v<typename R::Acc, Int>) {
      is_integer[0] = true;
      integer[0][j] = acc[j];
    } else {
      const bool place_only = job.attrs.op == ReduceOp::argmax || job.attrs.op == ReduceOp::argmin;
      is_integer[0] = place_only || std::is_same_v<decltype(acc[j].value), Int>;
      integer[0][j] = place_only ? acc[j].place : static_cast<Int>(is_integer[0] ? acc[j].value : 0);
      real[0][j] = static_cast<double>(acc[j].value);
      integer[1][j] = acc[j].place;
    }
  }
  const simd::ConvertFns& convert = *simd::elementwise().convert;
  for (std::size_t k = 0; k < ctx.output_descs.size(); ++k) {
    const DType dtype = ctx.output_descs[k].dtype;
    const auto size = static_cast<Int>(byte_size(dtype));
    const auto type = is_integer[k] ? simd::BlockClass::i64 : simd::BlockClass::f64;
    const void* block = is_integer[k] ? static_cast<const void*>(integer[k]) : real[k];
    convert.store[static_cast<int>(type)][static_cast<int>(dtype)](
        block, size, width, ctx.output<std::byte>(static_cast<int>(k)) + first * size);
  }
}

// The shift of an output, from the accumulator of the first of two passes.
double shift_of(ReduceOp op, double acc, Int count) {
  if (op == ReduceOp::log_sum_exp) return std::isinf(acc) ? 0 : acc;  // avoids inf - inf
  return acc / static_cast<double>(count);
}

struct NoPass {};

Int width_at(const Job& job, Int first, Int end) {
  return job.tiled ? std::min({kTile, job.kept.inner() - first % job.kept.inner(), end - first}) : 1;
}

// Each thread reduces whole outputs.
template <typename First, typename R, typename T>
void by_output(const KernelContext& ctx, const Job& job) {
  const Int outputs = job.kept.total;
  Int begin = 0, end = outputs;
  if (outputs * std::max<Int>(job.reduced.total, 1) < kMinParallelElements) {
    if (ctx.task != 0) return;
  } else {
    const KernelContext::Range range = ctx.range(outputs);
    begin = range.begin;
    end = range.end;
  }
  for (Int o = begin; o < end;) {
    const Int width = width_at(job, o, end);
    double shift[kTile] = {};
    if constexpr (!std::is_same_v<First, NoPass>) {
      typename First::Acc acc[kTile];
      accumulate_all<First, T>(job, o, width, acc, shift);
      for (Int j = 0; j < width; ++j) shift[j] = shift_of(job.attrs.op, acc[j], job.reduced.total);
    }
    typename R::Acc acc[kTile];
    accumulate_all<R, T>(job, o, width, acc, shift);
    write<R>(ctx, job, o, width, acc, shift);
    o += width;
  }
}

// Reduces this task's parts of the reduced dimensions, for all outputs, into `all`: [parts][outputs].
template <typename R, typename T>
void partials(const KernelContext& ctx, const Job& job, typename R::Acc* all, const double* shifts) {
  const KernelContext::Range range = ctx.range(part_count(job.reduced.total));
  for (Int part = range.begin; part < range.end; ++part) {
    const Int begin = part * kPart, end = std::min(begin + kPart, job.reduced.total);
    for (Int o = 0; o < job.kept.total;) {
      const Int width = width_at(job, o, job.kept.total);
      typename R::Acc* mine = all + part * job.kept.total + o;
      std::fill(mine, mine + width, R::kStart);
      accumulate<R, T>(job, o, width, begin, end, mine, shifts + o);
      o += width;
    }
  }
}

template <typename R>
void fold(const Job& job, const typename R::Acc* all, Int first, Int width, typename R::Acc* acc) {
  std::fill(acc, acc + width, R::kStart);
  for (Int part = 0; part < part_count(job.reduced.total); ++part)
    for (Int j = 0; j < width; ++j) R::merge(acc[j], all[part * job.kept.total + first + j]);
}

constexpr Int kFewOutputsPerThread = 4;
constexpr Int kFewestParts = 4;  // fewest parts that threads divide
struct Partial {
  Int words[2];
};

bool divides_elements(Int outputs, Int inputs, int threads) {
  return reduce_scratch_bytes(outputs, inputs, threads) > 0;
}

// For few outputs: threads divide the parts of each output's elements, whose results are combined in the scratch.
// Scratch: [parts][outputs] results, then [outputs] shifts.
enum ElementPhase : int { kZeroShifts, kFirstPass, kShifts, kLastPass, kFinish, kElementPhases };

template <typename First, typename R, typename T>
void by_element(const KernelContext& ctx, const Job& job) {
  const Int outputs = job.kept.total;
  auto* shifts = reinterpret_cast<double*>(ctx.scratch_bytes +
                                           part_count(job.reduced.total) * outputs * static_cast<Int>(sizeof(Partial)));
  static_assert(sizeof(typename R::Acc) <= sizeof(Partial));
  auto* all = reinterpret_cast<typename R::Acc*>(ctx.scratch_bytes);
  switch (ctx.phase) {
    case kZeroShifts:
      for (Int o = ctx.task; o < outputs; o += ctx.tasks) shifts[o] = 0;
      return;
    case kFirstPass:
      if constexpr (!std::is_same_v<First, NoPass>) {
        auto* first = reinterpret_cast<typename First::Acc*>(ctx.scratch_bytes);
        partials<First, T>(ctx, job, first, shifts);
      }
      return;
    case kShifts:
      if constexpr (!std::is_same_v<First, NoPass>) {
        const auto* first = reinterpret_cast<const typename First::Acc*>(ctx.scratch_bytes);
        for (Int o = ctx.task; o < outputs; o += ctx.tasks) {
          typename First::Acc acc[1];
          fold<First>(job, first, o, 1, acc);
          shifts[o] = shift_of(job.attrs.op, acc[0], job.reduced.total);
        }
      }
      return;
    case kLastPass:
      return partials<R, T>(ctx, job, all, shifts);
    default:
      break;
  }
  if (ctx.task != 0) return;
  for (Int o = 0; o < outputs; o += kTile) {
    const Int width = std::min(kTile, outputs - o);
    typename R::Acc acc[kTile];
    fold<R>(job, all, o, width, acc);
    write<R>(ctx, job, o, width, acc, shifts + o);
  }
}

template <typename First, typename R, typename T>
void execute(const KernelContext& ctx, const Job& job) {
  if (divides_elements(job.kept.total, job.kept.total * job.reduced.total, ctx.tasks)) {
    by_element<First, R, T>(ctx, job);
  } else {
    by_output<First, R, T>(ctx, job);
  }
}

template <typename T>
void dispatch(const KernelContext& ctx, const Job& job) {
  switch (job.attrs.op) {
    case ReduceOp::sum:
      return execute<NoPass, Sum<T>, T>(ctx, job);
    case ReduceOp::prod:
      return execute<NoPass, Product<T>, T>(ctx, job);
    case ReduceOp::amax:
      return execute<NoPass, Extreme<T, true>, T>(ctx, job);
    case ReduceOp::amin:
      return execute<NoPass, Extreme<T, false>, T>(ctx, job);
    case ReduceOp::any:
      return execute<NoPass, Any<T>, T>(ctx, job);
    case ReduceOp::all:
      return execute<NoPass, All<T>, T>(ctx, job);
    case ReduceOp::count_nonzero:
      return execute<NoPass, CountNonzero<T>, T>(ctx, job);
    case ReduceOp::argmax:
    case ReduceOp::max_and_index:
      return execute<NoPass, ArgExtreme<T, true>, T>(ctx, job);
    case ReduceOp::argmin:
    case ReduceOp::min_and_index:
      return execute<NoPass, ArgExtreme<T, false>, T>(ctx, job);
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (job.attrs.op) {
      case ReduceOp::mean:
        return execute<NoPass, Sum<T>, T>(ctx, job);
      case ReduceOp::abs_sum:
        return execute<NoPass, SumOf<T, absolute, ReduceKind::absolutes>, T>(ctx, job);
      case ReduceOp::root_of_squares:
        return execute<NoPass, SumOf<T, squared, ReduceKind::squares>, T>(ctx, job);
      case ReduceOp::power_norm:
        return execute<NoPass, SumOf<T, power>, T>(ctx, job);
      case ReduceOp::abs_max:
        return execute<NoPass, AbsExtreme<T, true>, T>(ctx, job);
      case ReduceOp::abs_min:
        return execute<NoPass, AbsExtreme<T, false>, T>(ctx, job);
      case ReduceOp::variance:
      case ReduceOp::deviation:
      case ReduceOp::mean_and_variance:
        return execute<Sum<T>, SumOf<T, squared_difference, ReduceKind::squared_differences>, T>(ctx, job);
      case ReduceOp::log_sum_exp:
        return execute<Extreme<T, true>, SumOf<T, exponential, ReduceKind::exponentials>, T>(ctx, job);
      default:
        break;
    }
  }
  ctx.fail("this reduction has no meaning for integers");
}

void reduce(const KernelContext& ctx) noexcept {
  Job job;
  job.attrs = ctx.attrs<ReduceAttrs>();
  job.data = ctx.input<std::byte>(0);
  const TensorDesc& x = ctx.in(0);
  const auto size = static_cast<Int>(byte_size(x.dtype));
  for (int d = 0; d < x.rank(); ++d) {
    const bool reduced = (job.attrs.reduced >> d & 1u) != 0;
    (reduced ? job.reduced : job.kept).add(x.shape[d], x.strides[static_cast<std::size_t>(d)] * size);
  }
  job.kept.finish();
  job.reduced.finish();
  if (job.kept.total == 0) return;
  // Which kind of dimension has the smaller stride becomes the inner loop.
  const Int across = std::abs(job.kept.inner_stride()), along = std::abs(job.reduced.inner_stride());
  job.tiled = job.kept.inner() >= 4 && across > 0 && (across < along || job.reduced.inner() == 1);
  const auto type = x.dtype == DType::f64 ? simd::BlockClass::f64
                    : is_float(x.dtype)   ? simd::BlockClass::f32
                                          : simd::BlockClass::i64;
  job.load = simd::elementwise().convert->load[static_cast<int>(type)][static_cast<int>(x.dtype)];
  job.is_block = x.dtype == DType::f32 || x.dtype == DType::f64 || x.dtype == DType::i64;
  switch (type) {
    case simd::BlockClass::f32:
      return dispatch<float>(ctx, job);
    case simd::BlockClass::f64:
      return dispatch<double>(ctx, job);
    default:
      return dispatch<Int>(ctx, job);
  }
}

int reduce_phases(const KernelContext& ctx) noexcept {
  const auto reduced = ctx.attrs<ReduceAttrs>().reduced;
  Int outputs = 1;
  for (int d = 0; d < ctx.in(0).rank(); ++d)
    if ((reduced >> d & 1u) == 0) outputs *= ctx.in(0).shape[d];
  return divides_elements(outputs, ctx.in(0).numel(), ctx.tasks) ? kElementPhases : 1;
}

}  // namespace

const Kernel kReduce{"reduce", reduce, 0, reduce_phases};

std::int64_t reduce_scratch_bytes(std::int64_t outputs, std::int64_t inputs, int max_threads) {
  if (max_threads < 2 || outputs == 0 || outputs >= kFewOutputsPerThread * max_threads) return 0;
  const Int parts = part_count(inputs / outputs);
  if (parts < kFewestParts) return 0;
  return outputs * (parts * static_cast<Int>(sizeof(Partial)) + static_cast<Int>(sizeof(double)));
}

}  // namespace graft
