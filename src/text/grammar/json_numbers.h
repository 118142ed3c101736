#pragma once

#include <cstdint>

#include "text/grammar/expr.h"

// Numbers as JSON has them, in decimal. All are below 10^18 in size: a text must not be endless.
namespace graft::text::grammar {

struct NumberBounds {
  static constexpr std::int64_t kLargest = 999'999'999'999'999'999;
  std::int64_t least = -kLargest, most = kLargest;
  bool least_excluded = false, most_excluded = false;  // of numbers with a fraction; integers have moved on instead

  // Narrow the bounds. Those that no number below 10^18 can be beyond change nothing.
  void at_least(double value, bool excluded, bool integer);
  void at_most(double value, bool excluded, bool integer);
};

// Multiples of modulus / 10^decimals, from least / 10^decimals to most / 10^decimals, all written with as many
// decimals.
struct MultiplesBounds {
  static constexpr std::int64_t kLargest = 999'999'999'999'999;  // below 10^15, so that there are not too many rules
  static constexpr std::int64_t kMostModulus = 400;
  static constexpr int kMostDecimals = 9;
  std::int64_t modulus = 1;
  int decimals = 0;
  std::int64_t least = -kLargest, most = kLargest;
};

ExprPtr any_number();
// Null where there are none.
ExprPtr integers_in(const NumberBounds& bounds);
ExprPtr numbers_in(const NumberBounds& bounds);
// Adds the rules that it needs.
ExprPtr multiples_in(const MultiplesBounds& bounds, Rules& rules);

}  // namespace graft::text::grammar
