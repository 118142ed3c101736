#include "llm/row.h"

#include <algorithm>

#include "base/check.h"
#include "llm/lookup.h"

namespace graft::llm {
namespace {

using Tokens = Decoder::Tokens;

// A token's text can depend on those before it: a word's leading space is dropped only at the beginning of a text.
constexpr std::size_t kTokensBefore = 16;

}  // namespace

void check_prompt(std::span<const std::int64_t> prompt, std::int64_t capacity, std::int64_t vocabulary) {
  GRAFT_CHECK(InvalidArgument, !prompt.empty(), "a prompt has no tokens");
  GRAFT_CHECK(InvalidArgument, std::ssize(prompt) <= capacity, "the prompt has ", prompt.size(),
              " tokens, the context has room for ", capacity);
  for (const std::int64_t id : prompt)
    GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "token ", id,
                " of the prompt is not in the vocabulary of ", vocabulary, " tokens");
}

void check_options(const GenerationOptions& options, std::int64_t capacity) {
  check(options);
  GRAFT_CHECK(InvalidArgument, options.prompt_lookup_num_tokens < capacity, "prompt_lookup_num_tokens is ",
              options.prompt_lookup_num_tokens, ", the context ", capacity);
}

std::int64_t common_prefix(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

Row::Row(const LanguageModel& model, const GenerationOptions& options, std::size_t index, std::int64_t capacity,
         std::vector<std::int64_t>& sequence, const TextGenerator::OnText& on_text)
    : model_(model),
      options_(options),
      index_(index),
      capacity_(capacity),
      sequence_(sequence),
      on_text_(on_text),
      sampler_(options, model.info().vocab_size, options.seed + index),
      stops_(options.stop_strings) {
  const std::int64_t most = std::min(options.max_new_tokens, capacity + 1);
  result_.tokens.reserve(static_cast<std::size_t>(most));
  sequence_.reserve(sequence_.size() + static_cast<std::size_t>(most));
  feed_.reserve(static_cast<std::size_t>(options.prompt_lookup_num_tokens) + 1);
  sampler_.see(sequence_);
  if (!model.has_tokenizer()) return;
  text_.emplace(model.tokenizer(), options.skip_special_tokens);
  for (const std::int64_t id : Tokens(sequence_).last(std::min(kTokensBefore, sequence_.size())))
    if (id < model.tokenizer()->size()) text_->add(id);
}

const std::vector<std::int64_t>& Row::next_feed() {
  feed_.clear();
  if (done_) return feed_;
  const std::int64_t room =
      std::min(capacity_ - std::ssize(sequence_), options_.max_new_tokens - std::ssize(result_.tokens) - 1);
  const std::int64_t most = std::min(room, options_.prompt_lookup_num_tokens);
  lookup_draft(sequence_, options_.max_matching_ngram_size, most, feed_);
  feed_.insert(feed_.begin(), sequence_.back());
  return feed_;
}

std::int64_t Row::take(std::span<float> logits) {
  const std::int64_t id = sampler_.next(logits);
  result_.tokens.push_back(id);
  sequence_.push_back(id);
  sampler_.see({&id, 1});
  // A model may have more ids than its tokenizer.
  if (text_ && id < model_.tokenizer()->size()) show(text_->add(id));
  if (stops_.stopped()) {
    end(FinishReason::stop_string);
  } else if (is_eos(id)) {
    end(FinishReason::eos);
  } else if (std::ssize(result_.tokens) >= options_.max_new_tokens) {
    end(FinishReason::length);
  } else if (std::ssize(sequence_) > capacity_) {
    end(FinishReason::context);
  }
  return id;
}

std::size_t Row::take_fed(std::span<float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.info().vocab_size);
  const std::size_t width = logits.size() / vocabulary, count = feed_.size();
  std::size_t right = 1;
  for (;; ++right) {
    const std::int64_t id = take(logits.subspan((width - count + right - 1) * vocabulary, vocabulary));
    if (done_ || right == count || id != feed_[right]) return right;
  }
}

void Row::end(FinishReason reason) {
  done_ = true;
  result_.reason = reason;
  if (text_ && !stops_.stopped()) {
    show(text_->finish());
    if (!stops_.stopped()) send(stops_.finish());
  }
}

bool Row::is_eos(std::int64_t id) const {
  if (options_.ignore_eos) return false;
  const auto among = [&](const std::vector<std::int64_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  return among(model_.info().eos_token_ids) || among(options_.eos_token_ids);
}

void Row::show(std::string_view text) {
  if (!text.empty()) send(stops_.add(text));
}

void Row::send(std::string_view text) {
  if (text.empty()) return;
  result_.text += text;
  if (on_text_) on_text_(index_, text);
}

}  // namespace graft::llm
