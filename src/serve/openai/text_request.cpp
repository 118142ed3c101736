#include "serve/openai/text_request.h"

#include <charconv>
#include <random>

#include "llm/images.h"
#include "serve/openai/messages.h"
#include "serve/openai/structured.h"
#include "serve/tools/tools.h"

namespace graft::serve {
namespace {

constexpr std::int64_t kMostLogprobs = 20;
constexpr std::size_t kMostStops = 16, kMostBiases = 4096;
constexpr double kMostBias = 100;
constexpr std::int64_t kDefaultCompletionTokens = 16;  // OpenAI's

std::vector<std::string> stops_of(Fields& fields) {
  std::vector<std::string> stops;
  const Json* stop = fields.find("stop");
  if (!stop) return stops;
  const std::string path = fields.path("stop");
  const auto add = [&](const Json& text) {
    if (!text.is_string())
      bad_request(path, "'", path, "' must be a string or an array of strings, found ", kind_of(text));
    if (text.get_ref<const std::string&>().empty()) bad_request(path, "'", path, "' has an empty string");
    stops.push_back(text.get<std::string>());
  };
  if (!stop->is_array()) {
    add(*stop);
    return stops;
  }
  if (stop->size() > kMostStops)
    bad_request(path, "'", path, "' has ", stop->size(), " strings, at most ", kMostStops, " are allowed");
  for (const Json& text : *stop) add(text);
  return stops;
}

std::vector<std::pair<std::int64_t, float>> biases_of(Fields& fields, std::int64_t vocabulary) {
  std::vector<std::pair<std::int64_t, float>> biases;
  const Json* object = fields.object("logit_bias");
  if (!object) return biases;
  if (object->size() > kMostBiases)
    bad_request("logit_bias", "'logit_bias' has ", object->size(), " entries, at most ", kMostBiases, " are allowed");
  for (const auto& [name, bias] : object->items()) {
    std::int64_t id = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), id);
    if (read.ec != std::errc() || read.ptr != name.data() + name.size() || id < 0 || id >= vocabulary)
      bad_request("logit_bias", "'logit_bias' has the key '", name, "'; keys are token ids from 0 to ", vocabulary - 1);
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= kMostBias))
      bad_request("logit_bias", "'logit_bias' of token ", id, " must be a number from -100 to 100, found ",
                  bias.dump());
    biases.emplace_back(id, bias.get<float>());
  }
  return biases;
}

// Fields of both APIs that change nothing of the answer, or are not served.
void read_others(Fields& fields) {
  fields.accept_text("user");
  fields.accept_text("safety_identifier");
  fields.accept_text("prompt_cache_key");
  if (const Json* metadata = fields.object("metadata"))
    for (const auto& [name, value] : metadata->items())
      if (!value.is_string()) bad_request("metadata", "'metadata.", name, "' must be a string, found ", kind_of(value));
  if (const auto tier = fields.text("service_tier"); tier && *tier != "auto" && *tier != "default")
    throw ApiError(400, "'service_tier' is '" + *tier + "': only auto and default are supported", "service_tier",
                   "unsupported_parameter");
}

void read_stream(Fields& fields, TextRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (!options) return;
  if (!request.stream) bad_request("stream_options", "'stream_options' is allowed only with 'stream': true");
  Fields inner(*options, "stream_options.");
  request.include_usage = inner.boolean("include_usage").value_or(false);
  inner.refuse_unless("include_obfuscation", false);
  inner.end();
}

// A string, an array of strings, an array of ids, or an array of such.
void read_prompts(Fields& fields, TextRequest& request, const RequestLimits& limits) {
  const Json& prompt = fields.need("prompt");
  const LanguageModel& model = *request.model->language;
  const std::int64_t vocabulary = model.info().vocab_size;
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  std::size_t bytes = 0;
  const auto add = [&](const Json& one, const std::string& path) {
    if (one.is_string()) {
      const auto& text = one.get_ref<const std::string&>();
      check_prompt_bytes(bytes += text.size(), limits);
      request.prompts.push_back(model.encode(text, special));
      if (request.echo) request.echoed.push_back(text);
    } else {
      if (!one.is_array())
        bad_request(path, "'", path, "' must be a string or an array of token ids, found ", kind_of(one));
      if (one.empty()) bad_request(path, "'", path, "' has no token ids");
      request.prompts.push_back(token_ids(one, path, vocabulary));
      if (request.echo) request.echoed.push_back(model.tokenizer()->decode(request.prompts.back()));
    }
  };
  const bool several = prompt.is_array() && !prompt.empty() && !prompt[0].is_number();
  if (!several) return add(prompt, "prompt");
  if (static_cast<std::int64_t>(prompt.size()) > limits.prompts)
    bad_request("prompt", "'prompt' has ", prompt.size(), " prompts, at most ", limits.prompts, " are allowed");
  for (std::size_t i = 0; i < prompt.size(); ++i) add(prompt[i], str("prompt[", i, ']'));
}

}  // namespace

