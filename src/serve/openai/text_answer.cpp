#include "serve/openai/text_answer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "serve/timings.h"
#include "serve/token_times.h"

namespace graft::serve {
namespace {

// In Unicode characters, as clients count; continuation bytes are none.
std::size_t characters(std::string_view bytes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

const char* reason_name(FinishReason reason) {
  return reason == FinishReason::length || reason == FinishReason::context ? "length" : "stop";
}

// Collects what the engine reports; everything runs on the engine's thread.
class TextAnswer {
 public:
  TextAnswer(std::shared_ptr<Call> call, TextRequest request, const TextFormat& format)
      : call_(std::move(call)),
        request_(std::move(request)),
        format_(format),
        timings_(call_->request().start),
        choices_(texts()) {
    id_ = format_.id_prefix() + call_->id();
    const auto& repeatable = call_->repeatable;
    created_ = repeatable ? repeatable->created : unix_seconds();
    if (repeatable && !request_.seeded) request_.options.seed = repeatable->seed;
  }

  std::size_t texts() const { return request_.prompts.size() * static_cast<std::size_t>(request_.n); }
  const TextRequest& request() const { return request_; }

  // The i-th text is the (i modulo n)-th one of prompt i / n.
  std::vector<Job> jobs() const {
    std::vector<Job> jobs;
    for (std::size_t i = 0; i < texts(); ++i) {
      Job job{request_.prompts[prompt_of(i)], request_.options, request_.request, request_.images};
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
    Choice& choice = choices_[index];
    if (state.tokens.size() > choice.tokens) timings_.token();
    choice.tokens = request_.no_new_tokens ? 0 : state.tokens.size();
    choice.reused = static_cast<std::size_t>(state.reused_tokens);
    const auto first = choice.times.count(*call_, request_.model->name, state.tokens.size());
    if (first && !std::exchange(first_noted_, true)) call_->note("first_token_ms", 1e3 * *first);
    if (request_.stream) {
      if (!call_->began()) call_->begin_events();
      send_part(index, choice, state);
    } else if (state.reason) {
      choice.text = whole_text(index, state);
      if (request_.request.logprobs) choice.logprobs = format_.logprobs(entries(index, choice, state), 0);
      if (takes_apart()) choice.parts = take_apart(choice, choice.text, true);
    }
    if (!state.reason) return;
    choice.reason = request_.no_new_tokens ? "length" : reason_name(*state.reason);
    if (!choice.calls.empty() && choice.reason == "stop") choice.reason = "tool_calls";
    call_->metrics().text_ended(request_.model->name, choice.reason);
    if (request_.stream) send_end(index, choice);
    if (++ended_ == choices_.size()) end();
  }

  bool failed() const { return failed_; }

 private:
  struct Choice {
    bool begun = false;
    std::size_t sent_bytes = 0, sent_tokens = 0, offset = 0;
    std::string text;
    Json logprobs;
    std::string reason;
    std::size_t tokens = 0, reused = 0;
    std::optional<AnswerParser> parser;
    std::vector<AnswerPart> parts;  // of an answer that is no stream
    CallIds calls;
    TokenTimes times;
  };

  std::size_t prompt_of(std::size_t index) const { return index / static_cast<std::size_t>(request_.n); }

  bool takes_apart() const { return request_.style.takes_apart(); }

  // `text`: what has come since the last time.
  std::vector<AnswerPart> take_apart(Choice& choice, const std::string& text, bool last) {
    if (!choice.parser) choice.parser.emplace(request_.style);
    std::vector<AnswerPart> parts = choice.parser->add(text, last);
    for (const AnswerPart& part : parts)
      if (part.kind == AnswerPart::Kind::call && !request_.stream) choice.calls.push_back(new_call_id(choice));
    return parts;
  }

  // Templates of Mistral take ids of nine letters and digits alone.
  std::string new_call_id(const Choice& choice) const {
    const std::string number = std::to_string(&choice - choices_.data()) + 'x' + std::to_string(choice.calls.size());
    if (request_.style.family != ToolFamily::mistral && request_.style.family != ToolFamily::mistral_args)
      return "call_" + call_->id() + number;
    std::string id = call_->id();
    for (std::size_t i = 0; i < number.size() && i < 9; ++i) id[i] = number[i];
    return id.substr(0, 9);
  }

  std::string whole_text(std::size_t index, const RequestState& state) const {
    std::string text = request_.echo ? request_.echoed[prompt_of(index)] : "";
    if (!request_.no_new_tokens) text += state.text;
    return text;
  }

  // Those since the last part of this choice, the prompt's first where it is echoed.
  std::vector<TokenEntry> entries(std::size_t index, Choice& choice, const RequestState& state) const {
    std::vector<TokenEntry> out;
    const auto top = static_cast<std::size_t>(*request_.request.logprobs);
    const Tokenizer& tokenizer = *request_.model->language->tokenizer();
    const auto bytes = [&](std::int64_t id) { return id < tokenizer.size() ? tokenizer.token_bytes(id) : ""; };
    const auto add = [&](std::int64_t id, float logprob, std::span<const TokenLogprob> likely) {
      TokenEntry entry{id, bytes(id), logprob, {}, true};
      for (const TokenLogprob& other : likely) entry.top.push_back({other.id, bytes(other.id), other.logprob});
      out.push_back(std::move(entry));
    };
    if (request_.request.prompt_logprobs && !choice.begun) {
      const auto& prompt = request_.prompts[prompt_of(index)];
      out.push_back({prompt[0], bytes(prompt[0]), 0, {}, false});
      for (std::size_t i = 1; i < prompt.size(); ++i)
        add(prompt[i], state.prompt_logprobs[i - 1], state.top_prompt_logprobs.subspan((i - 1) * top, top));
    }
    choice.begun = true;
    if (request_.no_new_tokens) return out;
    // The token that ended the text is no part of it.
    const std::size_t end = state.tokens.size() - (state.reason == FinishReason::eos ? 1 : 0);
    for (std::size_t i = choice.sent_tokens; i < end; ++i)
      add(state.tokens[i], state.logprobs[i], state.top_logprobs.subspan(i * top, top));
    choice.sent_tokens = std::max(choice.sent_tokens, end);
    return out;
  }

  // `timed`: the first part of a stream says no times, since nothing was computed for it alone.
  Json event(Json choices, bool timed = true) const {
    Json json = {{"id", id_},
                 {"object", format_.object(request_.stream)},
                 {"created", created_},
                 {"model", request_.model->name},
                 {"system_fingerprint", "build-" + std::string(version())},
                 {"choices", std::move(choices)}};
    if (request_.stream && request_.include_usage) json["usage"] = nullptr;
    if (request_.timings && timed) {
      const Counts counts = this->counts();
      json["timings"] = timings_.json(counts.prompt, counts.reused, counts.completion);
    }
    return json;
  }

  Json choice_json(std::size_t index, Json fields, Json logprobs, const Json& reason) const {
    Json json = {{"index", index}};
    json.update(fields);
    json["logprobs"] = std::move(logprobs);
    json["finish_reason"] = reason;
    return json;
  }

  void send_part(std::size_t index, Choice& choice, const RequestState& state) {
    const std::string text = whole_text(index, state);
    const bool first = !choice.begun;
    if (first)
      if (const Json part = format_.first_part(); !part.is_null())
        call_->event(event(Json::array({choice_json(index, part, nullptr, nullptr)}), false));
    Json logprobs;
    if (request_.request.logprobs) {
      const std::vector<TokenEntry> added = entries(index, choice, state);
      if (!added.empty()) logprobs = format_.logprobs(added, choice.offset);
      for (const TokenEntry& entry : added) choice.offset += characters(entry.bytes);
    }
    choice.begun = true;
    if (takes_apart()) {
      for (const AnswerPart& part : take_apart(choice, text.substr(choice.sent_bytes), state.reason.has_value())) {
        if (part.kind == AnswerPart::Kind::call) choice.calls.push_back(new_call_id(choice));
        call_->event(event(Json::array(
            {choice_json(index, format_.part(part, choice.calls), std::exchange(logprobs, nullptr), nullptr)})));
      }
      choice.sent_bytes = text.size();
      if (!logprobs.is_null())
        call_->event(event(Json::array({choice_json(index, format_.part(""), std::move(logprobs), nullptr)})));
      return;
    }
    if (text.size() == choice.sent_bytes && logprobs.is_null()) return;
    const Json part = format_.part(text.substr(choice.sent_bytes));
    choice.sent_bytes = text.size();
    call_->event(event(Json::array({choice_json(index, part, std::move(logprobs), nullptr)})));
  }

  void send_end(std::size_t index, const Choice& choice) {
    Json fields = format_.part("");
    if (fields.contains("delta")) fields["delta"] = Json::object();
    call_->event(event(Json::array({choice_json(index, std::move(fields), nullptr, choice.reason)})));
  }

  struct Counts {
    std::size_t prompt = 0, completion = 0, reused = 0;
  };

  Counts counts() const {
    Counts out;
    for (const auto& tokens : request_.prompts) out.prompt += tokens.size();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      out.completion += choices_[i].tokens;
      if (i % static_cast<std::size_t>(request_.n) == 0) out.reused += choices_[i].reused;
    }
    return out;
  }

  Json usage() const {
    const auto [prompt, completion, reused] = counts();
    Json used = {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
    if (!call_->repeatable) used["prompt_tokens_details"] = {{"cached_tokens", reused}};
    return used;
  }

  void end() {
    const Json used = usage();
    call_->note("model", request_.model->name);
    call_->note("prompt_tokens", used["prompt_tokens"]);
    call_->note("completion_tokens", used["completion_tokens"]);
    if (request_.stream) {
      if (request_.include_usage) {
        Json last = event(Json::array());
        last["usage"] = used;
        call_->event(last);
      }
      return call_->end_events();
    }
    Json choices = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i)
      choices.push_back(choice_json(
          i, takes_apart() ? format_.whole(choices_[i].parts, choices_[i].calls) : format_.whole(choices_[i].text),
          std::move(choices_[i].logprobs), choices_[i].reason));
    Json json = event(std::move(choices));
    json["usage"] = used;
    call_->respond_json(json);
  }

  std::shared_ptr<Call> call_;
  TextRequest request_;
  const TextFormat& format_;
  std::string id_;
  std::int64_t created_ = 0;
  Timings timings_;
  std::vector<Choice> choices_;
  std::size_t ended_ = 0;
  bool failed_ = false, first_noted_ = false;
};

}  // namespace

double json_logprob(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

void run_jobs(const std::shared_ptr<ServedModel>& model, const std::shared_ptr<Call>& call, std::vector<Job> jobs,
              Clock::time_point deadline, Engine::OnProgress on_progress) {
  // After a failure the other texts of the request are of no use.
  const auto id = std::make_shared<std::atomic<Engine::RequestId>>(0);
  Lanes& engine = *model->engine;
  *id = engine.submit(std::move(jobs), deadline,
                      [on_progress = std::move(on_progress), id, &engine](std::size_t job, const RequestState& state,
                                                                          std::exception_ptr error) {
                        const bool failed = error != nullptr;
                        on_progress(job, state, std::move(error));
                        if (failed) engine.cancel(*id);
                      });
  call->on_gone([model, id] { model->engine->cancel(*id); });
}

void answer_texts(App& app, const std::shared_ptr<Call>& call, TextRequest request, const TextFormat& format) {
  const std::shared_ptr<ServedModel> model = request.model;
  set_caller(request, *call);
  const auto answer = std::make_shared<TextAnswer>(call, std::move(request), format);
  run_jobs(model, call, answer->jobs(), deadline_of(*call, app.options.limits),
           [answer](std::size_t job, const RequestState& state, std::exception_ptr error) {
             answer->progress(job, state, std::move(error));
           });
}

}  // namespace graft::serve
