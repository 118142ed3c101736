#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"

// Requests as JSON, read strictly: what a field must be is said where it is read, and what nobody read is refused.
namespace graft::serve {

using Json = OrderedJson;

inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonMembers = 4096;  // of an object

// Throws ApiError (400) for text that is no JSON or not UTF-8, is nested deeper than kMaxJsonDepth, has larger objects
// than kMaxJsonMembers, or has a key twice.
Json parse_json(std::string_view text);
// As parse_json; the document must be an object.
Json parse_object(std::string_view text);

// Compact. What is not UTF-8 becomes U+FFFD: texts of models may end within a character.
std::string dump(const Json& json);

// "a string", "an object", ... for messages.
std::string kind_of(const Json& json);

// The fields of an object. All functions throw ApiError (400) naming the field. A field that is null counts as absent,
// as in OpenAI's API.
class Fields {
 public:
  // `where`: what its fields are called in messages, "messages[0]."; empty for the request itself. The object must
  // outlive this.
  explicit Fields(const Json& object, std::string where = {});
  // Of a value called `path`, which must be an object.
  static Fields of(const Json& value, const std::string& path);

  const Json* find(const char* name);  // null when absent
  const Json& need(const char* name);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<std::int64_t> integer(const char* name, std::int64_t least, std::int64_t most);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> text(const char* name);
  const Json* array(const char* name);
  const Json* object(const char* name);
  // The same of a field that must be there.
  std::string need_text(const char* name);
  const Json& need_array(const char* name);
  const Json& need_object(const char* name);
  // Throws when the field is there: it is known, and not served.
  void refuse(const char* name, std::string_view why = "is not supported");
  // As refuse(), unless it is the value that means nothing.
  void refuse_unless(const char* name, const Json& harmless, std::string_view why = "is not supported");
  // Takes any string: for fields that are for the caller's own records.
  void accept_text(const char* name) { text(name); }
  // Throws for fields that were not read.
  void end() const;

  std::string path(const std::string& name) const { return where_ + name; }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace graft::serve
