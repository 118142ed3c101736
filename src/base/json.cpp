#include "base/json.h"

#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace graft {
namespace {

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

// Makes the value of a document that obeys the rules.
template <typename Value>
class Checked : public nlohmann::detail::json_sax_dom_parser<Value> {
  using Base = nlohmann::detail::json_sax_dom_parser<Value>;

 public:
  Checked(Value& value, const JsonRules& rules) : Base(value), rules_(rules) {}

  bool start_object(std::size_t members) {
    enter();
    open_.push_back({});
    return Base::start_object(members);
  }
  bool key(std::string& name) {
    Object& object = open_.back();
    if (++object.members > rules_.max_members)
      rules_.refuse(str("has an object of more than ", rules_.max_members, " members"));
    if (depth_ <= rules_.unique_depth && !object.keys.insert(name).second)
      rules_.refuse("has the key '" + name + "' twice in one object");
    return Base::key(name);
  }
  bool end_object() {
    --depth_;
    open_.pop_back();
    return Base::end_object();
  }
  bool start_array(std::size_t elements) {
    enter();
    return Base::start_array(elements);
  }
  bool end_array() {
    --depth_;
    return Base::end_array();
  }

 private:
  struct Object {
    std::size_t members = 0;
    std::set<std::string> keys;  // up to unique_depth
  };

  void enter() {
    if (++depth_ > rules_.max_depth) rules_.refuse(str("is nested deeper than ", rules_.max_depth, " levels"));
  }

  const JsonRules& rules_;
  int depth_ = 0;
  std::vector<Object> open_;
};

}  // namespace

template <AnyJson Value>
Value read_json(std::string_view text, bool allow_exceptions) {
  return Value::parse(text.data(), text.data() + text.size(), nullptr, allow_exceptions);
}

template <AnyJson Value>
Value read_json(std::span<const std::byte> text, bool allow_exceptions) {
  return read_json<Value>(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()), allow_exceptions);
}

template <AnyJson Value>
Value read_json(std::string_view text, const JsonRules& rules) {
  Value out;
  Checked<Value> reader(out, rules);
  Value::sax_parse(text.data(), text.data() + text.size(), &reader);
  return out;
}

template Json read_json(std::string_view, bool);
template Json read_json(std::span<const std::byte>, bool);
template Json read_json(std::string_view, const JsonRules&);
template OrderedJson read_json(std::string_view, bool);
template OrderedJson read_json(std::span<const std::byte>, bool);
template OrderedJson read_json(std::string_view, const JsonRules&);

}  // namespace graft

template <>
void graft::Json::json_value::destroy(nlohmann::detail::value_t type) {
  graft::free_json(*this, type);
}
template <>
void graft::OrderedJson::json_value::destroy(nlohmann::detail::value_t type) {
  graft::free_json(*this, type);
}
