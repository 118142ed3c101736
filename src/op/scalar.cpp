#include "op/scalar.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "op/dims.h"

namespace graft {
namespace {

using Integer = std::int64_t;

Refusal accept(const NodeView&) { return {}; }

Scalar sym_size(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "a 0-d tensor has no sizes");
  return Scalar::of(self.size(wrap_dim(call.integer("dim"), self.rank())));
}

Scalar sym_numel(const Call& call) { return Scalar::of(call.tensor("self").numel()); }

// --- Python's numbers; the exporter names the arguments of a Python function a, b, c ---

Integer whole(const Call& call, bool overflow, Integer value) {
  GRAFT_CHECK(InvalidArgument, !overflow, call.target(), ": the result of node ", call.node().name,
              " does not fit 64 bits");
  return value;
}

[[noreturn]] void divided_by_zero(const Call& call) {
  throw InvalidArgument(str(call.target(), ": division by zero in node ", call.node().name));
}

Scalar integer_of(const Call& call, double value) {
  // 2^63 is the first double that does not fit; NaN fails both comparisons.
  GRAFT_CHECK(InvalidArgument, value >= -0x1p63 && value < 0x1p63, call.target(), ": node ", call.node().name,
              ": cannot convert ", value, " to a 64-bit integer");
  return Scalar::of(static_cast<Integer>(value));
}

struct Operands {
  Scalar a, b;
  bool real() const { return a.is_real() || b.is_real(); }
};

Operands operands(const Call& call) { return {call.scalar("a"), call.scalar("b")}; }

Scalar add(const Call& call) {
  const auto [a, b] = operands(call);
  if (a.is_real() || b.is_real()) return Scalar::of(a.to_double() + b.to_double());
  Integer r = 0;
  const bool overflow = __builtin_add_overflow(a.i, b.i, &r);
  return Scalar::of(whole(call, overflow, r));
}

Scalar sub(const Call& call) {
  const auto [a, b] = operands(call);
  if (a.is_real() || b.is_real()) return Scalar::of(a.to_double() - b.to_double());
  Integer r = 0;
  const bool overflow = __builtin_sub_overflow(a.i, b.i, &r);
  return Scalar::of(whole(call, overflow, r));
}

Scalar mul(const Call& call) {
  const auto [a, b] = operands(call);
  if (a.is_real() || b.is_real()) return Scalar::of(a.to_double() * b.to_double());
  Integer r = 0;
  const bool overflow = __builtin_mul_overflow(a.i, b.i, &r);
  return Scalar::of(whole(call, overflow, r));
}

// The remainder takes the sign of the divisor, as in Python.
double float_mod(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  return r == 0 ? std::copysign(0.0, b) : r;
}

Scalar floordiv(const Call& call) {
  const auto [a, b] = operands(call);
  if (b.to_double() == 0) divided_by_zero(call);
  if (a.is_real() || b.is_real()) {
    // From the exact remainder: floor(a / b) is off by one where the quotient rounds up to an integer.
    const double x = a.to_double(), y = b.to_double();
    const double quotient = (x - float_mod(x, y)) / y;
    const double floored = std::floor(quotient);
    return Scalar::of(quotient - floored > 0.5 ? floored + 1 : floored);
  }
  whole(call, a.i == std::numeric_limits<Integer>::min() && b.i == -1, 0);
  const Integer quotient = a.i / b.i;
  return Scalar::of(quotient - (a.i % b.i != 0 && (a.i < 0) != (b.i < 0)));
}

Scalar mod(const Call& call) {
  const auto [a, b] = operands(call);
  if (b.to_double() == 0) divided_by_zero(call);
  if (a.is_real() || b.is_real()) return Scalar::of(float_mod(a.to_double(), b.to_double()));
  if (b.i == -1) return Scalar::of(Integer{0});  // the one case that overflows
  const Integer r = a.i % b.i;
  return Scalar::of(r != 0 && (r < 0) != (b.i < 0) ? r + b.i : r);
}

Scalar truediv(const Call& call) {
  const auto [a, b] = operands(call);
  if (b.to_double() == 0) divided_by_zero(call);
  if (a.is_real() || b.is_real()) return Scalar::of(a.to_double() / b.to_double());
  return Scalar::of(static_cast<double>(static_cast<long double>(a.i) / static_cast<long double>(b.i)));
}

Scalar pow(const Call& call) {
  const auto [a, b] = operands(call);
  if (a.is_real() || b.is_real() || b.i < 0) {
    const double x = a.to_double(), y = b.to_double();
    if (x == 0 && y < 0) divided_by_zero(call);
    GRAFT_CHECK(InvalidArgument, x >= 0 || y == std::floor(y), call.target(), ": node ", call.node().name,
                ": a negative number to the power ", y, " is complex");
    return Scalar::of(std::pow(x, y));
  }
  Integer result = 1, base = a.i, exponent = b.i;
  bool overflow = false, base_overflow = false;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) overflow = overflow || base_overflow || __builtin_mul_overflow(result, base, &result);
    base_overflow = base_overflow || __builtin_mul_overflow(base, base, &base);
  }
  return Scalar::of(whole(call, overflow, result));
}

