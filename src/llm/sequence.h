#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graft/llm.h"
#include "llm/sampler.h"
#include "llm/stop.h"

namespace graft::llm {

// One sequence on its way: its tokens, what is fed to the decoder, what the logits make of it, the text, and when it
// ends.
class Sequence {
 public:
  using OnText = std::function<void(std::string_view text)>;

  // `capacity`: of the cache, in tokens. `seed` instead of the options'. The model must outlive the sequence.
  Sequence(const LanguageModel& model, std::vector<std::int64_t> prompt, const GenerationOptions& options,
           std::uint64_t seed, std::int64_t capacity, OnText on_text);
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::vector<std::int64_t>& tokens() const { return tokens_; }  // the prompt and what came
  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  bool done() const { return done_; }
  Generation& result() { return result_; }
  // The tokens, for who keeps track of what the cache holds when the sequence is over.
  std::vector<std::int64_t> release_tokens() { return std::move(tokens_); }

  // What the next run takes: the last token and a draft of those after it; nothing once it is done.
  const std::vector<std::int64_t>& next_feed();

  // Takes the next token from these logits and returns it.
  std::int64_t take(std::span<float> logits);
  // After a run of next_feed(), with the logits [width, vocabulary] of the row: takes the tokens that they give, one
  // and those of the draft that are right. Returns how many tokens of the feed are the sequence's; the rest must leave
  // the cache.
  std::size_t take_fed(std::span<float> logits);

  void end(FinishReason reason);

  bool reading = true;     // the prompt
  bool cancelled = false;  // to leave at the end of the step

 private:
  bool is_eos(std::int64_t id) const;
  void show(std::string_view text);
  void send(std::string_view text);

  const LanguageModel& model_;
  GenerationOptions options_;
  std::int64_t capacity_;
  std::vector<std::int64_t> tokens_;
  std::int64_t prompt_tokens_;
  OnText on_text_;
  Sampler sampler_;
  StopStrings stops_;
  std::optional<Detokenizer> text_;
  std::vector<std::int64_t> feed_;
  Generation result_;
  bool done_ = false;
};

}  // namespace graft::llm
