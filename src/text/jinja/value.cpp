#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/unicode.h"

namespace graft::text::jinja {
namespace {

void append_hex(std::string& out, std::uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
}

std::string python_quoted(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      append_char(out, c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_char(out, c);
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      append_hex(out, c, digits);
    }
  }
  return out + quote;
}

void append_repr(std::string& out, const Value& value);

void append_items(std::string& out, const Values& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, items[i]);
  }
}

void append_repr(std::string& out, const Value& value) {
  check_text(out.size());
  if (const Sequence* sequence = value.sequence()) {
    const bool tuple = sequence->kind == Sequence::Kind::tuple;
    out += tuple ? '(' : '[';
    append_items(out, sequence->items);
    out += !tuple ? "]" : sequence->items.size() == 1 ? ",)" : ")";
  } else if (const Dict* dict = value.dict()) {
    out += '{';
    for (std::size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, dict->entries[i].first);
      out += ": ";
      append_repr(out, dict->entries[i].second);
    }
    out += '}';
  } else {
    out += value.repr();
  }
}

void append_json_text(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
          out += "\\u";
          append_hex(out, c, 4);
        } else if (ascii && c >= 0x10000) {
          out += "\\u";
          append_hex(out, 0xD800 + ((c - 0x10000) >> 10), 4);
          out += "\\u";
          append_hex(out, 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
        } else {
          append_char(out, c);
        }
    }
  }
  out += '"';
}

std::string json_key(const Value& key) {
  if (const std::string* text = key.text()) return *text;
  if (const bool* b = key.as<bool>()) return *b ? "true" : "false";
  if (key.is_none()) return "null";
  GRAFT_CHECK(InvalidArgument, key.is_number(), "JSON keys cannot be of type ", key.type_name());
  return key.str();
}

void append_json(std::string& out, const Value& value, const JsonStyle& style, int depth) {
  check_text(out.size());
  const bool lines = style.indent >= 0;
  const auto new_line = [&](int level) {
    if (!lines) return;
    out += '\n';
    out.append(static_cast<std::size_t>(style.indent * level), ' ');
  };
  const std::string separator = !style.item_separator.empty() ? style.item_separator : lines ? "," : ", ";
  if (const std::string* text = value.text()) {
    append_json_text(out, *text, style.ensure_ascii);
  } else if (const bool* b = value.as<bool>()) {
    out += *b ? "true" : "false";
  } else if (value.is_none()) {
    out += "null";
  } else if (const double* real = value.as<double>()) {
    out += std::isnan(*real) ? "NaN" : std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity") : float_text(*real);
  } else if (value.is_number()) {
    out += value.str();
  } else if (const Sequence* sequence = value.sequence();
             sequence != nullptr &&
             (sequence->kind == Sequence::Kind::list || sequence->kind == Sequence::Kind::tuple)) {
    out += '[';
    for (std::size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out += separator;
      new_line(depth + 1);
      append_json(out, sequence->items[i], style, depth + 1);
    }
    if (!sequence->items.empty()) new_line(depth);
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    auto entries = dict->entries;
    if (style.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& one, const auto& two) { return one.first < two.first; });
    out += '{';
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += separator;
      new_line(depth + 1);
      append_json_text(out, json_key(entries[i].first), style.ensure_ascii);
      out += style.key_separator;
      append_json(out, entries[i].second, style, depth + 1);
    }
    if (!entries.empty()) new_line(depth);
    out += '}';
  } else {
    throw InvalidArgument(graft::str("a value of type ", value.type_name(), " cannot be written as JSON"));
  }
}

}  // namespace

void check_text(std::size_t size) {
  GRAFT_CHECK(InvalidArgument, size <= kMaxText, "a text is larger than ", kMaxText, " bytes");
}

void Extent::add(const Extent& inner) {
  nesting = std::max(nesting, inner.nesting + 1);
  values += inner.values;
  GRAFT_CHECK(InvalidArgument, nesting <= kMaxNesting, "values are nested too deeply: more than ", kMaxNesting,
              " in one another");
  GRAFT_CHECK(InvalidArgument, values <= kMaxHeld, "a value holds more than ", kMaxHeld, " others");
}

Value::Value(std::string text) : held_(std::move(text)) { check_text(std::get<std::string>(held_).size()); }

Value::Value(Dict dict) {
  dict.extent = {};
  for (const auto& [key, value] : dict.entries) {
    dict.extent.add(key.extent());
    dict.extent.add(value.extent());
  }
  held_ = std::make_shared<const Dict>(std::move(dict));
}

Value::Value(Callable callable) {
  for (const auto& attribute : callable.attributes) callable.extent.add(attribute.second.extent());
  held_ = std::make_shared<const Callable>(std::move(callable));
}

Value Value::list(Values items, Sequence::Kind kind) {
  Extent extent;
  for (const Value& item : items) extent.add(item.extent());
  return Value(Held(std::make_shared<const Sequence>(Sequence{kind, std::move(items), extent})));
}

Extent Value::extent() const {
  if (const Sequence* s = sequence()) return s->extent;
  if (const Dict* d = dict()) return d->extent;
  if (const Callable* c = callable()) return c->extent;
  return {};
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : entries)
    if (k == key) return &v;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : entries)
    if (k.text() != nullptr && *k.text() == key) return &v;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [k, v] : entries)
    if (k == key) {
      v = std::move(value);
      return;
    }
  entries.emplace_back(std::move(key), std::move(value));
}