Scalar neg(const Call& call) {
  const Scalar a = call.scalar("a");
  if (a.is_real()) return Scalar::of(-a.f);
  return Scalar::of(
      whole(call, a.i == std::numeric_limits<Integer>::min(), a.i == std::numeric_limits<Integer>::min() ? 0 : -a.i));
}

Scalar pos(const Call& call) {
  const Scalar a = call.scalar("a");
  return a.is_real() ? a : Scalar::of(a.i);
}

Scalar abs(const Call& call) {
  const Scalar a = call.scalar("a");
  if (a.is_real()) return Scalar::of(std::fabs(a.f));
  return a.i < 0 ? neg(call) : Scalar::of(a.i);
}

// long double represents every int64 and every double exactly on the supported machines (x86-64, AArch64).
static_assert(std::numeric_limits<long double>::digits >= 64);
long double exact(const Scalar& s) {
  return s.is_real() ? static_cast<long double>(s.f) : static_cast<long double>(s.i);
}

template <typename Compare>
Scalar compare(const Call& call, Compare compare) {
  const auto [a, b] = operands(call);
  return Scalar::of(static_cast<bool>(compare(exact(a), exact(b))));
}

Scalar eq(const Call& call) {
  return compare(call, [](auto x, auto y) { return x == y; });
}
Scalar ne(const Call& call) {
  return compare(call, [](auto x, auto y) { return x != y; });
}
Scalar lt(const Call& call) {
  return compare(call, [](auto x, auto y) { return x < y; });
}
Scalar le(const Call& call) {
  return compare(call, [](auto x, auto y) { return x <= y; });
}
Scalar gt(const Call& call) {
  return compare(call, [](auto x, auto y) { return x > y; });
}
Scalar ge(const Call& call) {
  return compare(call, [](auto x, auto y) { return x >= y; });
}

Scalar larger(const Call& call) {
  const auto [a, b] = operands(call);
  return exact(b) > exact(a) ? b : a;
}

Scalar smaller(const Call& call) {
  const auto [a, b] = operands(call);
  return exact(b) < exact(a) ? b : a;
}

// torch.sym_max and sym_min return a float if one operand is one.
Scalar promoted(const Call& call, const Scalar& s) { return operands(call).real() ? Scalar::of(s.to_double()) : s; }
Scalar sym_max(const Call& call) { return promoted(call, larger(call)); }
Scalar sym_min(const Call& call) { return promoted(call, smaller(call)); }

Scalar to_float(const Call& call) { return Scalar::of(call.real("a")); }
// Python's truth value of a number.
bool truth(const Call& call) {
  const Scalar a = call.scalar("a");
  return a.is_real() ? a.f != 0 : a.i != 0;
}
Scalar to_bool(const Call& call) { return Scalar::of(truth(call)); }
Scalar negated(const Call& call) { return Scalar::of(!truth(call)); }

template <double (*round)(double)>
Scalar rounded(const Call& call) {
  const Scalar a = call.scalar("a");
  return a.is_real() ? integer_of(call, round(a.f)) : Scalar::of(a.i);
}

Scalar choose(const Call& call) { return truth(call) ? call.scalar("b") : call.scalar("c"); }

Scalar sym_sum(const Call& call) {
  Integer total = 0;
  for (Integer part : call.integers("a")) {
    const bool overflow = __builtin_add_overflow(total, part, &total);
    whole(call, overflow, 0);
  }
  return Scalar::of(total);
}

Scalar square_root(const Call& call) {
  const double a = call.real("a");
  GRAFT_CHECK(InvalidArgument, !(a < 0), call.target(), ": node ", call.node().name, ": square root of ", a);
  return Scalar::of(std::sqrt(a));
}

