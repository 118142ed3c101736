#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"

// Values of templates: the Python values that occur in them.
namespace graft::text::jinja {

class Value;
using Values = std::vector<Value>;
using Named = std::vector<std::pair<std::string, Value>>;

struct Undefined {
  std::string name;  // for messages
};
struct None {};

// Limits on values that a template makes: a loop that doubles a string or a list must end in an error.
constexpr std::size_t kMaxText = std::size_t{1} << 28;
constexpr std::size_t kMaxHeld = std::size_t{1} << 24;
// Values are compared, printed and freed by recursion.
constexpr std::size_t kMaxNesting = 500;

// How deep a value nests, and how many values it holds, shared ones counted each time.
struct Extent {
  std::size_t nesting = 0;
  std::size_t values = 1;

  // Throws InvalidArgument when the sum becomes too deep or too large.
  void add(const Extent& inner);
};

// Lists, tuples, what dict.items() and range() return, and generators: what filters such as `map` return, which are
// true even when empty and have no length.
struct Sequence {
  enum class Kind { list, tuple, view, generator };
  Kind kind = Kind::list;
  Values items;
  Extent extent = {};
};

// In insertion order. Dicts are small, so search is linear.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent = {};
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Arguments {
  Values positional;
  Named named;

  // The argument at `index` or with that name; null when it was not given.
  const Value* get(std::size_t index, std::string_view name) const;
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  Named attributes;    // of `loop`, which can be called too
  Extent extent = {};  // of what `call` captures
};

// namespace(): the one thing whose attributes a template can set.
struct Namespace {
  Named attributes;
};

class Value {
 public:
  using Held = std::variant<Undefined, None, bool, std::int64_t, double, std::string, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Dict>, std::shared_ptr<const Callable>, std::shared_ptr<Namespace>>;

  Value() : held_(Undefined{}) {}
  Value(None none) : held_(none) {}                               // NOLINT: values convert implicitly
  Value(bool b) : held_(b) {}                                     // NOLINT
  Value(std::int64_t i) : held_(i) {}                             // NOLINT
  Value(std::size_t n) : held_(static_cast<std::int64_t>(n)) {}   // NOLINT
  Value(double d) : held_(d) {}                                   // NOLINT
  Value(std::string text);                                        // NOLINT
  Value(const char* text) : held_(std::string(text)) {}           // NOLINT
  Value(Dict dict);                                               // NOLINT
  Value(Callable callable);                                       // NOLINT
  Value(std::shared_ptr<Namespace> ns) : held_(std::move(ns)) {}  // NOLINT
  static Value undefined(std::string name) { return Value(Held(Undefined{std::move(name)})); }
  static Value list(Values items, Sequence::Kind kind = Sequence::Kind::list);

  // A string as returned by the filters `safe` and `escape`: what is appended to it is escaped for HTML.
  static Value markup(std::string text) {
    Value out(std::move(text));
    out.markup_ = true;
    return out;
  }
  bool is_markup() const { return markup_; }

  // Null when it is something else.
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&held_);
  }
  const std::string* text() const { return as<std::string>(); }
  const Sequence* sequence() const { return pointed<std::shared_ptr<const Sequence>>(); }
  const Dict* dict() const { return pointed<std::shared_ptr<const Dict>>(); }
  const Callable* callable() const { return pointed<std::shared_ptr<const Callable>>(); }
  Namespace* space() const {
    const auto* held = as<std::shared_ptr<Namespace>>();
    return held != nullptr ? held->get() : nullptr;
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const { return as<bool>() || as<std::int64_t>() || as<double>(); }
  bool is_integer() const { return as<bool>() || as<std::int64_t>(); }

  bool truth() const;
  // As Python's str(); empty for what is undefined.
  std::string str() const;
  std::string repr() const;
  const char* type_name() const;  // as Python has it
  double real() const;            // of a number
  std::int64_t integer() const;   // of an integer or a bool
  // The values that a loop iterates over: items, keys, characters. Throws InvalidArgument when it is not iterable.
  Values iterate() const;
  std::size_t length() const;  // throws InvalidArgument where there is none
  // A namespace counts as empty, since its attributes change; the interpreter frees namespaces separately.
  Extent extent() const;

  bool operator==(const Value& other) const;
  // Throws InvalidArgument for values without an order.
  bool operator<(const Value& other) const;

 private:
  explicit Value(Held held) : held_(std::move(held)) {}
  template <typename Pointer>
  auto pointed() const -> typename Pointer::element_type* {
    const auto* held = as<Pointer>();
    return held != nullptr ? held->get() : nullptr;
  }

  Held held_;
  bool markup_ = false;
};

// json.dumps() of Python. `indent` below 0: on one line.
struct JsonStyle {
  bool ensure_ascii = false;
  std::int64_t indent = -1;
  bool sort_keys = false;
  std::string item_separator;  // empty: as Python has it
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

// Throws InvalidArgument for a string of more than kMaxText bytes.
void check_text(std::size_t size);

std::string float_text(double value);
std::string escaped_html(std::string_view text);

// Python's str.isspace(): white space, and the separators of ASCII.
bool is_python_space(char32_t c);
// Strips one end or both; `chars` empty: white space.
std::string stripped(std::string_view text, bool left, bool right, std::string_view chars = {});

}  // namespace graft::text::jinja
