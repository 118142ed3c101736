#include "text/grammar/json_numbers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

namespace graft::text::grammar {
namespace {

constexpr std::int64_t kFractionDigits = 18;

ExprPtr digits(std::int64_t least, std::int64_t most) { return repeat(chars({{'0', '9'}}), least, most); }
ExprPtr digit(char first, char last) { return chars({{static_cast<char32_t>(first), static_cast<char32_t>(last)}}); }

// Numbers of as many digits, from `least` to `most`.
ExprPtr of_equal_length(const std::string& least, const std::string& most) {
  if (least.empty()) return sequence({});
  const auto rest = static_cast<std::int64_t>(least.size()) - 1;
  const std::string zeros(least.size() - 1, '0'), nines(least.size() - 1, '9');
  if (least[0] == '0' + 0 && most[0] == '9' && least.substr(1) == zeros && most.substr(1) == nines)
    return digits(rest + 1, rest + 1);
  if (least[0] == most[0])
    return sequence({digit(least[0], least[0]), of_equal_length(least.substr(1), most.substr(1))});
  std::vector<ExprPtr> parts = {sequence({digit(least[0], least[0]), of_equal_length(least.substr(1), nines)}),
                                sequence({digit(most[0], most[0]), of_equal_length(zeros, most.substr(1))})};
  if (most[0] - least[0] > 1)
    parts.push_back(
        sequence({digit(static_cast<char>(least[0] + 1), static_cast<char>(most[0] - 1)), digits(rest, rest)}));
  return choice(std::move(parts));
}

// 0 <= least; null where most is smaller.
ExprPtr not_negative(std::int64_t least, std::int64_t most) {
  if (least > most) return nullptr;
  std::vector<ExprPtr> parts;
  std::int64_t begin = 0, end = 9;
  for (;;) {
    const std::int64_t from = std::max(least, begin), to = std::min(most, end);
    if (from <= to) parts.push_back(of_equal_length(std::to_string(from), std::to_string(to)));
    if (end >= most) break;
    begin = end + 1;
    end = end * 10 + 9;
  }
  return choice(std::move(parts));
}

ExprPtr either(ExprPtr a, ExprPtr b) {
  if (!a || !b) return a ? a : b;
  return choice({std::move(a), std::move(b)});
}

// 0 <= least <= most.
ExprPtr sizes_in(const NumberBounds& bounds) {
  const auto integer = [](std::int64_t n) { return bytes(std::to_string(n)); };
  const ExprPtr fraction = optional(sequence({bytes("."), digits(1, kFractionDigits)}));
  const ExprPtr nothing_more = optional(sequence({bytes("."), repeat(bytes("0"), 1, kFractionDigits)}));
  const ExprPtr above = sequence({bytes("."), digits(0, kFractionDigits), digit('1', '9')});
  ExprPtr all;
  if (bounds.least == bounds.most) {
    if (bounds.least_excluded || bounds.most_excluded) return nullptr;
    return sequence({integer(bounds.least), nothing_more});
  }
  all = sequence({integer(bounds.least), bounds.least_excluded ? above : fraction});
  if (const ExprPtr inner = not_negative(bounds.least + 1, bounds.most - 1))
    all = either(all, sequence({inner, fraction}));
  if (!bounds.most_excluded) all = either(all, sequence({integer(bounds.most), nothing_more}));
  return all;
}

// Digits whose number is a multiple: what is left of one is known by how many there are and the remainder so far.
class Multiples {
 public:
  Multiples(const MultiplesBounds& bounds, Rules& rules) : bounds_(bounds), rules_(rules) {}

  // 0 <= least; null where there is none.
  ExprPtr not_negative(std::int64_t least, std::int64_t most) {
    std::vector<ExprPtr> parts;
    const auto digits = static_cast<std::size_t>(bounds_.decimals) + 1;  // at least, zeros in front
    for (std::size_t count = digits; count <= 15; ++count) {
      const std::string nines(count, '9');
      const std::int64_t begin = count == digits ? 0 : std::stoll(nines) / 10 + 1, end = std::stoll(nines);
      const std::int64_t from = std::max(least, begin), to = std::min(most, end);
      if (from <= to)
        if (ExprPtr part = of_equal_length(padded(from, count), padded(to, count), 0)) parts.push_back(std::move(part));
    }
    return parts.empty() ? nullptr : choice(std::move(parts));
  }

 private:
  static std::string padded(std::int64_t number, std::size_t digits) {
    const std::string text = std::to_string(number);
    return std::string(digits - text.size(), '0') + text;
  }
  std::int64_t next(std::int64_t remainder, char digit) const {
    return (remainder * 10 + (digit - '0')) % bounds_.modulus;
  }
  // The digit that has `left` digits behind it.
  ExprPtr written(char one, std::size_t left) const {
    const bool point = bounds_.decimals > 0 && left + 1 == static_cast<std::size_t>(bounds_.decimals);
    return bytes(point ? std::string{'.', one} : std::string{one});
  }

