#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graft/llm.h"
#include "llm/logprobs.h"
#include "llm/sampler.h"
#include "llm/stop.h"

namespace graft::llm {

// The state of one sequence: its tokens, sampler, draft, text and stop conditions.
class Sequence {
 public:
  using OnText = std::function<void(std::string_view text)>;

  // `capacity`: of the cache, in tokens. `seed` instead of the options'. The model must outlive the sequence.
  // `row`: of the batch, for its adapter.
  Sequence(const LanguageModel& model, std::vector<std::int64_t> prompt, const GenerationOptions& options,
           std::uint64_t seed, std::int64_t capacity, OnText on_text, const RequestOptions& request = {},
           std::size_t row = 0);
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::vector<std::int64_t>& tokens() const { return tokens_; }  // the prompt and the new ones
  // By which cached ones are compared: tokens, and of pictures numbers that differ by what is seen.
  const std::vector<std::int64_t>& keys() const { return images_ ? keys_ : tokens_; }
  // Of the prompt, from the beginning on; null: none.
  void set_images(std::shared_ptr<const PreparedImages> images);
  const std::shared_ptr<const PreparedImages>& images() const { return images_; }
  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  bool done() const { return done_; }
  Generation& result() { return result_; }
  Logprobs& logprobs() { return logprobs_; }
  Logprobs& prompt_logprobs() { return prompt_logprobs_; }
  bool wants_prompt_logprobs() const { return prompt_logprobs_.wanted(); }
  const Adapter* adapter() const { return adapter_.get(); }
  // Differs by adapter too: keys and values of one are of no use to another.
  std::uint64_t cache_salt() const { return cache_salt_; }
  std::int64_t priority() const { return priority_; }
  std::uint64_t caller() const { return caller_; }
  // Moves the keys out, to remember what the cache holds after the end.
  std::vector<std::int64_t> release_keys() { return std::move(images_ ? keys_ : tokens_); }

  // The input of the next run: the last token and a draft of the next ones; empty when done.
  const std::vector<std::int64_t>& next_feed();

  // Of a run that read the prompt's tokens from `first` on, with the logits that follow each [n, vocabulary]: adds the
  // log-probabilities of the tokens after them.
  void take_prompt(std::size_t first, std::span<const float> logits);
  // Takes the next token from these logits and returns it.
  std::int64_t take(std::span<float> logits);
  // After a run of next_feed(), with the row's logits [width, vocabulary]: takes one token and those of the draft that
  // were right. Returns how many tokens of the feed belong to the sequence; the rest must leave the cache.
  std::size_t take_fed(std::span<float> logits);

  void end(FinishReason reason);

  std::int64_t reused = 0;  // tokens of the prompt that were in the cache
  bool reading = true;      // the prompt
  bool cancelled = false;   // ends after the current step

 private:
  bool has_text(std::int64_t id) const;
  bool is_eos(std::int64_t id) const;
  void show(std::string_view text);
  void send(std::string_view text);

  const LanguageModel& model_;
  GenerationOptions options_;
  std::int64_t capacity_;
  std::vector<std::int64_t> tokens_;
  std::int64_t prompt_tokens_;
  std::shared_ptr<const PreparedImages> images_;
  std::vector<std::int64_t> keys_;  // where there are pictures
  OnText on_text_;
  Sampler sampler_;
  Logprobs logprobs_, prompt_logprobs_;
  std::vector<float> model_logits_;  // a copy, where the sampler changes them and log-probabilities are wanted
  std::shared_ptr<const Adapter> adapter_;
  std::uint64_t cache_salt_;
  std::int64_t priority_;
  std::uint64_t caller_;
  std::shared_ptr<TokenMask> mask_;
  StopStrings stops_;
  std::optional<Detokenizer> text_;
  std::vector<std::int64_t> feed_;
  Generation result_;
  bool done_ = false;
};

}  // namespace graft::llm
