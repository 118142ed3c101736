#include <algorithm>
#include <cstring>

#include "serve/embedder.h"
#include "serve/llama/mixed.h"
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
  std::size_t bytes = 0;
  const MixedTexts read{[&](const std::string& text, bool special) {
                          if (text.empty()) bad_request("input", "'input' has an empty string");
                          check_prompt_bytes(bytes += text.size(), app.options.limits);
                          return model->embedder->encode(text, special);
                        },
                        model->embedder->vocabulary(), kMostInputs};
  bool list = false;
  std::vector<std::vector<std::int64_t>> texts = read.all(fields.need("input"), "input", list);
  fields.end();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    model->embedder->check(texts[i], list ? str("input[", i, ']') : "input", "input");
    tokens += std::ssize(texts[i]);
  }
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
