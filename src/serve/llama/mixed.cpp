#include "serve/llama/mixed.h"

#include <algorithm>

#include "serve/openai/messages.h"
#include "serve/openai/text_request.h"

namespace graft::serve {

std::vector<std::vector<std::int64_t>> MixedTexts::all(const Json& given, const std::string& path, bool& list) const {
  // An array with a number in it is one text.
  list = given.is_array() && std::ranges::none_of(given, [](const Json& part) { return part.is_number(); });
  if (!list) return {one(given, path)};
  if (given.empty() || given.size() > most)
    bad_request(path, "'", path, "' must have from 1 to ", most, " texts, found ", given.size());
  std::vector<std::vector<std::int64_t>> texts;
  for (std::size_t i = 0; i < given.size(); ++i) texts.push_back(one(given[i], str(path, '[', i, ']')));
  return texts;
}

std::vector<std::int64_t> MixedTexts::one(const Json& given, const std::string& path) const {
  if (given.is_string()) return encode(given.get_ref<const std::string&>(), true);
  if (given.is_object()) {
    Fields fields(given, path + ".");
    const auto text = fields.text("prompt_string");
    const Json* content = text ? nullptr : fields.array("content");
    if (!text && !content) bad_request(path, "'", path, "' must have 'prompt_string' or 'content'");
    fields.refuse("multimodal_data");
    fields.end();
    return encode(text ? *text : text_of_parts(*content, fields.path("content"), {"text"}), true);
  }
  if (!given.is_array())
    bad_request(path, "'", path, "' must be a string, an array of token ids and strings or an object, found ",
                kind_of(given));
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::vector<std::int64_t> more = given[i].is_string()
                                               ? encode(given[i].get_ref<const std::string&>(), i == 0)
                                               : token_ids(Json::array({given[i]}), str(path, '[', i, ']'), vocabulary);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

}  // namespace graft::serve
