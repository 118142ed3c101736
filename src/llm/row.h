#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graft/llm.h"
#include "llm/sampler.h"
#include "llm/stop.h"

namespace graft::llm {

// Throws InvalidArgument for a prompt that has no tokens, too many, or one outside the vocabulary.
void check_prompt(std::span<const std::int64_t> prompt, std::int64_t capacity, std::int64_t vocabulary);
// Throws InvalidArgument when drafts do not fit the cache, or an option makes no sense.
void check_options(const GenerationOptions& options, std::int64_t capacity);
std::int64_t common_prefix(std::span<const std::int64_t> a, std::span<const std::int64_t> b);

// One sequence on its way: what is fed to the decoder, what its logits make of it, the text, and when it ends. What the
// constructor is given by reference must outlive it.
class Row {
 public:
  // `index`: told to on_text, and the seed is options.seed + index. `sequence` begins as the prompt and grows.
  Row(const LanguageModel& model, const GenerationOptions& options, std::size_t index, std::int64_t capacity,
      std::vector<std::int64_t>& sequence, const TextGenerator::OnText& on_text);

  bool done() const { return done_; }
  Generation& result() { return result_; }

  // What the next run takes: the last token and a draft of those after it; nothing once it is done.
  const std::vector<std::int64_t>& next_feed();
  const std::vector<std::int64_t>& feed() const { return feed_; }

  // Takes the next token from these logits and returns it.
  std::int64_t take(std::span<float> logits);
  // After a run of feed(), with the logits [width, vocabulary] of the row: takes the tokens that they give, one and
  // those of the draft that are right. Returns how many tokens of the feed are the sequence's; the rest must leave the
  // cache.
  std::size_t take_fed(std::span<float> logits);

  void end(FinishReason reason);

 private:
  bool is_eos(std::int64_t id) const;
  void show(std::string_view text);
  void send(std::string_view text);

  const LanguageModel& model_;
  const GenerationOptions& options_;
  std::size_t index_;
  std::int64_t capacity_;
  std::vector<std::int64_t>& sequence_;
  const TextGenerator::OnText& on_text_;
  Sampler sampler_;
  StopStrings stops_;
  std::optional<Detokenizer> text_;
  std::vector<std::int64_t> feed_;
  Generation result_;
  bool done_ = false;
};

}  // namespace graft::llm
