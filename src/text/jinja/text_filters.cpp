#include <charconv>
#include <cmath>
#include <map>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/unicode.h"

// Filters on strings and numbers.
namespace graft::text::jinja {
namespace {

using I = Interpreter&;
using V = const Value&;
using A = const Arguments&;

Value call_method(V value, const char* name, A a) {
  const Value text = value.str();
  return method(text, name).callable()->call(a);
}

// Capitalizes words; a word begins after one of these characters.
Value titled(I, V value, A) {
  const std::string text = value.str();
  std::string out;
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_char(text, at);
    const std::string part = text.substr(begin, at - begin);
    out += begins ? uppercase(part) : lowercase(part);
    begins = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

Value indented(I, V value, A a) {
  const Value* width = a.get(0, "width");
  const Value* first = a.get(1, "first");
  const Value* blank = a.get(2, "blank");
  std::string indent(4, ' ');
  if (width != nullptr && width->text() != nullptr) {
    indent = *width->text();
  } else if (width != nullptr) {
    GRAFT_CHECK(InvalidArgument, width->integer() >= 0 && width->integer() <= 1000, "indent: a width of ",
                width->integer());
    indent.assign(static_cast<std::size_t>(width->integer()), ' ');
  }
  const bool blank_too = blank != nullptr && blank->truth();
  const Value lines = method(Value(value.str() + "\n"), "splitlines").callable()->call({});
  std::string out = first != nullptr && first->truth() ? indent : "";
  bool at_first = true;
  for (const Value& line : lines.iterate()) {
    if (!at_first) {
      out += '\n';
      if (blank_too || !line.text()->empty()) out += indent;
    }
    at_first = false;
    out += *line.text();
    check_text(out.size());
  }
  return out;
}

Value to_integer(I, V value, A a) {
  const Value* otherwise = a.get(0, "default");
  const Value* base_value = a.get(1, "base");
  const Value missing = otherwise != nullptr ? *otherwise : Value(std::int64_t{0});
  if (value.is_integer()) return value.integer();
  if (const double* d = value.as<double>()) {
    if (!(std::fabs(*d) < 9e18)) return missing;
    return static_cast<std::int64_t>(*d);
  }
  if (value.text() == nullptr) return missing;
  std::string text = stripped(*value.text(), true, true);
  if (text.starts_with('+')) text.erase(0, 1);
  const int base = base_value != nullptr ? static_cast<int>(base_value->integer()) : 10;
  GRAFT_CHECK(InvalidArgument, base >= 2 && base <= 36, "int: a base of ", base);
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  if (const auto read = std::from_chars(text.data(), end, number, base); read.ec == std::errc() && read.ptr == end)
    return number;
  double real = 0;
  if (const auto read = std::from_chars(text.data(), end, real);
      read.ec == std::errc() && read.ptr == end && std::fabs(real) < 9e18)
    return static_cast<std::int64_t>(real);
  return missing;
}

Value to_real(I, V value, A a) {
  const Value* otherwise = a.get(0, "default");
  if (value.is_number()) return value.real();
  if (value.text() != nullptr) {
    const std::string text = stripped(*value.text(), true, true);
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    double real = 0;
    const auto read = std::from_chars(begin, text.data() + text.size(), real);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return real;
  }
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

// To a multiple of a power of ten; half of it to the even multiple, as Python's round().
std::int64_t round_integer(std::int64_t value, std::int64_t zeros) {
  constexpr std::int64_t kMostZeros = 18;  // of a power of ten in an integer
  if (zeros > kMostZeros) {
    GRAFT_CHECK(InvalidArgument,
                zeros > kMostZeros + 1 || (value <= 5'000'000'000'000'000'000 && value >= -5'000'000'000'000'000'000),
                "round of ", value, " is too large");
    return 0;
  }
  std::int64_t unit = 1;
  for (; zeros > 0; --zeros) unit *= 10;
  const std::int64_t quotient = value / unit, rest = std::abs(value % unit);
  const bool up = rest > unit - rest || (rest == unit - rest && quotient % 2 != 0);
  const std::int64_t near = quotient + (up ? (value < 0 ? -1 : 1) : 0);
  GRAFT_CHECK(InvalidArgument, near <= INT64_MAX / unit && near >= INT64_MIN / unit, "round of ", value,
              " is too large");
  return near * unit;
}

Value rounded(I, V value, A a) {
  const Value* precision = a.get(0, "precision");
  const Value* how = a.get(1, "method");
  const std::string name = how != nullptr ? how->str() : "common";
  GRAFT_CHECK(InvalidArgument, value.is_number(), "round wants a number, found ", value.type_name());
  const std::int64_t digits = precision != nullptr ? precision->integer() : 0;
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (name == "ceil") return std::ceil(value.real() * scale) / scale;
  if (name == "floor") return std::floor(value.real() * scale) / scale;
  GRAFT_CHECK(InvalidArgument, name == "common", "round: the method '", name, "'");
  if (value.is_integer()) return digits < 0 ? round_integer(value.integer(), -digits) : value.integer();
  if (digits < 0 || digits > 300) return std::nearbyint(value.real() * scale) / scale;
  // The decimal digits of the number itself decide, as in Python.
  char buffer[700];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value.real(), std::chars_format::fixed, static_cast<int>(digits));
  double out = 0;
  std::from_chars(buffer, end.ptr, out);
  return out;
}

Value absolute(I, V value, A) {
  GRAFT_CHECK(InvalidArgument, value.is_number(), "abs wants a number, found ", value.type_name());
  if (!value.is_integer()) return std::fabs(value.real());
  GRAFT_CHECK(InvalidArgument, value.integer() != INT64_MIN, "abs of ", value.integer(), " is too large");
  return std::abs(value.integer());
}

Value escaped(I, V value, A) { return value.is_markup() ? value : Value::markup(escaped_html(value.str())); }

Value truncated(I, V value, A a) {
  GRAFT_CHECK(InvalidArgument, value.text() != nullptr, "truncate wants a text, found ", value.type_name());
  const auto chars = [](const std::string& text) { return static_cast<std::int64_t>(count_chars(text)); };
  const auto head = [](const std::string& text, std::int64_t count) {
    std::size_t at = 0;
    for (std::int64_t i = 0; i < count && at < text.size(); ++i) at += char_length(text[at]);
    return text.substr(0, at);
  };
  const Value* length_value = a.get(0, "length");
  const Value* kill = a.get(1, "killwords");
  const Value* end_value = a.get(2, "end");
  const Value* leeway_value = a.get(3, "leeway");
  const std::int64_t length = length_value != nullptr ? length_value->integer() : 255;
  const std::string end = end_value != nullptr ? end_value->str() : "...";
  const std::int64_t leeway = leeway_value != nullptr && !leeway_value->is_none() ? leeway_value->integer() : 5;
  const std::string text = value.str();
  GRAFT_CHECK(InvalidArgument, length >= chars(end), "truncate: a length of ", length);
  if (chars(text) - length <= leeway) return text;
  std::string out = head(text, length - chars(end));
  if (kill == nullptr || !kill->truth())
    if (const std::size_t space = out.rfind(' '); space != std::string::npos) out.resize(space);
  return out + end;
}

Value word_count(I, V value, A) {
  const std::string text = value.str();
  std::size_t words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const bool word = is_word_char(next_char(text, at));
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value url_encoded(I, V value, A) {
  GRAFT_CHECK(Unsupported, value.dict() == nullptr && value.sequence() == nullptr, "chat template: urlencode of a ",
              value.type_name(), " is not supported");
  std::string out;
  for (char c : value.str()) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte < 0x80 && (is_word_char(byte) || std::string_view("-.~/").find(c) != std::string_view::npos);
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += "0123456789ABCDEF"[byte >> 4];
      out += "0123456789ABCDEF"[byte & 15];
    }
  }
  return out;
}

Value trimmed(I, V value, A a) {
  const Value* chars = a.get(0, "chars");
  return stripped(value.str(), true, true, chars == nullptr || chars->is_none() ? "" : chars->str());
}

}  // namespace

Filter find_text_filter(const std::string& name) {
  static const std::map<std::string, Filter, std::less<>> all = {
      {"abs", absolute},
      {"capitalize", [](I, V v, A) { return call_method(v, "capitalize", {}); }},
      {"e", escaped},
      {"escape", escaped},
      {"float", to_real},
      {"format", [](I, V v, A a) -> Value { return format_percent(v.str(), a.positional); }},
      {"indent", indented},
      {"int", to_integer},
      {"lower", [](I, V v, A) -> Value { return lowercase(v.str()); }},
      {"replace", [](I, V v, A a) { return call_method(v, "replace", a); }},
      {"round", rounded},
      {"safe", [](I, V v, A) { return Value::markup(v.str()); }},
      {"string", [](I, V v, A) -> Value { return v.str(); }},
      {"title", titled},
      {"trim", trimmed},
      {"truncate", truncated},
      {"upper", [](I, V v, A) -> Value { return uppercase(v.str()); }},
      {"urlencode", url_encoded},
      {"wordcount", word_count},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace graft::text::jinja
