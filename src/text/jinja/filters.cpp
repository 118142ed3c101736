#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/unicode.h"

// Filters on sequences, dicts and numbers; those on strings are in text_filters.cpp.
namespace graft::text::jinja {
namespace {

using I = Interpreter&;
using V = const Value&;
using A = const Arguments&;

constexpr auto kGenerator = Sequence::Kind::generator;

bool flag(A given, std::size_t index, std::string_view name) {
  const Value* value = given.get(index, name);
  return value != nullptr && value->truth();
}

// "a.b.0" as attribute of attribute.
Value by_path(V value, V path) {
  if (path.text() == nullptr) return Interpreter::item(value, path);
  Value out = value;
  const std::string& text = *path.text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    out = number ? Interpreter::item(out, static_cast<std::int64_t>(std::stoll(part))) : Interpreter::item(out, part);
    begin = end + 1;
  }
  return out;
}

// The key that sorting, `unique` and the like compare: strings ignore case unless case_sensitive is set.
Value key_of(V item, const Value* path, bool case_sensitive) {
  Value out = path != nullptr && !path->is_none() ? by_path(item, *path) : item;
  if (!case_sensitive && out.text() != nullptr) return lowercase(*out.text());
  return out;
}

Value sorted(I, V value, A a) {
  const bool reverse = flag(a, 0, "reverse");
  const bool case_sensitive = flag(a, 1, "case_sensitive");
  const Value* path = a.get(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : value.iterate()) keyed.emplace_back(key_of(item, path, case_sensitive), item);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& x, const auto& y) { return reverse ? y.first < x.first : x.first < y.first; });
  Values out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value::list(std::move(out));
}

Value extreme(V value, A a, bool largest) {
  const bool case_sensitive = flag(a, 0, "case_sensitive");
  const Value* path = a.get(1, "attribute");
  const Values items = value.iterate();
  if (items.empty()) return Value::undefined("there is no item");
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Value held = key_of(items[best], path, case_sensitive);
    const Value next = key_of(items[i], path, case_sensitive);
    if (largest ? held < next : next < held) best = i;
  }
  return items[best];
}

Value unique(I, V value, A a) {
  Values seen;
  Values out;
  for (const Value& item : value.iterate()) {
    const Value key = key_of(item, a.get(1, "attribute"), flag(a, 0, "case_sensitive"));
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return Value::list(std::move(out), kGenerator);
}

// As in Jinja, any false value counts as empty for this filter and the next ones.
Value mapped(I interpreter, V value, A a) {
  if (!value.truth()) return Value::list({}, kGenerator);
  Values out;
  if (a.positional.empty()) {
    const Value* path = a.get(0, "attribute");
    const Value* otherwise = a.get(1, "default");
    GRAFT_CHECK(InvalidArgument, path != nullptr, "map() needs a filter or an attribute");
    for (const Value& item : value.iterate()) {
      Value found = by_path(item, *path);
      out.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : std::move(found));
    }
    return Value::list(std::move(out), kGenerator);
  }
  const std::string name = a.positional[0].str();
  const Arguments rest{{a.positional.begin() + 1, a.positional.end()}, a.named};
  for (const Value& item : value.iterate()) out.push_back(interpreter.apply_filter(name, item, rest));
  return Value::list(std::move(out), kGenerator);
}

// select, reject, selectattr and rejectattr.
Value selected(I interpreter, V value, A a, bool by_attribute, bool wanted) {
  if (!value.truth()) return Value::list({}, kGenerator);
  const std::size_t skip = by_attribute ? 1 : 0;
  GRAFT_CHECK(InvalidArgument, a.positional.size() >= skip, "an attribute is missing");
  GRAFT_CHECK(InvalidArgument, !by_attribute || a.positional[0].text() || a.positional[0].is_integer(),
              "an attribute must be a text or an integer, found ",
              a.positional.empty() ? "" : a.positional[0].type_name());
  Values out;
  Arguments rest{{}, a.named};
  for (std::size_t i = skip + 1; i < a.positional.size(); ++i) rest.positional.push_back(a.positional[i]);
  for (const Value& item : value.iterate()) {
    const Value subject = by_attribute ? by_path(item, a.positional[0]) : item;
    const bool holds =
        a.positional.size() > skip ? interpreter.apply_test(a.positional[skip].str(), subject, rest) : subject.truth();
    if (holds == wanted) out.push_back(item);
  }
  return Value::list(std::move(out), kGenerator);
}

