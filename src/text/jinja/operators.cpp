#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/check.h"
#include "text/jinja/interpreter.h"

namespace graft::text::jinja {
namespace {

constexpr std::size_t kMaxRepeated = std::size_t{1} << 24;

[[noreturn]] void no_operator(const std::string& sign, const Value& left, const Value& right) {
  throw InvalidArgument(
      graft::str("there is no '", sign, "' of values of type ", left.type_name(), " and ", right.type_name()));
}

Value repeated(const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const std::size_t size = value.text() != nullptr ? value.text()->size() : value.sequence()->items.size();
  GRAFT_CHECK(InvalidArgument, size == 0 || count <= kMaxRepeated / size, "repeating ", size, " by ", times,
              " is too large");
  if (value.text() != nullptr) {
    std::string out;
    for (std::size_t i = 0; i < count && size > 0; ++i) out += *value.text();
    return out;
  }
  Values out;
  for (std::size_t i = 0; i < count && size > 0; ++i)
    out.insert(out.end(), value.sequence()->items.begin(), value.sequence()->items.end());
  return Value::list(std::move(out), value.sequence()->kind);
}

// Python rounds to minus infinity.
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Value integer_arithmetic(const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  if (sign == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (sign == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    out = 1;
    for (std::int64_t base = a, rest = b; rest > 0 && !overflow; rest /= 2) {
      if (rest % 2 != 0) overflow = __builtin_mul_overflow(out, base, &out);
      if (rest > 1) overflow |= __builtin_mul_overflow(base, base, &base);
    }
  } else {
    GRAFT_CHECK(InvalidArgument, b != 0, "division by zero");
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) out = sign == "//" ? floor_div(a, b) : a - floor_div(a, b) * b;
  }
  GRAFT_CHECK(InvalidArgument, !overflow, "the result of ", a, " ", sign, " ", b, " is too large");
  return out;
}

Value real_arithmetic(const std::string& sign, double a, double b) {
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  GRAFT_CHECK(InvalidArgument, b != 0, "division by zero");
  if (sign == "/") return a / b;
  if (sign == "//") return std::floor(a / b);
  return a - std::floor(a / b) * b;
}

}  // namespace

Value add(const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    if (!left.is_markup() && !right.is_markup()) return *left.text() + *right.text();
    const auto safe = [](const Value& side) { return side.is_markup() ? *side.text() : escaped_html(*side.text()); };
    return Value::markup(safe(left) + safe(right));
  }
  if (left.is_integer() && right.is_integer()) {
    std::int64_t out = 0;
    GRAFT_CHECK(InvalidArgument, !__builtin_add_overflow(left.integer(), right.integer(), &out), "the sum of ",
                left.integer(), " and ", right.integer(), " is too large");
    return out;
  }
  if (left.is_number() && right.is_number()) return left.real() + right.real();
  const Sequence* a = left.sequence();
  const Sequence* b = right.sequence();
  if (a == nullptr || b == nullptr || a->kind != b->kind) no_operator("+", left, right);
  Values out = a->items;
  out.insert(out.end(), b->items.begin(), b->items.end());
  return Value::list(std::move(out), a->kind);
}

Value arithmetic(const std::string& sign, const Value& left, const Value& right) {
  if (sign == "%" && left.text() != nullptr) {
    const Sequence* values = right.sequence();
    const bool tuple = values != nullptr && values->kind == Sequence::Kind::tuple;
    return format_percent(*left.text(), tuple ? values->items : Values{right});
  }
  if (sign == "*") {
    if ((left.text() != nullptr || left.sequence() != nullptr) && right.is_integer())
      return repeated(left, right.integer());
    if ((right.text() != nullptr || right.sequence() != nullptr) && left.is_integer())
      return repeated(right, left.integer());
  }
  if (left.is_integer() && right.is_integer()) return integer_arithmetic(sign, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return real_arithmetic(sign, left.real(), right.real());
  no_operator(sign, left, right);
}

bool contains(const Value& container, const Value& value) {
  if (container.text() != nullptr) {
    if (value.is_undefined()) return false;
    GRAFT_CHECK(InvalidArgument, value.text() != nullptr, "a value of type ", value.type_name(),
                " cannot be in a text");
    return container.text()->find(*value.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(value) != nullptr;
  const Values items = container.iterate();
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return item == value; });
}

std::string format_percent(const std::string& format, const Values& values) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    check_text(out.size());
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::size_t end = format.find_first_not_of("-+ #0123456789.", i + 1);
    GRAFT_CHECK(InvalidArgument, end != std::string::npos, "the format '", format, "' ends within a '%'");
    const char kind = format[end];
    if (kind == '%') {
      out += '%';
      i = end;
      continue;
    }
    GRAFT_CHECK(InvalidArgument, next < values.size(), "the format '", format, "' wants more than ", values.size(),
                " values");
    const Value& value = values[next++];
    const std::string flags = "%" + format.substr(i + 1, end - i - 1);
    char buffer[1100];
    const auto put = [&](int size) {
      GRAFT_CHECK(InvalidArgument, size >= 0 && size < static_cast<int>(sizeof buffer), "the format '", format,
                  "' has a width that is too large");
      out.append(buffer, static_cast<std::size_t>(size));
    };
    if (kind == 's' || kind == 'r') {
      GRAFT_CHECK(Unsupported, flags == "%", "chat template: widths of '%s' are not supported");
      out += kind == 's' ? value.str() : value.repr();
    } else if (kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X') {
      GRAFT_CHECK(InvalidArgument, value.is_number(), "'%", kind, "' wants a number, found ", value.type_name());
      GRAFT_CHECK(InvalidArgument, value.is_integer() || std::fabs(value.real()) < 9e18, "'%", kind, "' of ",
                  value.repr(), " is too large");
      const std::int64_t n = value.is_integer() ? value.integer() : static_cast<std::int64_t>(value.real());
      put(std::snprintf(buffer, sizeof buffer, (flags + "l" + kind).c_str(), static_cast<long>(n)));  // NOLINT
    } else if (kind == 'f' || kind == 'e' || kind == 'g') {
      GRAFT_CHECK(InvalidArgument, value.is_number(), "'%", kind, "' wants a number, found ", value.type_name());
      put(std::snprintf(buffer, sizeof buffer, (flags + kind).c_str(), value.real()));  // NOLINT
    } else {
      throw Unsupported(graft::str("chat template: the format '%", kind, "' is not supported"));
    }
    i = end;
  }
  GRAFT_CHECK(InvalidArgument, next == values.size(), "the format '", format, "' wants ", next, " values, found ",
              values.size());
  return out;
}

}  // namespace graft::text::jinja
