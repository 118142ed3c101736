#include <algorithm>
#include <map>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/unicode.h"

// Methods of Python's strings, dicts and lists that do not change them.
namespace graft::text::jinja {
namespace {

using TextMethod = Value (*)(const std::string&, const Arguments&);
using DictMethod = Value (*)(const Dict&, const Arguments&);

const std::string& text_argument(const Arguments& given, std::size_t index, std::string_view name) {
  const Value* value = given.get(index, name);
  GRAFT_CHECK(InvalidArgument, value != nullptr && value->text() != nullptr, "the argument '", name,
              "' should be a text");
  return *value->text();
}

// Empty where it is missing or None.
std::string chars_argument(const Arguments& given) {
  const Value* value = given.get(0, "chars");
  return value == nullptr || value->is_none() ? "" : text_argument(given, 0, "chars");
}

Values split_at_spaces(std::string_view text, std::int64_t limit) {
  Values out;
  std::size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size()) {
      std::size_t after = at;
      if (is_python_space(next_char(text, after)) != space) return;
      at = after;
    }
  };
  skip(true);
  while (at < text.size()) {
    const std::size_t begin = at;
    if (limit >= 0 && static_cast<std::int64_t>(out.size()) == limit) {
      out.emplace_back(stripped(text.substr(begin), false, true));
      break;
    }
    skip(false);
    out.emplace_back(std::string(text.substr(begin, at - begin)));
    skip(true);
  }
  return out;
}

Value split(const std::string& text, const Arguments& given, bool from_right) {
  const Value* separator = given.get(0, "sep");
  const Value* limit_value = given.get(1, "maxsplit");
  std::int64_t limit = limit_value == nullptr ? -1 : limit_value->integer();
  if (separator == nullptr || separator->is_none()) {
    GRAFT_CHECK(Unsupported, !from_right || limit < 0,
                "chat template: rsplit() at spaces with a limit is not supported");
    return Value::list(split_at_spaces(text, limit));
  }
  const std::string& by = text_argument(given, 0, "sep");
  GRAFT_CHECK(InvalidArgument, !by.empty(), "split() got an empty separator");
  Values out;
  std::string_view rest = text;
  while (limit != 0) {
    const std::size_t at = from_right ? rest.rfind(by) : rest.find(by);
    if (at == std::string_view::npos) break;
    out.emplace_back(std::string(from_right ? rest.substr(at + by.size()) : rest.substr(0, at)));
    rest = from_right ? rest.substr(0, at) : rest.substr(at + by.size());
    if (limit > 0) --limit;
  }
  out.emplace_back(std::string(rest));
  if (from_right) std::reverse(out.begin(), out.end());
  return Value::list(std::move(out));
}

Value split_lines(const std::string& text, const Arguments& given) {
  const Value* keep_value = given.get(0, "keepends");
  const bool keep = keep_value != nullptr && keep_value->truth();
  Values out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    std::size_t end = text.size();
    while (at < text.size()) {
      const std::size_t before = at;
      const char32_t c = next_char(text, at);
      const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
      if (!ends) continue;
      if (c == 0xD && at < text.size() && text[at] == '\n') ++at;
      end = before;
      break;
    }
    out.emplace_back(text.substr(begin, (keep ? at : end) - begin));
  }
  return Value::list(std::move(out));
}

Value replace(const std::string& text, const Arguments& given) {
  const std::string& from = text_argument(given, 0, "old");
  const std::string& to = text_argument(given, 1, "new");
  const Value* count_value = given.get(2, "count");
  std::int64_t count = count_value == nullptr || count_value->is_none() ? -1 : count_value->integer();
  std::string out;
  std::size_t at = 0;
  while (count != 0 && at <= text.size()) {
    const std::size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to;
    check_text(out.size());
    at = found + from.size();
    if (from.empty()) {  // between all characters
      if (at == text.size()) return out;
      const std::size_t size = char_length(text[at]);
      out.append(text, at, size);
      at += size;
    }
    if (count > 0) --count;
  }
  if (at < text.size()) out.append(text, at);
  return out;
}

// startswith and endswith, which also take a tuple.
bool has_affix(const std::string& text, const Arguments& given, bool front) {
  const Value* affix = given.get(0, "prefix");
  GRAFT_CHECK(InvalidArgument, affix != nullptr, front ? "startswith" : "endswith", "() needs a text");
  GRAFT_CHECK(Unsupported, given.positional.size() < 2, "chat template: ", front ? "startswith" : "endswith",
              "() with bounds is not supported");
  const auto fits = [&](const Value& value) {
    GRAFT_CHECK(InvalidArgument, value.text() != nullptr, front ? "startswith" : "endswith", "() wants a text, found ",
                value.type_name());
    return front ? text.starts_with(*value.text()) : text.ends_with(*value.text());
  };
  if (const Sequence* several = affix->sequence())
    return std::any_of(several->items.begin(), several->items.end(), fits);
  return fits(*affix);
}

