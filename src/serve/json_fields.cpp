#include "serve/json_fields.h"

#include <cmath>
#include <vector>

#include "serve/api_error.h"

namespace graft::serve {

Json parse_json(std::string_view text) {
  JsonRules rules;
  rules.max_depth = rules.unique_depth = kMaxJsonDepth;
  rules.max_members = kMaxJsonMembers;
  rules.refuse = [](const std::string& message) { throw ApiError(400, "the JSON " + message); };
  try {
    return read_json<Json>(text, rules);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string_view message = error.what();
    const std::size_t from = message.find("] ");
    throw ApiError(400, str("the body is no valid JSON: ", message.substr(from == message.npos ? 0 : from + 2)));
  }
}

Json parse_object(std::string_view text) {
  if (text.empty()) throw ApiError(400, "the body is empty; expected a JSON object");
  Json json = parse_json(text);
  if (!json.is_object()) throw ApiError(400, "the body must be a JSON object, found " + kind_of(json));
  return json;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string kind_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_float:
      return "a number with a fraction";
    default:
      return "an integer";
  }
}

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

Fields Fields::of(const Json& value, const std::string& path) {
  if (!value.is_object()) bad_request(path, "'", path, "' must be an object, found ", kind_of(value));
  return Fields(value, path + ".");
}

const Json* Fields::find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::need(const char* name) {
  const Json* found = find(name);
  if (!found) bad_request(path(name), "'", path(name), "' is required");
  return *found;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const Json* found = find(name);
  if (!found) return std::nullopt;
  if (!found->is_number()) bad_request(path(name), "'", path(name), "' must be a number, found ", kind_of(*found));
  const auto value = found->get<double>();
  if (!(value >= least && value <= most))
    bad_request(path(name), "'", path(name), "' must be from ", least, " to ", most, ", found ", found->dump());
  return value;
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t least, std::int64_t most) {
  const Json* found = find(name);
  if (!found) return std::nullopt;
  if (!found->is_number_integer())
    bad_request(path(name), "'", path(name), "' must be an integer, found ", kind_of(*found));
  // Above the largest int64 nlohmann has it unsigned.
  const bool large = found->is_number_unsigned() && found->get<std::uint64_t>() > INT64_MAX;
  const auto value = found->get<std::int64_t>();
  if (large || value < least || value > most)
    bad_request(path(name), "'", path(name), "' must be from ", least, " to ", most, ", found ", found->dump());
  return value;
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* found = find(name);
  if (!found) return std::nullopt;
  if (!found->is_boolean()) bad_request(path(name), "'", path(name), "' must be a boolean, found ", kind_of(*found));
  return found->get<bool>();
}

std::optional<std::string> Fields::text(const char* name) {
  const Json* found = find(name);
  if (!found) return std::nullopt;
  if (!found->is_string()) bad_request(path(name), "'", path(name), "' must be a string, found ", kind_of(*found));
  return found->get<std::string>();
}

const Json* Fields::array(const char* name) {
  const Json* found = find(name);
  if (found && !found->is_array())
    bad_request(path(name), "'", path(name), "' must be an array, found ", kind_of(*found));
  return found;
}

const Json* Fields::object(const char* name) {
  const Json* found = find(name);
  if (found && !found->is_object())
    bad_request(path(name), "'", path(name), "' must be an object, found ", kind_of(*found));
  return found;
}

std::string Fields::need_text(const char* name) {
  need(name);
  return *text(name);
}

const Json& Fields::need_array(const char* name) {
  need(name);
  return *array(name);
}

const Json& Fields::need_object(const char* name) {
  need(name);
  return *object(name);
}

void Fields::refuse(const char* name, std::string_view why) {
  if (find(name)) throw ApiError(400, str("'", path(name), "' ", why), path(name), "unsupported_parameter");
}

void Fields::refuse_unless(const char* name, const Json& harmless, std::string_view why) {
  if (const Json* found = find(name); found && *found != harmless)
    throw ApiError(400, str("'", path(name), "' ", why), path(name), "unsupported_parameter");
}

void Fields::end() const {
  for (const auto& [name, value] : object_.items())
    if (!known_.contains(name))
      throw ApiError(400, str("unknown parameter '", path(name), "'"), path(name), "unknown_parameter");
}

}  // namespace graft::serve
