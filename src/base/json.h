#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

// JSON values whose destructors allocate nothing, unlike those of nlohmann::json: these move what a value holds to a
// std::vector, and end the process where there is no memory for it. graft's sources use no others.
namespace graft {

// What makes the types of json_fwd.h graft's own, whose members may be specialized.
template <typename T>
class JsonAllocator : public std::allocator<T> {
 public:
  using value_type = T;
  template <typename Other>
  struct rebind {
    using other = JsonAllocator<Other>;
  };
  JsonAllocator() noexcept = default;
  template <typename Other>
  JsonAllocator(const JsonAllocator<Other>&) noexcept {}  // NOLINT(google-explicit-constructor)
};

// Whether a value is this text.
template <typename Value>
bool is_text(const Value& value, std::string_view text) {
  return value.is_string() && value.template get_ref<const std::string&>() == text;
}
// nlohmann's comparisons make a value of the text and are noexcept: they end the process where there is no memory for
// it. With these the compiler refuses them.
template <typename Value>
concept AnyJson = std::same_as<Value, Json> || std::same_as<Value, OrderedJson>;
template <AnyJson Value>
bool operator==(const Value& value, const char* text) = delete;
template <AnyJson Value>
bool operator!=(const Value& value, const char* text) = delete;

// What is checked while a document is read. Instead of nlohmann's callbacks: with one, its parser looks at all members
// of a value whenever one of them ends, so that a document takes time by the square of its length.
struct JsonRules {
  int max_depth = std::numeric_limits<int>::max();  // of arrays and objects in one another
  int unique_depth = 0;                             // objects up to here may have no key twice
  // Of an object. OrderedJson looks at all members for each new one.
  std::size_t max_members = std::numeric_limits<std::size_t>::max();
  std::function<void(const std::string& message)> refuse = {};  // throws; "has the key 'a' twice in one object"
};

// Value::parse, compiled once: a parser costs each file that has one seconds. Throw the value's exceptions; without
// them, what is no JSON is a discarded value.
template <AnyJson Value>
Value read_json(std::string_view text, bool allow_exceptions = true);
template <AnyJson Value>
Value read_json(std::span<const std::byte> text, bool allow_exceptions = true);
template <AnyJson Value>
Value read_json(std::string_view text, const JsonRules& rules);

}  // namespace graft

template <>
void graft::Json::json_value::destroy(nlohmann::detail::value_t type);
template <>
void graft::OrderedJson::json_value::destroy(nlohmann::detail::value_t type);
