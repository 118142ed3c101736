#include "serve/form.h"

#include <algorithm>

#include "base/utf8.h"
#include "serve/api_error.h"
#include "serve/http/target.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMaxBoundary = 70;  // RFC 2046, 5.1.1

void skip_spaces(std::string_view& text) { text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size())); }

// "; name=value" or "; name="quoted"" parameters after the first word of a header's value; nothing for one that is
// written otherwise.
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  std::size_t semicolon = header.find(';');
  while (semicolon != std::string_view::npos) {
    header.remove_prefix(semicolon + 1);
    skip_spaces(header);
    const std::size_t equals = header.find('=');
    if (equals == std::string_view::npos) return {};
    const std::string found = http_lower(std::string(header.substr(0, equals)));
    header.remove_prefix(equals + 1);
    std::string value;
    if (header.starts_with('"')) {
      std::size_t i = 1;
      for (; i < header.size() && header[i] != '"'; ++i) {
        if (header[i] == '\\' && i + 1 < header.size()) ++i;
        value += header[i];
      }
      if (i >= header.size()) return {};
      header.remove_prefix(i + 1);
      semicolon = header.find(';');
    } else {
      semicolon = header.find(';');
      value = header.substr(0, semicolon);
      value.erase(value.find_last_not_of(" \t") + 1);
    }
    if (found == name) return value;
  }
  return {};
}

FormPart parse_part(std::string_view part) {
  FormPart out;
  bool named = false;
  while (!part.starts_with("\r\n")) {
    const std::size_t end = part.find("\r\n");
    if (end == std::string_view::npos) bad_request({}, "a part of the form has no end of its header");
    const std::string_view line = part.substr(0, end);
    part.remove_prefix(end + 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) bad_request({}, "a header of the form's parts has no ':'");
    if (http_lower(std::string(line.substr(0, colon))) != "content-disposition") continue;
    std::string_view value = line.substr(colon + 1);
    skip_spaces(value);
    const auto name = parameter(value, "name");
    if (!http_lower(std::string(value)).starts_with("form-data") || !name || named)
      bad_request({}, "a part of the form must have one Content-Disposition: form-data with a name");
    named = true;
    out.name = *name;
    out.filename = parameter(value, "filename");
  }
  if (!named) bad_request({}, "a part of the form has no Content-Disposition");
  out.content = part.substr(2);
  return out;
}

}  // namespace

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
  const auto boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundary)
    bad_request({}, "the Content-Type multipart/form-data must have a boundary of 1 to ", kMaxBoundary, " characters");
  const std::string delimiter = "--" + *boundary, between = "\r\n" + delimiter;
  std::vector<FormPart> parts;
  std::size_t at = body.starts_with(delimiter) ? delimiter.size() : std::string_view::npos;
  if (at == std::string_view::npos) {
    const std::size_t found = body.find(between);  // after a preamble, which is ignored
    if (found == std::string_view::npos) bad_request({}, "the form does not contain its boundary");
    at = found + between.size();
  }
  for (;;) {
    const std::string_view rest = body.substr(at);
    if (rest.starts_with("--")) return parts;
    const std::size_t line_end = rest.find_first_not_of(" \t");
    if (line_end == std::string_view::npos || !rest.substr(line_end).starts_with("\r\n"))
      bad_request({}, "a boundary of the form is not the end of its line");
    const std::size_t begin = at + line_end + 2, end = body.find(between, begin - 2);
    if (end == std::string_view::npos || end < begin) bad_request({}, "the form does not end with its boundary");
    if (parts.size() == kMaxFormParts) bad_request({}, "the form has more than ", kMaxFormParts, " parts");
    parts.push_back(parse_part(body.substr(begin, end - begin)));
    at = end + between.size();
  }
}

Json form_fields(const std::vector<FormPart>& parts, const std::vector<std::string_view>& texts) {
  Json json = Json::object();
  for (const FormPart& part : parts) {
    if (part.filename) continue;
    if (!is_utf8(part.name)) bad_request({}, "the name of a form's part is not UTF-8");
    if (!is_utf8(part.content)) bad_request(part.name, "'", part.name, "' is not UTF-8");
    const bool listed = part.name.ends_with("[]");
    const std::string name = listed ? part.name.substr(0, part.name.size() - 2) : part.name;
    if (json.contains(name) && !(listed && json[name].is_array()))
      bad_request(name, "'", name, "' occurs twice in the form");
    Json value = part.content;
    if (!listed && std::ranges::find(texts, name) == texts.end()) {
      const Json scalar = Json::parse(part.content, nullptr, false);
      if (scalar.is_number() || scalar.is_boolean()) value = scalar;
    }
    if (listed)
      json[name].push_back(std::move(value));
    else
      json[name] = std::move(value);
  }
  return json;
}

}  // namespace graft::serve