std::string capitalized(const std::string& text) {
  if (text.empty()) return text;
  const std::size_t first = char_length(text[0]);
  return uppercase(text.substr(0, first)) + lowercase(text.substr(first));
}

std::string titled(const std::string& text) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const bool letter = is_letter(next_char(text, at));
    const std::string c = text.substr(begin, at - begin);
    out += inside ? lowercase(c) : uppercase(c);
    inside = letter;
  }
  return out;
}

// Whether the string is not empty and all its characters satisfy the predicate.
template <typename Predicate>
bool all_chars(const std::string& text, Predicate&& predicate) {
  const std::u32string chars = chars_of(text);
  return !chars.empty() && std::all_of(chars.begin(), chars.end(), predicate);
}

Value count_of(const std::string& text, const Arguments& given) {
  const std::string& part = text_argument(given, 0, "sub");
  GRAFT_CHECK(Unsupported, given.positional.size() < 2, "chat template: count() with bounds is not supported");
  if (part.empty()) return count_chars(text) + 1;
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

Value find_in(const std::string& text, const Arguments& given, bool from_right) {
  const std::string& part = text_argument(given, 0, "sub");
  GRAFT_CHECK(Unsupported, given.positional.size() < 2, "chat template: find() with bounds is not supported");
  const std::size_t at = from_right ? text.rfind(part) : text.find(part);
  if (at == std::string::npos) return std::int64_t{-1};
  return count_chars(std::string_view(text).substr(0, at));
}

Value format_braces(const std::string& text, const Arguments& given) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    check_text(out.size());
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c != '{') {
      out += c;
      continue;
    }
    const std::size_t end = text.find('}', i);
    GRAFT_CHECK(InvalidArgument, end != std::string::npos, "format(): a '{' is not closed");
    const std::string field = text.substr(i + 1, end - i - 1);
    GRAFT_CHECK(Unsupported, field.find_first_of(":!.[") == std::string::npos, "chat template: format() with '{", field,
                "}' is not supported");
    const bool numbered =
        !field.empty() && field.find_first_not_of("0123456789") == std::string::npos && field.size() < 6;
    const Value* value = field.empty() ? given.get(next++, "")
                         : numbered    ? given.get(std::stoul(field), "")
                                       : given.get(~std::size_t{0}, field);
    GRAFT_CHECK(InvalidArgument, value != nullptr, "format(): there is no value for '{", field, "}'");
    out += value->str();
    i = end;
  }
  return out;
}

std::string joined(const std::string& between, const Arguments& given) {
  GRAFT_CHECK(InvalidArgument, given.positional.size() == 1, "join() needs a list");
  std::string out;
  bool first = true;
  for (const Value& item : given.positional[0].iterate()) {
    GRAFT_CHECK(InvalidArgument, item.text() != nullptr, "join() wants strings, found ", item.type_name());
    if (!first) out += between;
    first = false;
    out += *item.text();
    check_text(out.size());
  }
  return out;
}

std::string without(const std::string& text, const Arguments& given, bool front) {
  const std::string& affix = text_argument(given, 0, front ? "prefix" : "suffix");
  if (front && text.starts_with(affix)) return text.substr(affix.size());
  if (!front && text.ends_with(affix)) return text.substr(0, text.size() - affix.size());
  return text;
}

Value partition(const std::string& text, const Arguments& given, bool from_right) {
  const std::string& by = text_argument(given, 0, "sep");
  GRAFT_CHECK(InvalidArgument, !by.empty(), "partition() got an empty separator");
  const std::size_t at = from_right ? text.rfind(by) : text.find(by);
  Values out;
  if (at == std::string::npos)
    out = from_right ? Values{"", "", text} : Values{text, "", ""};
  else
    out = {text.substr(0, at), by, text.substr(at + by.size())};
  return Value::list(std::move(out), Sequence::Kind::tuple);
}

