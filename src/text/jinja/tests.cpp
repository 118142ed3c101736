#include <ctime>
#include <map>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/unicode.h"

// Tests (after `is`), and the functions that every template knows.
namespace graft::text::jinja {
namespace {

using V = const Value&;
using A = const Arguments&;

constexpr std::int64_t kMaxRange = 100'000;

V other(A given) {
  GRAFT_CHECK(InvalidArgument, given.positional.size() == 1, "a test needs one value, found ", given.positional.size());
  return given.positional[0];
}

bool odd(V value) { return value.integer() % 2 != 0; }

Value make_range(A given) {
  const auto& p = given.positional;
  GRAFT_CHECK(InvalidArgument, !p.empty() && p.size() <= 3, "range() needs 1 to 3 numbers, found ", p.size());
  const std::int64_t begin = p.size() > 1 ? p[0].integer() : 0;
  const std::int64_t end = p[p.size() > 1 ? 1 : 0].integer();
  const std::int64_t step = p.size() > 2 ? p[2].integer() : 1;
  GRAFT_CHECK(InvalidArgument, step != 0, "range(): the step is zero");
  Values out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    GRAFT_CHECK(InvalidArgument, static_cast<std::int64_t>(out.size()) < kMaxRange, "range() of more than ", kMaxRange,
                " numbers");
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(out));
}

Value make_dict(A given) {
  Dict out;
  if (!given.positional.empty()) {
    if (const Dict* dict = given.positional[0].dict()) {
      out = *dict;
    } else {
      for (const Value& pair : given.positional[0].iterate()) {
        const Values both = pair.iterate();
        GRAFT_CHECK(InvalidArgument, both.size() == 2, "dict() wants pairs");
        out.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) out.set(name, value);
  return out;
}

Value raise_exception(A given) {
  const Value* message = given.get(0, "message");
  throw InvalidArgument(graft::str("chat template: ", message != nullptr ? message->str() : "raise_exception()"));
}

Value strftime_now(A given) {
  const Value* format = given.get(0, "format");
  GRAFT_CHECK(InvalidArgument, format != nullptr && format->text() != nullptr, "strftime_now() needs a format");
  if (format->text()->empty()) return "";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  GRAFT_CHECK(InvalidArgument, localtime_r(&now, &local) != nullptr, "the local time cannot be found");
  std::string out(256 + format->text()->size() * 4, '\0');
  // Some formats give an empty string, which strftime reports like an error: one character is appended to tell them
  // apart.
  const std::size_t size = std::strftime(out.data(), out.size(), (*format->text() + ".").c_str(), &local);
  GRAFT_CHECK(InvalidArgument, size > 0, "strftime_now(): the format '", *format->text(), "' gives too long a text");
  out.resize(size - 1);
  return out;
}

bool is_case(V value, bool upper) {
  const std::string text = value.str();
  return upper ? uppercase(text) == text && lowercase(text) != text
               : lowercase(text) == text && uppercase(text) != text;
}

bool can_iterate(V v) {
  return v.text() != nullptr || v.sequence() != nullptr || v.dict() != nullptr || v.is_undefined();
}

}  // namespace

std::shared_ptr<Namespace> make_namespace(A given) {
  auto out = std::make_shared<Namespace>();
  const Value made = make_dict(given);
  for (const auto& [name, value] : made.dict()->entries) {
    GRAFT_CHECK(InvalidArgument, name.text() != nullptr && !name.text()->starts_with('_'), "namespace() got the name ",
                name.repr());
    out->attributes.emplace_back(*name.text(), value);
  }
  return out;
}

Test find_test(const std::string& name) {
  static const std::map<std::string, Test, std::less<>> all = {
      {"!=", [](V v, A a) { return !(v == other(a)); }},
      {"<", [](V v, A a) { return v < other(a); }},
      {"<=", [](V v, A a) { return v < other(a) || v == other(a); }},
      {"==", [](V v, A a) { return v == other(a); }},
      {">", [](V v, A a) { return other(a) < v; }},
      {">=", [](V v, A a) { return other(a) < v || v == other(a); }},
      {"boolean", [](V v, A) { return v.as<bool>() != nullptr; }},
      {"callable", [](V v, A) { return v.callable() != nullptr || v.is_undefined(); }},
      {"defined", [](V v, A) { return !v.is_undefined(); }},
      {"divisibleby",
       [](V v, A a) {
         const std::int64_t by = other(a).integer();
         GRAFT_CHECK(InvalidArgument, by != 0, "divisibleby zero");
         const std::int64_t value = v.integer();
         return by == -1 || value % by == 0;
       }},
      {"eq", [](V v, A a) { return v == other(a); }},
      {"equalto", [](V v, A a) { return v == other(a); }},
      {"even", [](V v, A) { return !odd(v); }},
      {"false", [](V v, A) { return v.as<bool>() != nullptr && !v.truth(); }},
      {"float", [](V v, A) { return v.as<double>() != nullptr; }},
      {"ge", [](V v, A a) { return other(a) < v || v == other(a); }},
      {"greaterthan", [](V v, A a) { return other(a) < v; }},
      {"gt", [](V v, A a) { return other(a) < v; }},
      {"in", [](V v, A a) { return contains(other(a), v); }},
      {"integer", [](V v, A) { return v.as<std::int64_t>() != nullptr; }},
      {"iterable", [](V v, A) { return can_iterate(v); }},
      {"le", [](V v, A a) { return v < other(a) || v == other(a); }},
      {"lessthan", [](V v, A a) { return v < other(a); }},
      {"lower", [](V v, A) { return is_case(v, false); }},
      {"lt", [](V v, A a) { return v < other(a); }},
      {"mapping", [](V v, A) { return v.dict() != nullptr; }},
      {"ne", [](V v, A a) { return !(v == other(a)); }},
      {"none", [](V v, A) { return v.is_none(); }},
      {"number", [](V v, A) { return v.is_number(); }},
      {"odd", [](V v, A) { return odd(v); }},
      {"sameas",
       [](V v, A a) {
         const Value& same = other(a);
         if (v.is_none() || same.is_none()) return v.is_none() && same.is_none();
         if (v.as<bool>() || same.as<bool>()) return v.as<bool>() && same.as<bool>() && v == same;
         // Others are the same object or not, which depends on Python.
         GRAFT_CHECK(Unsupported, std::string_view(v.type_name()) != same.type_name(),
                     "chat template: 'is sameas' of two values of type ", v.type_name(), " is not supported");
         return false;
       }},
      {"sequence",
       [](V v, A) {
         return can_iterate(v) && (v.sequence() == nullptr || v.sequence()->kind == Sequence::Kind::list ||
                                   v.sequence()->kind == Sequence::Kind::tuple);
       }},
      {"string", [](V v, A) { return v.text() != nullptr; }},
      {"true", [](V v, A) { return v.as<bool>() != nullptr && v.truth(); }},
      {"undefined", [](V v, A) { return v.is_undefined(); }},
      {"upper", [](V v, A) { return is_case(v, true); }},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

std::unordered_map<std::string, Value> global_functions() {
  std::unordered_map<std::string, Value> out;
  const auto add = [&](const char* name, Value (*function)(A)) { out.emplace(name, Callable{name, function, {}}); };
  add("range", make_range);
  add("dict", make_dict);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return out;
}

}  // namespace graft::text::jinja
