#include <algorithm>
#include <cstring>

#include "serve/embedder.h"
#include "serve/openai/openai.h"
#include "serve/openai/text_request.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMostInputs = 2048;

std::string base64(std::span<const float> vector) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes(vector.size_bytes());
  std::memcpy(bytes.data(), vector.data(), bytes.size());
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = bytes.size() - i;
    const unsigned group = static_cast<unsigned>(bytes[i]) << 16 |
                           (left > 1 ? static_cast<unsigned>(bytes[i + 1]) << 8 : 0) | (left > 2 ? bytes[i + 2] : 0u);
    for (std::size_t digit = 0; digit < 4; ++digit) out += digit <= left ? digits[group >> (18 - 6 * digit) & 63] : '=';
  }
  return out;
}

std::vector<std::string> texts_of(Fields& fields, const RequestLimits& limits) {
  std::vector<std::string> texts;
  const Json& input = fields.need("input");
  const auto add = [&](const Json& text, const std::string& path) {
    if (!text.is_string())
      bad_request(path, "'", path, "' must be a string or an array of strings, found ", kind_of(text));
    if (text.get_ref<const std::string&>().empty()) bad_request(path, "'", path, "' is an empty string");
    texts.push_back(text.get<std::string>());
  };
  if (!input.is_array()) {
    add(input, "input");
  } else {
    if (input.empty() || input.size() > kMostInputs)
      bad_request("input", "'input' must have from 1 to ", kMostInputs, " strings, found ", input.size());
    for (std::size_t i = 0; i < input.size(); ++i) add(input[i], str("input[", i, ']'));
  }
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  check_prompt_bytes(bytes, limits);
  return texts;
}

}  // namespace

void embeddings(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.model_of(fields);
  model->check_embedder();
  const auto format = fields.text("encoding_format");
  if (format && *format != "float" && *format != "base64")
    bad_request("encoding_format", "'encoding_format' must be float or base64, found '", *format, "'");
  const bool as_base64 = format == "base64";
  fields.accept_text("user");
  fields.refuse("dimensions", "is not supported: vectors have the model's size");
  std::vector<std::string> texts = texts_of(fields, app.options.limits);
  fields.end();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i)
    tokens += model->embedder->tokens(texts[i], str("input[", i, ']'), "input");
  call->note("model", model->name);
  call->note("prompt_tokens", tokens);
  const CancelToken gone;
  call->on_gone([gone] { gone.cancel(); });
  model->embedder->embed(
      std::move(texts), deadline_of(*call, app.options.limits), gone,
      [call, model, tokens, as_base64](const std::vector<std::vector<float>>& vectors, std::exception_ptr error) {
        if (error) return call->fail(error);
        Json data = Json::array();
        for (std::size_t i = 0; i < vectors.size(); ++i)
          data.push_back({{"object", "embedding"},
                          {"index", i},
                          {"embedding", as_base64 ? Json(base64(vectors[i])) : Json(vectors[i])}});
        call->respond_json({{"object", "list"},
                            {"data", std::move(data)},
                            {"model", model->name},
                            {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
      });
}

}  // namespace graft::serve
