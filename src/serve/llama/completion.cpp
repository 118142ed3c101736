#include "serve/llama/completion.h"

#include <algorithm>
#include <utility>

#include "serve/llama/request.h"
#include "serve/openai/text_answer.h"
#include "serve/timings.h"
#include "serve/token_times.h"

namespace graft::serve {
namespace {

Json bytes_of(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

// Collects what the engine reports; everything runs on the engine's thread.
class LlamaAnswer {
 public:
  LlamaAnswer(std::shared_ptr<Call> call, LlamaRequest request)
      : call_(std::move(call)), request_(std::move(request)), tokenizer_(*request_.model->language->tokenizer()) {
    for (std::size_t i = 0; i < request_.prompts.size(); ++i) parts_.emplace_back(call_->request().start);
  }

  std::vector<Job> jobs() const {
    std::vector<Job> jobs;
    for (std::size_t i = 0; i < request_.prompts.size(); ++i) {
      Job job{request_.prompts[i], request_.options, request_.request};
      // The context has room for the prompt and what is new.
      if (request_.n_predict < 0)
        job.options.max_new_tokens = std::max<std::int64_t>(context() - std::ssize(job.prompt), 1);
      job.options.seed += i;
      if (request_.grammar) job.request.mask = request_.grammar->mask();
      jobs.push_back(std::move(job));
    }
    return jobs;
  }

  void progress(std::size_t index, const RequestState& state, std::exception_ptr error) {
    if (failed_) return;
    if (error) {
      failed_ = true;
      return call_->fail(error);
    }
    Part& part = parts_[index];
    if (state.tokens.size() > part.seen) part.timings.token();
    part.seen = state.tokens.size();
    const auto first = part.times.count(*call_, request_.model->name, state.tokens.size());
    if (first && !std::exchange(first_noted_, true)) call_->note("first_token_ms", 1e3 * *first);
    if (request_.stream) {
      if (!call_->began()) call_->begin_events();
      send(index, state);
    }
    if (!state.reason) return;
    part.answer = last(index, state);
    call_->metrics().text_ended(request_.model->name, stop_type(state) == "limit" ? "length" : "stop");
    if (request_.stream) call_->event(part.answer);
    if (++ended_ == parts_.size()) end();
  }

 private:
  struct Part {
    explicit Part(Clock::time_point arrived) : timings(arrived) {}
    Timings timings;
    TokenTimes times;
    std::size_t seen = 0, sent_tokens = 0, sent_bytes = 0;
    Json answer;
  };

  std::int64_t context() const { return request_.model->engine->capacity(); }

  // Of the text: those without the one that ended it.
  std::size_t tokens_of(const RequestState& state) const {
    if (request_.no_new_tokens) return 0;
    return state.tokens.size() - (state.reason == FinishReason::eos ? 1 : 0);
  }

  std::string text_of(const RequestState& state) const { return request_.no_new_tokens ? "" : std::string(state.text); }

  std::string stop_type(const RequestState& state) const {
    if (!state.reason) return "none";
    switch (*state.reason) {
      case FinishReason::stop_string:
        return "word";
      case FinishReason::length:
      case FinishReason::context:
        return "limit";
      default:
        return "eos";
    }
  }

  // Which of several the text ended before: the state does not say.
  std::string stopping_word(const RequestState& state) const {
    if (state.reason != FinishReason::stop_string) return "";
    const std::string all = tokenizer_.decode(state.tokens, request_.options.skip_special_tokens);
    for (const std::string& word : request_.options.stop_strings)
      if (all.find(word) != all.npos) return word;
    return request_.options.stop_strings.front();
  }

  Json probability(std::int64_t id, float logprob) const {
    const std::string bytes = id < tokenizer_.size() ? tokenizer_.token_bytes(id) : "";
    return {{"id", id}, {"token", bytes}, {"bytes", bytes_of(bytes)}, {"logprob", json_logprob(logprob)}};
  }

  Json probabilities(const RequestState& state, std::size_t from, std::size_t to) const {
    Json list = Json::array();
    const auto top = static_cast<std::size_t>(*request_.request.logprobs);
    for (std::size_t i = from; i < to; ++i) {
      Json token = probability(state.tokens[i], state.logprobs[i]);
      token["top_logprobs"] = Json::array();
      for (const TokenLogprob& likely : state.top_logprobs.subspan(i * top, top))
        token["top_logprobs"].push_back(probability(likely.id, likely.logprob));
      list.push_back(std::move(token));
    }
    return list;
  }

  // An event for each token; the text of several that came at once is that of the last.
  void send(std::size_t index, const RequestState& state) {
    Part& part = parts_[index];
    const std::string text = text_of(state);
    const std::size_t tokens = tokens_of(state);
    for (; part.sent_tokens < tokens || part.sent_bytes < text.size(); ++part.sent_tokens) {
      const bool token = part.sent_tokens < tokens;  // otherwise text that was kept back
      const bool all = part.sent_tokens + 1 >= tokens;
      Json json = {{"index", index},
                   {"content", all ? text.substr(part.sent_bytes) : ""},
                   {"tokens", token ? Json::array({state.tokens[part.sent_tokens]}) : Json::array()},
                   {"stop", false},
                   {"id_slot", -1},
                   {"tokens_predicted", std::min(part.sent_tokens + 1, tokens)},
                   {"tokens_evaluated", request_.prompts[index].size()}};
      if (all) part.sent_bytes = text.size();
      if (request_.timings) json["timings"] = timings(index, state);
      if (token && request_.request.logprobs)
        json["completion_probabilities"] = probabilities(state, part.sent_tokens, part.sent_tokens + 1);
      call_->event(json);
    }
    part.sent_tokens = std::min(part.sent_tokens, tokens);
  }

  Json timings(std::size_t index, const RequestState& state) const {
    return parts_[index].timings.json(request_.prompts[index].size(), static_cast<std::size_t>(state.reused_tokens),
                                      request_.no_new_tokens ? 0 : state.tokens.size());
  }

  Json settings() const {
    const GenerationOptions& options = request_.options;
    Json biases = Json::array();
    const auto bias = [&](std::int64_t id, float value) {
      biases.push_back({{"token", id}, {"bias", value > kNeverBias ? Json(value) : Json()}});
    };
    for (const auto& [id, value] : request_.request.logit_bias) bias(id, value);
    if (options.ignore_eos)
      for (const std::int64_t id : request_.model->language->info().eos_token_ids) bias(id, kNeverBias);
    Json json = {{"n_predict", request_.n_predict},
                 {"max_tokens", request_.n_predict},
                 {"seed", options.seed},
                 {"temperature", options.temperature},
                 {"top_k", options.top_k},
                 {"top_p", options.top_p},
                 {"min_p", options.min_p},
                 {"repeat_penalty", options.repetition_penalty},
                 {"presence_penalty", request_.request.presence_penalty},
                 {"frequency_penalty", request_.request.frequency_penalty},
                 {"stop", options.stop_strings},
                 {"ignore_eos", options.ignore_eos},
                 {"stream", request_.stream},
                 {"n_probs", request_.request.logprobs.value_or(0)},
                 {"timings_per_token", request_.timings},
                 {"logit_bias", std::move(biases)}};
    // Samplers of llama-server that graft has not: off.
    json.update(Json{{"typical_p", 1},
                     {"mirostat", 0},
                     {"dynatemp_range", 0},
                     {"xtc_probability", 0},
                     {"dry_multiplier", 0},
                     {"adaptive_target", -1},
                     {"adaptive_decay", 0},
                     {"post_sampling_probs", false}});
    return json;
  }

  // The answer, and the last event of a stream, whose text has been sent.
  Json last(std::size_t index, const RequestState& state) const {
    const auto& prompt = request_.prompts[index];
    const std::string text = text_of(state);
    const std::size_t tokens = request_.no_new_tokens ? 0 : state.tokens.size();
    const bool full = stop_type(state) == "limit" && std::ssize(prompt) + std::ssize(state.tokens) >= context() &&
                      request_.n_predict != static_cast<std::int64_t>(tokens);
    Json json = {{"index", index},
                 {"content", request_.stream ? "" : text},
                 {"tokens", Json::array()},
                 {"id_slot", -1},
                 {"stop", true},
                 {"model", request_.model->name},
                 {"tokens_predicted", tokens},
                 {"tokens_evaluated", prompt.size()},
                 {"generation_settings", settings()},
                 {"prompt", tokenizer_.decode(prompt)},
                 {"has_new_line", text.find('\n') != text.npos},
                 {"truncated", full},
                 {"stop_type", stop_type(state)},
                 {"stopping_word", stopping_word(state)},
                 {"tokens_cached", prompt.size() + tokens},
                 {"timings", timings(index, state)}};
    if (!request_.stream && request_.return_tokens)
      for (std::size_t i = 0; i < tokens_of(state); ++i) json["tokens"].push_back(state.tokens[i]);
    if (!request_.stream && request_.request.logprobs)
      json["completion_probabilities"] = probabilities(state, 0, tokens_of(state));
    return picked(std::move(json));
  }

  // A field that is not there is left out.
  Json picked(Json json) const {
    if (request_.response_fields.empty()) return json;
    Json out = Json::object();
    for (const std::string& name : request_.response_fields) {
      const Json* at = &json;
      for (std::size_t from = 0; at && from <= name.size();) {
        const std::size_t to = std::min(name.find('/', from), name.size());
        const std::string key = name.substr(from, to - from);
        at = at->is_object() && at->contains(key) ? &(*at)[key] : nullptr;
        from = to + 1;
      }
      if (at) out[name] = *at;
    }
    return out;
  }

  void end() {
    std::size_t prompt = 0, completion = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      prompt += request_.prompts[i].size();
      completion += request_.no_new_tokens ? 0 : parts_[i].seen;
    }
    call_->note("model", request_.model->name);
    call_->note("prompt_tokens", prompt);
    call_->note("completion_tokens", completion);
    if (request_.stream) return call_->end_stream();
    if (!request_.list) return call_->respond_json(parts_[0].answer);
    Json list = Json::array();
    for (Part& part : parts_) list.push_back(std::move(part.answer));
    call_->respond_json(list);
  }

  std::shared_ptr<Call> call_;
  LlamaRequest request_;
  const Tokenizer& tokenizer_;
  std::vector<Part> parts_;
  std::size_t ended_ = 0;
  bool failed_ = false, first_noted_ = false;
};

}  // namespace

void llama_completion(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  LlamaRequest request = read_llama_completion(parse_object(call->request().body), app);
  call->body() = {};
  const std::shared_ptr<ServedModel> model = request.model;
  set_caller(request, *call);
  const auto answer = std::make_shared<LlamaAnswer>(call, std::move(request));
  run_jobs(model, call, answer->jobs(), deadline_of(*call, app.options.limits),
           [answer](std::size_t job, const RequestState& state, std::exception_ptr error) {
             answer->progress(job, state, std::move(error));
           });
}

}  // namespace graft::serve