std::vector<std::int64_t> token_ids(const Json& array, const std::string& path, std::int64_t end) {
  std::vector<std::int64_t> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    const bool good = id.is_number_integer() && id >= 0 && id < end;
    if (!good)
      bad_request(path, "'", path, "' must hold token ids from 0 to ", end - 1, ", found ",
                  id.is_number() ? id.dump() : kind_of(id));
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

void check_prompt_bytes(std::size_t bytes, const RequestLimits& limits) {
  if (bytes > limits.prompt_bytes)
    throw ApiError(400, str("the prompts of a request may have ", limits.prompt_bytes, " bytes, found ", bytes), {},
                   "prompt_too_large");
}

void check_prompts(const TextRequest& request, const RequestLimits& limits, const std::string& param) {
  const auto texts = static_cast<std::int64_t>(request.prompts.size()) * request.n;
  if (texts > limits.prompts)
    bad_request(param, "the request asks for ", texts, " texts (prompts times 'n'), at most ", limits.prompts,
                " are allowed");
  const std::int64_t capacity = request.model->engine->capacity();
  for (const auto& prompt : request.prompts) {
    if (prompt.empty()) bad_request(param, "the prompt has no tokens");
    if (static_cast<std::int64_t>(prompt.size()) > capacity)
      throw context_exceeded(std::ssize(prompt), capacity, param);
    try {
      llm::check_placeholders(request.model->language->info(), prompt, request.images.get());
    } catch (const InvalidArgument& error) {
      bad_request(param, error.what());
    }
  }
}

void read_sampling(Fields& fields, TextRequest& request) {
  const LanguageModelInfo& info = request.model->language->info();
  GenerationOptions& options = request.options;
  options = info.generation;
  if (request.model->adapter) options.adapters = {request.model->adapter};
  constexpr double largest = 1e6;
  options.temperature = fields.number("temperature", 0, 2).value_or(info.sampling_temperature);
  options.top_p = fields.number("top_p", 0, 1).value_or(options.top_p);
  options.min_p = fields.number("min_p", 0, 1).value_or(options.min_p);
  // -1 is vLLM's "all".
  options.top_k = std::max<std::int64_t>(fields.integer("top_k", -1, INT32_MAX).value_or(options.top_k), 0);
  options.repetition_penalty = fields.number("repetition_penalty", 1e-6, largest).value_or(options.repetition_penalty);
  request.request.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  request.request.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  request.request.logit_bias = biases_of(fields, info.vocab_size);
  request.request.priority = fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0);
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  request.seeded = seed.has_value();
  options.seed = seed ? static_cast<std::uint64_t>(*seed) : request.model->seed.value_or(std::random_device{}());
  options.prompt_lookup_num_tokens = request.model->prompt_lookup;
  options.stop_strings = stops_of(fields);
  options.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (const Json* ids = fields.array("stop_token_ids"))
    options.eos_token_ids = token_ids(*ids, "stop_token_ids", info.vocab_size);
  options.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.n = fields.integer("n", 1, 128).value_or(1);
  read_stream(fields, request);
  read_others(fields);
  request.grammar = structure_of(fields, *request.model);
}

std::optional<std::int64_t> max_tokens_of(Fields& fields, std::optional<std::int64_t> given,
                                          std::optional<std::int64_t> otherwise) {
  const auto predict = fields.integer("n_predict", -1, INT32_MAX);
  if (!predict) return given ? given : otherwise;
  if (given && *given != *predict) bad_request("n_predict", "'n_predict' and 'max_tokens' say different things");
  return *predict < 0 ? std::nullopt : predict;
}

void read_llama_fields(Fields& fields, TextRequest& request) {
  request.timings = fields.boolean("timings_per_token").value_or(false);
  request.reuse = fields.boolean("cache_prompt").value_or(true);
  fields.integer("id_slot", -1, INT32_MAX);  // a prompt gets the row that has most in common with it
}

// Where the cache ends before, the text ends with the reason "length".
void set_max_tokens(TextRequest& request, std::optional<std::int64_t> most) {
  request.no_new_tokens = most == 0;
  request.options.max_new_tokens = std::max<std::int64_t>(most.value_or(request.model->engine->capacity() + 1), 1);
}