const std::map<std::string, TextMethod, std::less<>>& text_methods() {
  using T = const std::string&;
  using A = const Arguments&;
  static const std::map<std::string, TextMethod, std::less<>> all = {
      {"strip", [](T t, A a) -> Value { return stripped(t, true, true, chars_argument(a)); }},
      {"lstrip", [](T t, A a) -> Value { return stripped(t, true, false, chars_argument(a)); }},
      {"rstrip", [](T t, A a) -> Value { return stripped(t, false, true, chars_argument(a)); }},
      {"split", [](T t, A a) { return split(t, a, false); }},
      {"rsplit", [](T t, A a) { return split(t, a, true); }},
      {"splitlines", split_lines},
      {"partition", [](T t, A a) { return partition(t, a, false); }},
      {"rpartition", [](T t, A a) { return partition(t, a, true); }},
      {"replace", replace},
      {"startswith", [](T t, A a) -> Value { return has_affix(t, a, true); }},
      {"endswith", [](T t, A a) -> Value { return has_affix(t, a, false); }},
      {"removeprefix", [](T t, A a) -> Value { return without(t, a, true); }},
      {"removesuffix", [](T t, A a) -> Value { return without(t, a, false); }},
      {"upper", [](T t, A) -> Value { return uppercase(t); }},
      {"lower", [](T t, A) -> Value { return lowercase(t); }},
      {"capitalize", [](T t, A) -> Value { return capitalized(t); }},
      {"title", [](T t, A) -> Value { return titled(t); }},
      {"isdigit", [](T t, A) -> Value { return all_chars(t, is_digit); }},
      {"isnumeric", [](T t, A) -> Value { return all_chars(t, is_number); }},
      {"isalpha", [](T t, A) -> Value { return all_chars(t, is_letter); }},
      {"isalnum",
       [](T t, A) -> Value { return all_chars(t, [](char32_t c) { return is_letter(c) || is_number(c); }); }},
      {"isspace", [](T t, A) -> Value { return all_chars(t, is_python_space); }},
      {"isupper", [](T t, A) -> Value { return uppercase(t) == t && lowercase(t) != t; }},
      {"islower", [](T t, A) -> Value { return lowercase(t) == t && uppercase(t) != t; }},
      {"count", count_of},
      {"find", [](T t, A a) { return find_in(t, a, false); }},
      {"rfind", [](T t, A a) { return find_in(t, a, true); }},
      {"index",
       [](T t, A a) {
         Value at = find_in(t, a, false);
         GRAFT_CHECK(InvalidArgument, at.integer() >= 0, "index(): there is no such text");
         return at;
       }},
      {"join", [](T t, A a) -> Value { return joined(t, a); }},
      {"format", format_braces},
  };
  return all;
}

Value tuple(Value first, Value second) {
  return Value::list({std::move(first), std::move(second)}, Sequence::Kind::tuple);
}

const std::map<std::string, DictMethod, std::less<>>& dict_methods() {
  using D = const Dict&;
  using A = const Arguments&;
  static const std::map<std::string, DictMethod, std::less<>> all = {
      {"items",
       [](D d, A) {
         Values out;
         for (const auto& [key, value] : d.entries) out.push_back(tuple(key, value));
         return Value::list(std::move(out), Sequence::Kind::view);
       }},
      {"keys",
       [](D d, A) {
         Values out;
         for (const auto& entry : d.entries) out.push_back(entry.first);
         return Value::list(std::move(out), Sequence::Kind::view);
       }},
      {"values",
       [](D d, A) {
         Values out;
         for (const auto& entry : d.entries) out.push_back(entry.second);
         return Value::list(std::move(out), Sequence::Kind::view);
       }},
      {"get",
       [](D d, A a) {
         const Value* key = a.get(0, "key");
         GRAFT_CHECK(InvalidArgument, key != nullptr, "get() needs a key");
         const Value* found = d.find(*key);
         const Value* otherwise = a.get(1, "default");
         return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value(None{});
       }},
      {"copy", [](D d, A) -> Value { return d; }},
  };
  return all;
}

Value list_method(const Value& list, const std::string& name) {
  if (name == "count")
    return Callable{name,
                    [list](const Arguments& a) -> Value {
                      const Values items = list.iterate();
                      GRAFT_CHECK(InvalidArgument, a.positional.size() == 1, "count() needs a value");
                      return static_cast<std::int64_t>(std::count(items.begin(), items.end(), a.positional[0]));
                    },
                    {},
                    list.extent()};
  if (name == "index")
    return Callable{name,
                    [list](const Arguments& a) -> Value {
                      const Values items = list.iterate();
                      GRAFT_CHECK(InvalidArgument, a.positional.size() == 1, "index() needs a value");
                      const auto at = std::find(items.begin(), items.end(), a.positional[0]);
                      GRAFT_CHECK(InvalidArgument, at != items.end(), "index(): there is no such item");
                      return static_cast<std::int64_t>(at - items.begin());
                    },
                    {},
                    list.extent()};
  return {};
}

}  // namespace

Value method(const Value& value, const std::string& name) {
  if (value.text() != nullptr) {
    const auto found = text_methods().find(name);
    if (found == text_methods().end()) return {};
    return Callable{
        name, [value, call = found->second](const Arguments& given) { return call(*value.text(), given); }, {}};
  }
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr && (sequence->kind == Sequence::Kind::list || sequence->kind == Sequence::Kind::tuple))
    return list_method(value, name);
  if (value.dict() == nullptr) return {};
  const auto found = dict_methods().find(name);
  if (found == dict_methods().end()) return {};
  return Callable{name,
                  [value, call = found->second](const Arguments& given) { return call(*value.dict(), given); },
                  {},
                  value.extent()};
}

}  // namespace graft::text::jinja
