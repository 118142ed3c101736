#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

// Reading of JSON documents whose fields may be missing or of another type. All functions throw InvalidProgram.
namespace graft::text {

// The deepest nesting of a document: values are copied and printed by recursion.
inline constexpr std::size_t kMaxJsonDepth = 200;
// How deep the arrays and objects of a document, which may be invalid, nest. (nlohmann's parser can report the depth to
// a callback, but then searches an object for discarded members after each of them.)
std::size_t json_depth(std::string_view document);

// `what` names the document in messages: "tokenizer.json".
Json parse_json(std::string_view document, const std::string& what);

// The member of an object; null where it is missing.
const Json& member(const Json& object, const std::string& name);

// `where` names the value in messages.
std::string text_of(const Json& value, const std::string& where);
std::string string_at(const Json& object, const std::string& name, const std::string& where);
// `missing`: where there is none.
bool bool_at(const Json& object, const std::string& name, bool missing, const std::string& where);
std::int64_t integer_at(const Json& object, const std::string& name, const std::string& where);
const Json& array_at(const Json& object, const std::string& name, const std::string& where);

}  // namespace graft::text