void set_caller(TextRequest& request, const Call& call) {
  request.request.caller = request.request.cache_salt = call.cache_salt;
  if (request.reuse) return;
  std::random_device random;
  request.request.cache_salt = std::uint64_t{random()} << 32 | random();
}

// What routers in front of servers add to every request, with the values that mean what is done here.
void read_router_fields(Fields& fields) {
  for (const char* name : {"no_stop_trim", "return_hidden_states", "continue_final_message"})
    fields.refuse_unless(name, false);
  for (const char* name : {"separate_reasoning", "stream_reasoning", "include_reasoning"})
    fields.refuse_unless(name, true);
}

TextRequest read_completion(const Json& json, const App& app) {
  Fields fields(json);
  TextRequest request;
  request.model = app.language_model_of(fields);
  read_sampling(fields, request);
  read_llama_fields(fields, request);
  read_router_fields(fields);
  request.echo = fields.boolean("echo").value_or(false);
  set_max_tokens(request, max_tokens_of(fields, fields.integer("max_tokens", 0, INT32_MAX), kDefaultCompletionTokens));
  request.request.logprobs = fields.integer("logprobs", 0, kMostLogprobs);
  if (request.request.logprobs)
    request.request.logprobs = std::min(*request.request.logprobs, request.model->language->info().vocab_size);
  request.request.prompt_logprobs = request.echo && request.request.logprobs;
  fields.refuse_unless("suffix", "", "is not supported: the text goes on from the prompt alone");
  if (const auto best_of = fields.integer("best_of", 1, 128); best_of && *best_of != request.n)
    throw ApiError(400, "'best_of' is supported only where it is 'n'", "best_of", "unsupported_parameter");
  read_prompts(fields, request, app.options.limits);
  fields.end();
  check_prompts(request, app.options.limits, "prompt");
  return request;
}

TextRequest read_chat(const Json& json, const App& app, std::vector<Image> pictures) {
  Fields fields(json);
  TextRequest request;
  request.model = app.language_model_of(fields);
  read_sampling(fields, request);
  read_llama_fields(fields, request);
  read_router_fields(fields);
  const auto most = fields.integer("max_tokens", 0, INT32_MAX);
  const auto most_completion = fields.integer("max_completion_tokens", 0, INT32_MAX);
  if (most && most_completion && *most != *most_completion)
    bad_request("max_tokens", "'max_tokens' and 'max_completion_tokens' say different things");
  set_max_tokens(request, max_tokens_of(fields, most_completion ? most_completion : most, std::nullopt));
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  if (top && !logprobs) bad_request("top_logprobs", "'top_logprobs' is allowed only with 'logprobs': true");
  if (logprobs) request.request.logprobs = std::min(top.value_or(0), request.model->language->info().vocab_size);
  fields.refuse_unless("functions", Json::array(), "is not supported; 'tools' is");
  fields.refuse_unless("function_call", "none", "is not supported; 'tool_choice' is");
  const ToolRequest tools = tools_of(fields, *request.model);
  for (const char* name :
       {"audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "prompt_cache_retention"})
    fields.refuse(name);
  fields.refuse_unless("modalities", Json::array({"text"}), "is supported as [\"text\"] alone");
  fields.refuse_unless("store", false, "is not supported: nothing is kept");
  Media media{.images = {}, .audio = {}, .given = std::move(pictures)};
  std::string prompt = chat_prompt_of(fields, *request.model, app.options.limits, tools.tools, true, &media);
  fields.end();
  request.style = answer_style(*request.model, tools, prompt);
  request.options.kept_special_token_ids = special_tags_of(*request.model->language->tokenizer(), request.style);
  if (auto calls = grammar_of_calls(*request.model, tools, request.style)) {
    if (request.grammar)
      bad_request("tool_choice", "a call that 'tool_choice' requires cannot have another form besides");
    request.grammar = std::move(calls);
  } else if (request.grammar && request.style.begins_in_reasoning) {
    throw ApiError(400, "the chat template begins the answer with reasoning, which has no form", "response_format",
                   "unsupported_parameter");
  }
  try {
    const LanguageModel& model = *request.model->language;
    if (!media.images.empty() && !media.audio.empty())
      bad_request("messages", "expected pictures or sounds, found both");
    const bool with_sound = !media.audio.empty() || !model.info().images;
    ImagePrompt encoded = with_sound ? model.encode_with_audio(prompt, media.audio, false)
                                     : model.encode_with_images(prompt, media.images, false);
    request.prompts.push_back(std::move(encoded.tokens));
    request.images = std::move(encoded.images);
  } catch (const InvalidArgument& error) {
    bad_request("messages", error.what());
  }
  check_prompts(request, app.options.limits, "messages");
  return request;
}

}  // namespace graft::serve