const Value* Arguments::get(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [n, value] : named)
    if (n == name) return &value;
  return nullptr;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const bool* b = as<bool>()) return *b;
  if (const auto* i = as<std::int64_t>()) return *i != 0;
  if (const double* d = as<double>()) return *d != 0;
  if (text() != nullptr) return !text()->empty();
  if (const Sequence* s = sequence()) return s->kind == Sequence::Kind::generator || !s->items.empty();
  if (dict() != nullptr) return !dict()->entries.empty();
  return true;
}

std::string Value::str() const {
  if (text() != nullptr) return *text();
  return is_undefined() ? "" : repr();
}

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (const bool* b = as<bool>()) return *b ? "True" : "False";
  if (const auto* i = as<std::int64_t>()) return std::to_string(*i);
  if (const double* d = as<double>()) return float_text(*d);
  if (text() != nullptr) return python_quoted(*text());
  if (sequence() != nullptr || dict() != nullptr) {
    std::string out;
    append_repr(out, *this);
    return out;
  }
  throw InvalidArgument(graft::str("a ", type_name(), " cannot be printed"));
}

const char* Value::type_name() const {
  constexpr const char* names[] = {"Undefined", "NoneType", "bool", "int",      "float",
                                   "str",       "list",     "dict", "function", "namespace"};
  if (const Sequence* s = sequence()) {
    constexpr const char* kinds[] = {"list", "tuple", "view", "generator"};
    return kinds[static_cast<std::size_t>(s->kind)];
  }
  return names[held_.index()];
}

double Value::real() const {
  if (const double* d = as<double>()) return *d;
  return static_cast<double>(integer());
}

std::int64_t Value::integer() const {
  if (const bool* b = as<bool>()) return *b ? 1 : 0;
  const auto* i = as<std::int64_t>();
  GRAFT_CHECK(InvalidArgument, i != nullptr, "an integer was expected, found a value of type ", type_name());
  return *i;
}

Values Value::iterate() const {
  if (const Sequence* s = sequence()) return s->items;
  if (is_undefined()) return {};
  Values out;
  if (const Dict* d = dict()) {
    for (const auto& entry : d->entries) out.push_back(entry.first);
    return out;
  }
  if (const std::string* t = text()) {
    GRAFT_CHECK(InvalidArgument, length() <= kMaxHeld, "a text of ", length(), " characters is too long for a loop");
    for (std::size_t at = 0; at < t->size();) {
      const std::size_t begin = at;
      at += char_length((*t)[at]);
      out.emplace_back(t->substr(begin, at - begin));
    }
    return out;
  }
  throw InvalidArgument(graft::str("a value of type ", type_name(), " cannot be iterated"));
}

std::size_t Value::length() const {
  if (const Sequence* s = sequence(); s != nullptr && s->kind != Sequence::Kind::generator) return s->items.size();
  if (const Dict* d = dict()) return d->entries.size();
  if (const std::string* t = text()) return count_chars(*t);
  if (is_undefined()) return 0;
  throw InvalidArgument(graft::str("a value of type ", type_name(), " has no length"));
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_integer() && other.is_integer()) return integer() == other.integer();
    return real() == other.real();
  }
  if (held_.index() != other.held_.index()) return false;
  if (text() != nullptr) return *text() == *other.text();
  if (const Sequence* s = sequence()) return s->kind == other.sequence()->kind && s->items == other.sequence()->items;
  if (const Dict* d = dict()) {
    if (d->entries.size() != other.dict()->entries.size()) return false;
    return std::all_of(d->entries.begin(), d->entries.end(), [&](const auto& entry) {
      const Value* value = other.dict()->find(entry.first);
      return value != nullptr && *value == entry.second;
    });
  }
  if (callable() != nullptr) return callable() == other.callable();
  if (space() != nullptr) return space() == other.space();
  return true;  // none and none, undefined and undefined
}

bool Value::operator<(const Value& other) const {
  if (is_integer() && other.is_integer()) return integer() < other.integer();
  if (is_number() && other.is_number()) return real() < other.real();
  if (text() != nullptr && other.text() != nullptr) return *text() < *other.text();
  if (sequence() != nullptr && other.sequence() != nullptr) {
    // The first items that differ decide. Comparing by order alone, without equality, would take 2^depth comparisons.
    const Values &mine = sequence()->items, &others = other.sequence()->items;
    const auto [one, two] = std::mismatch(mine.begin(), mine.end(), others.begin(), others.end());
    if (one == mine.end() || two == others.end()) return one == mine.end() && two != others.end();
    return *one < *two;
  }
  throw InvalidArgument(graft::str("values of type ", type_name(), " and ", other.type_name(), " have no order"));
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  append_json(out, value, style, 0);
  return out;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The shortest digits that read back the same number, in the notation that Python chooses.
  char buffer[64];
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer, end.ptr);
  if (fixed && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string escaped_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string stripped(std::string_view text, bool left, bool right, std::string_view chars) {
  const std::u32string set = chars_of(chars);
  const auto goes = [&](char32_t c) { return set.empty() ? is_python_space(c) : set.find(c) != set.npos; };
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (left && begin < end) {
    std::size_t after = begin;
    if (!goes(next_char(text, after))) break;
    begin = after;
  }
  while (right && begin < end) {
    std::size_t last = end - 1;
    while (continues_char(text[last])) --last;
    std::size_t after = last;
    if (!goes(next_char(text, after))) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace graft::text::jinja
