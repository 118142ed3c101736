#include "serve/llama/request.h"

#include <cmath>

#include "serve/llama/mixed.h"

namespace graft::serve {
namespace {

constexpr double kMostBias = 100;
constexpr std::size_t kMostBiases = 4096, kMostFields = 256;
constexpr std::int64_t kRandomSeed = 0xFFFFFFFF;  // -1 in 32 bits, as some clients write it

void read_prompts(Fields& fields, LlamaRequest& request, const RequestLimits& limits) {
  const LanguageModel& model = *request.model->language;
  std::size_t bytes = 0;
  const MixedTexts read{[&](const std::string& text, bool special) {
                          check_prompt_bytes(bytes += text.size(), limits);
                          return model.encode(text, special);
                        },
                        model.info().vocab_size, static_cast<std::size_t>(limits.prompts)};
  request.prompts = read.all(fields.need("prompt"), "prompt", request.list);
}

// {token: bias} or [[token, bias], ...]: a token is an id, or a text that means all its tokens; false as a bias: never.
void read_biases(const Json& given, LlamaRequest& request) {
  const std::string name = "logit_bias";
  const LanguageModel& model = *request.model->language;
  const std::int64_t vocabulary = model.info().vocab_size;
  if (given.size() > kMostBiases)
    bad_request(name, "'logit_bias' has ", given.size(), " entries, at most ", kMostBiases, " are allowed");
  const auto add = [&](const Json& token, const Json& bias) {
    const bool never = bias.is_boolean() && !bias.get<bool>();
    if (!never && (!bias.is_number() || !(std::abs(bias.get<double>()) <= kMostBias)))
      bad_request(name, "'logit_bias' of ", dump(token), " must be a number from -100 to 100 or false, found ",
                  dump(bias));
    std::vector<std::int64_t> ids;
    if (token.is_string()) {
      const auto& text = token.get_ref<const std::string&>();
      const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos;
      ids = digits ? token_ids(Json::array({std::stoll(text)}), name, vocabulary) : model.encode(text, false);
    } else {
      ids = token_ids(Json::array({token}), name, vocabulary);
    }
    for (const std::int64_t id : ids)
      request.request.logit_bias.emplace_back(id, never ? kNeverBias : bias.get<float>());
  };
  if (given.is_object()) {
    for (const auto& [token, bias] : given.items()) add(token, bias);
    return;
  }
  if (!given.is_array()) bad_request(name, "'logit_bias' must be an object or an array, found ", kind_of(given));
  for (const Json& pair : given) {
    if (!pair.is_array() || pair.size() != 2)
      bad_request(name, "'logit_bias' must have pairs of a token and a bias, found ", dump(pair));
    add(pair[0], pair[1]);
  }
}

// Samplers that graft has not, at the values that turn them off.
void read_other_samplers(Fields& fields) {
  constexpr std::string_view off = "is not supported but for the value that turns it off";
  for (const char* name : {"mirostat", "dynatemp_range", "dry_multiplier", "xtc_probability", "min_keep", "n_keep"})
    if (const auto value = fields.number(name, -1e9, 1e9); value && *value != 0) fields.refuse(name, off);
  if (const auto value = fields.number("typical_p", -1e9, 1e9); value && *value != 1) fields.refuse("typical_p", off);
  fields.refuse_unless("post_sampling_probs", false, "is not supported: 'n_probs' gives those of the model");
  for (const char* name : {"samplers", "lora", "return_progress", "t_max_predict_ms", "n_indent"}) fields.refuse(name);
}

}  // namespace

LlamaRequest read_llama_completion(const Json& json, const App& app) {
  Json rest = json;  // without what only has another meaning here
  Json biases, seed;
  for (auto& [name, value] : {std::pair<const char*, Json*>{"logit_bias", &biases}, {"seed", &seed}})
    if (const auto found = rest.find(name); found != rest.end()) {
      *value = *found;
      rest.erase(found);
    }
  if (!seed.is_null() && seed != -1 && seed != kRandomSeed) rest["seed"] = seed;
  Fields fields(rest);
  LlamaRequest request;
  request.model = app.language_model_of(fields);
  read_sampling(fields, request);
  read_llama_fields(fields, request);
  if (request.n != 1) bad_request("n", "'n' must be 1 here: give several prompts");
  request.options.repetition_penalty =
      fields.number("repeat_penalty", 1e-6, 1e6).value_or(request.options.repetition_penalty);
  if (!biases.is_null()) read_biases(biases, request);
  request.n_predict = fields.integer("n_predict", -1, INT32_MAX).value_or(-1);
  const std::int64_t probabilities = fields.integer("n_probs", 0, 20).value_or(0);
  if (probabilities > 0) request.request.logprobs = std::min(probabilities, request.model->language->info().vocab_size);
  request.return_tokens = fields.boolean("return_tokens").value_or(false);
  if (const Json* names = fields.array("response_fields")) {
    if (names->size() > kMostFields)
      bad_request("response_fields", "'response_fields' has ", names->size(), " names, at most ", kMostFields,
                  " are allowed");
    for (const Json& name : *names) {
      if (!name.is_string())
        bad_request("response_fields", "'response_fields' must hold strings, found ", kind_of(name));
      request.response_fields.push_back(name.get<std::string>());
    }
  }
  read_other_samplers(fields);
  read_prompts(fields, request, app.options.limits);
  fields.end();
  check_prompts(request, app.options.limits, "prompt");
  set_max_tokens(request, request.n_predict < 0 ? std::nullopt : std::optional(request.n_predict));
  return request;
}

}  // namespace graft::serve
