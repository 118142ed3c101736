#pragma once

#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

// Reading of JSON documents whose fields may be missing or of another type. All functions throw InvalidProgram.
namespace graft::text {

// The deepest nesting of a document: values are copied and printed by recursion.
inline constexpr std::size_t kMaxJsonDepth = 200;
// How deep the arrays and objects of a document, which may be invalid, nest. (nlohmann's parser can report the depth to
// a callback, but then searches an object for discarded members after each of them.)
std::size_t json_depth(std::string_view document);

// `what` names the document in messages: "tokenizer.json".
inline Json parse_json(std::string_view document, const std::string& what) {
  GRAFT_CHECK(InvalidProgram, json_depth(document) <= kMaxJsonDepth, what, " is nested too deeply");
  try {
    return Json::parse(document.begin(), document.end());
  } catch (const Json::exception& error) {
    throw InvalidProgram(str(what, " is not valid JSON: ", error.what()));
  }
}

// The member of an object; null where it is missing.
inline const Json& member(const Json& object, const std::string& name) {
  static const Json null;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? null : *found;
}

template <typename T>
T get_as(const Json& value, const std::string& where, const char* expected) {
  try {
    return value.get<T>();
  } catch (const Json::exception&) {
    throw InvalidProgram(str(where, " should be ", expected, ", found ", value.dump().substr(0, 80)));
  }
}

inline std::string string_at(const Json& object, const std::string& name, const std::string& where) {
  return get_as<std::string>(member(object, name), where + "." + name, "a string");
}
inline bool bool_at(const Json& object, const std::string& name, bool missing, const std::string& where) {
  const Json& value = member(object, name);
  return value.is_null() ? missing : get_as<bool>(value, where + "." + name, "true or false");
}
inline std::int64_t integer_at(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = member(object, name);
  GRAFT_CHECK(InvalidProgram, value.is_number_integer(), where, ".", name, " should be an integer, found ",
              value.dump().substr(0, 80));
  return value.get<std::int64_t>();
}
inline const Json& array_at(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = member(object, name);
  GRAFT_CHECK(InvalidProgram, value.is_array(), where, ".", name, " should be an array, found ",
              value.dump().substr(0, 80));
  return value;
}

}  // namespace graft::text
