#include "serve/openai/block_answer.h"

#include <utility>

#include "serve/token_times.h"

namespace graft::serve {
namespace {

// Everything runs on the engine's thread.
class BlockAnswer {
 public:
  BlockAnswer(std::shared_ptr<Call> call, TextRequest request, std::unique_ptr<BlockWriter> writer)
      : call_(std::move(call)), request_(std::move(request)), writer_(std::move(writer)), parser_(request_.style) {}

  std::vector<Job> jobs() const {
    Job job{request_.prompts.at(0), request_.options, request_.request, request_.images};
    if (request_.grammar) job.request.mask = request_.grammar->mask();
    return {std::move(job)};
  }

  void progress(const RequestState& state, std::exception_ptr error) {
    if (error) return call_->fail(error);
    if (const auto first = times_.count(*call_, request_.model->name, state.tokens.size()))
      call_->note("first_token_ms", 1e3 * *first);
    if (request_.stream && !call_->began()) {
      call_->begin_events();
      writer_->begin(*call_, request_.prompts[0].size());
    }
    const std::string_view text = state.text.substr(taken_);
    taken_ = state.text.size();
    for (AnswerPart& part : parser_.add(text, state.reason.has_value())) take(part);
    if (!state.reason) return;
    close();
    const Outcome outcome{*state.reason, request_.prompts[0].size(), static_cast<std::size_t>(state.reused_tokens),
                          state.tokens.size()};
    call_->metrics().text_ended(request_.model->name, outcome.cut_off() ? "length" : "stop");
    call_->note("model", request_.model->name);
    call_->note("prompt_tokens", outcome.prompt_tokens);
    call_->note("completion_tokens", outcome.new_tokens);
    if (request_.stream)
      writer_->end(*call_, blocks_, outcome);
    else
      call_->respond_json(writer_->whole(blocks_, outcome));
  }

 private:
  void take(const AnswerPart& part) {
    if (part.kind == AnswerPart::Kind::arguments) return add(part.text);
    const bool goes_on = open_ && blocks_.back().kind == part.kind && part.kind != AnswerPart::Kind::call;
    if (!goes_on) {
      close();
      Block block{part.kind, blocks_.size(), {}, {}, {}};
      if (part.kind == AnswerPart::Kind::call) {
        block.name = part.text;
        block.id = "call_" + call_->id() + std::to_string(blocks_.size());
      }
      blocks_.push_back(std::move(block));
      open_ = true;
      if (request_.stream) writer_->open(*call_, blocks_.back());
    }
    if (part.kind != AnswerPart::Kind::call) add(part.text);
  }

  void add(const std::string& text) {
    blocks_.back().text += text;
    if (request_.stream) writer_->delta(*call_, blocks_.back(), text);
  }

  void close() {
    if (!std::exchange(open_, false)) return;
    if (request_.stream) writer_->close(*call_, blocks_.back());
  }

  std::shared_ptr<Call> call_;
  TextRequest request_;
  std::unique_ptr<BlockWriter> writer_;
  AnswerParser parser_;
  std::vector<Block> blocks_;
  bool open_ = false;
  std::size_t taken_ = 0;
  TokenTimes times_;
};

}  // namespace

void answer_blocks(App& app, const std::shared_ptr<Call>& call, TextRequest request,
                   std::unique_ptr<BlockWriter> writer) {
  const std::shared_ptr<ServedModel> model = request.model;
  set_caller(request, *call);
  const auto answer = std::make_shared<BlockAnswer>(call, std::move(request), std::move(writer));
  const auto id = model->engine->submit(answer->jobs(), deadline_of(*call, app.options.limits),
                                        [answer](std::size_t, const RequestState& state, std::exception_ptr error) {
                                          answer->progress(state, std::move(error));
                                        });
  call->on_gone([model, id] { model->engine->cancel(id); });
}

}  // namespace graft::serve
