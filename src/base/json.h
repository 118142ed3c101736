#pragma once

#include <concepts>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

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

namespace detail {

// The last member of an array or object; null where there is none.
template <typename Value>
Value* last_member(Value& value) {
  if (!value.is_structured() || value.empty()) return nullptr;
  return value.is_array() ? &value.template get_ref<typename Value::array_t&>().back()
                          : &std::prev(value.template get_ref<typename Value::object_t&>().end())->second;
}
template <typename Value>
void remove_last_member(Value& value) {
  if (value.is_array()) {
    value.template get_ref<typename Value::array_t&>().pop_back();
  } else {
    auto& members = value.template get_ref<typename Value::object_t&>();
    members.erase(std::prev(members.end()));
  }
}

// Empties a value of any depth, without recursion: on the way down, a value's parent lies in the place of the member
// that was taken from it (as in the Schorr-Waite algorithm).
template <typename Value>
void free_members(Value value) noexcept {
  Value parent;
  for (;;) {
    Value* last = last_member(value);
    if (last != nullptr && !last->is_structured()) {
      remove_last_member(value);
    } else if (last != nullptr) {
      Value child = std::move(*last);
      *last = std::move(parent);
      parent = std::move(value);
      value = std::move(child);
    } else if (parent.is_null()) {
      return;
    } else {
      value = std::move(parent);
      parent = std::move(*last_member(value));
      remove_last_member(value);
    }
  }
}

// `held` is null where making it failed.
template <typename Held>
void free_json(Held* held) noexcept {
  if (held == nullptr) return;
  std::destroy_at(held);
  JsonAllocator<Held>().deallocate(held, 1);
}

template <typename Held, typename Type>
void free_json(Held& held, Type type) noexcept {
  if (type == Type::array) {
    if (held.array != nullptr)
      for (auto& member : *held.array)
        if (member.is_structured()) free_members(std::move(member));
    free_json(held.array);
  } else if (type == Type::object) {
    if (held.object != nullptr)
      for (auto& [name, member] : *held.object)
        if (member.is_structured()) free_members(std::move(member));
    free_json(held.object);
  } else if (type == Type::string) {
    free_json(held.string);
  } else if (type == Type::binary) {
    free_json(held.binary);
  }
}

}  // namespace detail

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

}  // namespace graft

template <>
inline void graft::Json::json_value::destroy(nlohmann::detail::value_t type) {
  graft::detail::free_json(*this, type);
}
template <>
inline void graft::OrderedJson::json_value::destroy(nlohmann::detail::value_t type) {
  graft::detail::free_json(*this, type);
}