Value grouped(I, V value, A a) {
  const Value* path = a.get(0, "attribute");
  GRAFT_CHECK(InvalidArgument, path != nullptr && (path->text() || path->is_integer()),
              "groupby() needs an attribute: a text or an integer");
  GRAFT_CHECK(Unsupported, a.get(1, "default") == nullptr, "chat template: groupby() with a default is not supported");
  Values keys;
  std::vector<Values> groups;
  Values items = value.iterate();
  std::stable_sort(items.begin(), items.end(),
                   [&](V x, V y) { return key_of(x, path, false) < key_of(y, path, false); });
  for (const Value& item : items) {
    if (groups.empty() || !(key_of(item, path, false) == key_of(groups.back()[0], path, false))) {
      keys.push_back(by_path(item, *path));
      groups.emplace_back();
    }
    groups.back().push_back(item);
  }
  Values out;
  for (std::size_t i = 0; i < groups.size(); ++i)
    out.push_back(Value::list({keys[i], Value::list(std::move(groups[i]))}, Sequence::Kind::tuple));
  return Value::list(std::move(out));
}

Value batched(I, V value, A a) {
  const Value* count = a.get(0, "linecount");
  GRAFT_CHECK(InvalidArgument, count != nullptr && count->integer() > 0, "batch() needs a number above 0");
  const auto size = static_cast<std::size_t>(count->integer());
  const Value* fill = a.get(1, "fill_with");
  Values out;
  Values part;
  for (const Value& item : value.iterate()) {
    part.push_back(item);
    if (part.size() < size) continue;
    out.push_back(Value::list(std::move(part)));
    part.clear();
  }
  if (!part.empty()) {
    if (fill != nullptr && !fill->is_none()) {
      GRAFT_CHECK(InvalidArgument, size <= kMaxHeld, "batch() of ", size, " items");
      part.resize(size, *fill);
    }
    out.push_back(Value::list(std::move(part)));
  }
  return Value::list(std::move(out), kGenerator);
}

Value dict_sorted(I, V value, A a) {
  const Dict* dict = value.dict();
  GRAFT_CHECK(InvalidArgument, dict != nullptr, "dictsort wants a dict, found ", value.type_name());
  const Value* by = a.get(1, "by");
  const bool by_value = by != nullptr && by->text() != nullptr && *by->text() == "value";
  const bool reverse = flag(a, 2, "reverse");
  auto entries = dict->entries;
  const auto key = [&](const auto& entry) {
    return key_of(by_value ? entry.second : entry.first, nullptr, flag(a, 0, "case_sensitive"));
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const auto& x, const auto& y) { return reverse ? key(y) < key(x) : key(x) < key(y); });
  Values out;
  for (auto& [k, v] : entries) out.push_back(Value::list({k, v}, Sequence::Kind::tuple));
  return Value::list(std::move(out));
}

Value joined(I, V value, A a) {
  const Value* between = a.get(0, "d");
  const Value* path = a.get(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : value.iterate()) {
    if (!first && between != nullptr) out += between->str();
    first = false;
    out += (path != nullptr && !path->is_none() ? by_path(item, *path) : item).str();
    check_text(out.size());
  }
  return out;
}

Value defaulted(I, V value, A a) {
  const bool missing = value.is_undefined() || (flag(a, 1, "boolean") && !value.truth());
  if (!missing) return value;
  const Value* otherwise = a.get(0, "default_value");
  return otherwise != nullptr ? *otherwise : Value("");
}