template <typename Combine>
Scalar bits(const Call& call, Combine combine) {
  const Scalar a = call.scalar("a"), b = call.scalar("b");
  const Integer r = combine(call.integer("a"), call.integer("b"));
  const bool both = a.kind == ir::ValueKind::boolean && b.kind == ir::ValueKind::boolean;
  return both ? Scalar::of(r != 0) : Scalar::of(r);
}

Scalar bit_and(const Call& call) {
  return bits(call, [](Integer x, Integer y) { return x & y; });
}
Scalar bit_or(const Call& call) {
  return bits(call, [](Integer x, Integer y) { return x | y; });
}
Scalar bit_xor(const Call& call) {
  return bits(call, [](Integer x, Integer y) { return x ^ y; });
}
Scalar bit_not(const Call& call) { return Scalar::of(~call.integer("a")); }

Integer shift_count(const Call& call) {
  const Integer count = call.integer("b");
  GRAFT_CHECK(InvalidArgument, count >= 0, call.target(), ": node ", call.node().name, ": shift by ", count);
  return count;
}

Scalar shift_left(const Call& call) {
  const Integer a = call.integer("a"), count = shift_count(call);
  if (a == 0) return Scalar::of(Integer{0});
  Integer r = 0;
  const bool overflow = count > 62 || __builtin_mul_overflow(a, Integer{1} << (count > 62 ? 0 : count), &r);
  return Scalar::of(whole(call, overflow, r));
}

Scalar shift_right(const Call& call) {
  const Integer count = shift_count(call);
  return Scalar::of(call.integer("a") >> (count > 63 ? 63 : count));
}

double half_to_even(double value) { return std::nearbyint(value); }

Refusal refuse_digits(const NodeView& node) { return node.has("b") ? "rounding to decimals" : Refusal{}; }
Refusal refuse_three(const NodeView& node) { return node.has("c") ? "more than two operands" : Refusal{}; }
// Strides and offsets are those of PyTorch, not of graft's tensors.
Refusal refuse_memory(const NodeView&) { return "the layout of a tensor in PyTorch's memory is not kept here"; }

Scalar unreachable(const Call& call) {
  throw Unsupported(str(call.target(), ": the layout of a tensor in PyTorch's memory is not kept here"));
}

}  // namespace

std::span<const ScalarOperator> scalar_operators() {
  static constexpr ScalarOperator operators[] = {
      {"aten.sym_size.int", accept, sym_size},
      {"aten.sym_numel.default", accept, sym_numel},
      {"aten.sym_stride.int", refuse_memory, unreachable},
      {"aten.sym_storage_offset.default", refuse_memory, unreachable},
      {"python.add", accept, add},
      {"python.sub", accept, sub},
      {"python.mul", accept, mul},
      {"python.floordiv", accept, floordiv},
      {"python.mod", accept, mod},
      {"python.truediv", accept, truediv},
      {"python.pow", refuse_three, pow},
      {"python.neg", accept, neg},
      {"python.pos", accept, pos},
      {"python.abs", accept, abs},
      {"python.eq", accept, eq},
      {"python.ne", accept, ne},
      {"python.lt", accept, lt},
      {"python.le", accept, le},
      {"python.gt", accept, gt},
      {"python.ge", accept, ge},
      {"python.max", refuse_three, larger},
      {"python.min", refuse_three, smaller},
      {"python.sym_max", accept, sym_max},
      {"python.sym_min", accept, sym_min},
      {"python.float", accept, to_float},
      {"python.sym_float", accept, to_float},
      {"python.int", accept, rounded<std::trunc>},
      {"python.sym_int", accept, rounded<std::trunc>},
      {"python.trunc", accept, rounded<std::trunc>},
      {"python.ceil", accept, rounded<std::ceil>},
      {"python.floor", accept, rounded<std::floor>},
      {"python.round", refuse_digits, rounded<half_to_even>},
      {"python.bool", accept, to_bool},
      {"python.truth", accept, to_bool},
      {"python.not_", accept, negated},
      {"python.sym_not", accept, negated},
      {"python.sym_ite", accept, choose},
      {"python.sym_sum", accept, sym_sum},
      {"python.sqrt", accept, square_root},
      {"python._sym_sqrt", accept, square_root},
      {"python.and_", accept, bit_and},
      {"python.or_", accept, bit_or},
      {"python.xor", accept, bit_xor},
      {"python.invert", accept, bit_not},
      {"python.inv", accept, bit_not},
      {"python.lshift", accept, shift_left},
      {"python.rshift", accept, shift_right},
  };
  return operators;
}

}  // namespace graft