  // Of as many digits, from `least` to `most`; before them the remainder was `remainder`.
  ExprPtr of_equal_length(const std::string& least, const std::string& most, std::int64_t remainder) {
    const std::size_t left = least.size();
    const std::string zeros(left, '0'), nines(left, '9');
    if (least == zeros && most == nines) return any(left, remainder);
    std::vector<ExprPtr> ways;
    for (char one = least[0]; one <= most[0]; ++one) {
      const std::string from = one == least[0] ? least.substr(1) : zeros.substr(1);
      const std::string to = one == most[0] ? most.substr(1) : nines.substr(1);
      if (ExprPtr rest = of_equal_length(from, to, next(remainder, one)))
        ways.push_back(sequence({written(one, left - 1), std::move(rest)}));
    }
    return ways.empty() ? nullptr : choice(std::move(ways));
  }

  ExprPtr any(std::size_t left, std::int64_t remainder) {
    if (left == 0) return remainder == 0 ? sequence({}) : nullptr;
    const auto key = std::pair(left, remainder);
    if (const auto found = rules_of_.find(key); found != rules_of_.end())
      return found->second ? rule(*found->second) : nullptr;
    std::vector<ExprPtr> ways;
    for (char one = '0'; one <= '9'; ++one)
      if (ExprPtr rest = any(left - 1, next(remainder, one)))
        ways.push_back(sequence({written(one, left - 1), std::move(rest)}));
    if (ways.empty()) {
      rules_of_[key] = std::nullopt;
      return nullptr;
    }
    const std::size_t index = rules_.add("a multiple", choice(std::move(ways)));
    rules_of_[key] = index;
    return rule(index);
  }

  const MultiplesBounds& bounds_;
  Rules& rules_;
  std::map<std::pair<std::size_t, std::int64_t>, std::optional<std::size_t>> rules_of_;
};

}  // namespace

void NumberBounds::at_least(double value, bool excluded, bool integer) {
  if (!(value > static_cast<double>(-kLargest))) return;
  std::int64_t bound = value >= static_cast<double>(kLargest) ? kLargest : static_cast<std::int64_t>(std::ceil(value));
  if (value > static_cast<double>(kLargest)) excluded = true;
  if (integer && excluded && static_cast<double>(bound) <= value) {
    ++bound;
    excluded = false;
  }
  if (bound > least || (bound == least && excluded)) {
    least_excluded = !integer && excluded;
    least = bound;
  }
}

void NumberBounds::at_most(double value, bool excluded, bool integer) {
  if (!(value < static_cast<double>(kLargest))) return;
  std::int64_t bound =
      value <= static_cast<double>(-kLargest) ? -kLargest : static_cast<std::int64_t>(std::floor(value));
  if (value < static_cast<double>(-kLargest)) excluded = true;
  if (integer && excluded && static_cast<double>(bound) >= value) {
    --bound;
    excluded = false;
  }
  if (bound < most || (bound == most && excluded)) {
    most_excluded = !integer && excluded;
    most = bound;
  }
}

ExprPtr any_number() {
  static const ExprPtr number = sequence(
      {optional(bytes("-")), choice({bytes("0"), sequence({digit('1', '9'), digits(0, 17)})}),
       optional(sequence({bytes("."), digits(1, kFractionDigits)})),
       optional(sequence({chars({{'E', 'E'}, {'e', 'e'}}), optional(chars({{'+', '+'}, {'-', '-'}})), digits(1, 2)}))});
  return number;
}

ExprPtr integers_in(const NumberBounds& bounds) {
  const ExprPtr upper = not_negative(std::max<std::int64_t>(bounds.least, 0), bounds.most);
  const ExprPtr lower = not_negative(std::max<std::int64_t>(-bounds.most, 1), -bounds.least);
  return either(upper, lower ? sequence({bytes("-"), lower}) : nullptr);
}

ExprPtr multiples_in(const MultiplesBounds& bounds, Rules& rules) {
  Multiples multiples(bounds, rules);
  const ExprPtr upper = multiples.not_negative(std::max<std::int64_t>(bounds.least, 0), bounds.most);
  const ExprPtr lower = multiples.not_negative(std::max<std::int64_t>(-bounds.most, 1), -bounds.least);
  return either(upper, lower ? sequence({bytes("-"), lower}) : nullptr);
}

ExprPtr numbers_in(const NumberBounds& bounds) {
  if (bounds.least > bounds.most) return nullptr;
  ExprPtr upper, lower;
  if (bounds.most >= 0) {
    NumberBounds sizes = bounds;
    if (sizes.least < 0) {
      sizes.least = 0;
      sizes.least_excluded = false;
    }
    upper = sizes_in(sizes);
  }
  if (bounds.least < 0) {
    NumberBounds sizes;
    sizes.least = std::max<std::int64_t>(-bounds.most, 0);
    sizes.least_excluded = bounds.most >= 0 || bounds.most_excluded;  // not -0
    sizes.most = -bounds.least;
    sizes.most_excluded = bounds.least_excluded;
    lower = sequence({bytes("-"), sizes_in(sizes)});
  }
  return either(upper, lower);
}

}  // namespace graft::text::grammar