Value first_or_last(V value, bool last) {
  const Values items = value.iterate();
  if (items.empty()) return Value::undefined("there is no item");
  return last ? items.back() : items.front();
}

Value summed(I, V value, A a) {
  const Value* path = a.get(0, "attribute");
  const Value* start = a.get(1, "start");
  Value out = start != nullptr ? *start : Value(std::int64_t{0});
  for (const Value& item : value.iterate())
    out = add(out, path != nullptr && !path->is_none() ? by_path(item, *path) : item);
  return out;
}

Value reversed(I, V value, A) {
  Values items = value.iterate();
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return Value::list(std::move(items), kGenerator);
  std::string out;
  for (const Value& c : items) out += *c.text();
  return out;
}

Value items_of(I, V value, A a) {
  if (value.is_undefined()) return Value::list({}, kGenerator);
  GRAFT_CHECK(InvalidArgument, value.dict() != nullptr, "items wants a dict, found ", value.type_name());
  return Value::list(method(value, "items").callable()->call(a).iterate(), kGenerator);
}

Value as_json(I, V value, A a) {
  JsonStyle style;
  style.ensure_ascii = flag(a, 0, "ensure_ascii");
  if (const Value* indent = a.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    style.indent = indent->integer();
    GRAFT_CHECK(InvalidArgument, style.indent >= 0 && style.indent <= 64, "tojson: indent is ", style.indent,
                ", expected 0 to 64");
  }
  if (const Value* separators = a.get(2, "separators"); separators != nullptr && !separators->is_none()) {
    const Values both = separators->iterate();
    GRAFT_CHECK(InvalidArgument, both.size() == 2, "tojson: separators should be two");
    style.item_separator = both[0].str();
    style.key_separator = both[1].str();
  }
  style.sort_keys = flag(a, 3, "sort_keys");
  return to_json(value, style);
}

}  // namespace

Filter find_filter(const std::string& name) {
  static const std::map<std::string, Filter, std::less<>> all = {
      {"attr",
       [](I, V v, A a) {
         GRAFT_CHECK(InvalidArgument, a.positional.size() == 1 && a.positional[0].text(), "attr wants a name");
         const std::string& wanted = *a.positional[0].text();
         // Not the member of a dict.
         if (const Dict* dict = v.dict(); dict != nullptr && dict->find(std::string_view(wanted)) != nullptr)
           return Value::undefined("a dict has no attribute '" + wanted + "'");
         return Interpreter::attribute(v, wanted);
       }},
      {"batch", batched},
      {"count", [](I, V v, A) -> Value { return v.length(); }},
      {"d", defaulted},
      {"default", defaulted},
      {"dictsort", dict_sorted},
      {"first", [](I, V v, A) { return first_or_last(v, false); }},
      {"groupby", grouped},
      {"items", items_of},
      {"join", joined},
      {"last", [](I, V v, A) { return first_or_last(v, true); }},
      {"length", [](I, V v, A) -> Value { return v.length(); }},
      {"list", [](I, V v, A) { return Value::list(v.iterate()); }},
      {"map", mapped},
      {"max", [](I, V v, A a) { return extreme(v, a, true); }},
      {"min", [](I, V v, A a) { return extreme(v, a, false); }},
      {"reject", [](I i, V v, A a) { return selected(i, v, a, false, false); }},
      {"rejectattr", [](I i, V v, A a) { return selected(i, v, a, true, false); }},
      {"reverse", reversed},
      {"select", [](I i, V v, A a) { return selected(i, v, a, false, true); }},
      {"selectattr", [](I i, V v, A a) { return selected(i, v, a, true, true); }},
      {"sort", sorted},
      {"sum", summed},
      {"tojson", as_json},
      {"unique", unique},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace graft::text::jinja
