#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json_fields.h"

// Forms with files, multipart/form-data (RFC 7578), read as strictly as JSON.
namespace graft::serve {

struct FormPart {
  std::string name;
  std::optional<std::string> filename;
  std::string_view content;  // in the body
};

inline constexpr std::size_t kMaxFormParts = 64;

// The parts of `body`, in order. `content_type`: the header, with its boundary. Throws ApiError (400) for what is no
// such form, and for more than kMaxFormParts.
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

// Those that are no files, as the object that a JSON request would be: "name[]" is an array of strings, and a field
// whose text is a JSON number, true or false is that, but for those of `texts`, which stay as they are. Throws ApiError
// (400) for text that is not UTF-8, and a name that comes twice.
Json form_fields(const std::vector<FormPart>& parts, const std::vector<std::string_view>& texts);

}  // namespace graft::serve
