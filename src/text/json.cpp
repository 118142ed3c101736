#include "text/json.h"

#include <algorithm>

#include "base/check.h"

namespace graft::text {

std::size_t json_depth(std::string_view document) {
  std::size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < document.size(); ++at) {
    const char c = document[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Json parse_json(std::string_view document, const std::string& what) {
  GRAFT_CHECK(InvalidProgram, json_depth(document) <= kMaxJsonDepth, what, " is nested too deeply");
  try {
    return read_json<Json>(document);
  } catch (const Json::exception& error) {
    throw InvalidProgram(str(what, " is not valid JSON: ", error.what()));
  }
}

const Json& member(const Json& object, const std::string& name) {
  static const Json null;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? null : *found;
}

std::string text_of(const Json& value, const std::string& where) {
  GRAFT_CHECK(InvalidProgram, value.is_string(), where, " should be a string, found ", value.dump().substr(0, 80));
  return value.get<std::string>();
}

std::string string_at(const Json& object, const std::string& name, const std::string& where) {
  return text_of(member(object, name), where + "." + name);
}

bool bool_at(const Json& object, const std::string& name, bool missing, const std::string& where) {
  const Json& value = member(object, name);
  GRAFT_CHECK(InvalidProgram, value.is_null() || value.is_boolean(), where, ".", name,
              " should be true or false, found ", value.dump().substr(0, 80));
  return value.is_null() ? missing : value.get<bool>();
}

std::int64_t integer_at(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = member(object, name);
  GRAFT_CHECK(InvalidProgram, value.is_number_integer(), where, ".", name, " should be an integer, found ",
              value.dump().substr(0, 80));
  return value.get<std::int64_t>();
}

const Json& array_at(const Json& object, const std::string& name, const std::string& where) {
  const Json& value = member(object, name);
  GRAFT_CHECK(InvalidProgram, value.is_array(), where, ".", name, " should be an array, found ",
              value.dump().substr(0, 80));
  return value;
}

}  // namespace graft::text
