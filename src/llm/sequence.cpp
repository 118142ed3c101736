#include "llm/sequence.h"

#include <algorithm>

#include "base/check.h"
#include "base/rethrow.h"
#include "llm/images.h"
#include "llm/lookup.h"

namespace graft::llm {
namespace {

using Tokens = Decoder::Tokens;

// A token's text can depend on those before it: a word's leading space is dropped only at the start of a decoded
// string.
constexpr std::size_t kTokensBefore = 16;

// One number of two, by the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

std::uint64_t salted(std::uint64_t salt, const Adapter* adapter) {
  return adapter == nullptr ? salt : mixed(salt + 0x9e3779b97f4a7c15 * adapter->id());
}

}  // namespace

Sequence::Sequence(const LanguageModel& model, std::vector<std::int64_t> prompt, const GenerationOptions& options,
                   std::uint64_t seed, std::int64_t capacity, OnText on_text, const RequestOptions& request,
                   std::size_t row)
    : model_(model),
      options_(options),
      capacity_(capacity),
      tokens_(std::move(prompt)),
      prompt_tokens_(std::ssize(tokens_)),
      on_text_(std::move(on_text)),
      sampler_(options, model.info().vocab_size, seed, request),
      adapter_(options.adapters.empty() ? nullptr : options.adapters[options.adapters.size() == 1 ? 0 : row]),
      cache_salt_(salted(request.cache_salt, adapter_.get())),
      priority_(request.priority),
      caller_(request.caller),
      mask_(request.mask),
      stops_(options.stop_strings) {
  const std::int64_t most = std::min(options.max_new_tokens, capacity + 1);
  result_.tokens.reserve(static_cast<std::size_t>(most));
  tokens_.reserve(tokens_.size() + static_cast<std::size_t>(most));
  feed_.reserve(static_cast<std::size_t>(options.prompt_lookup_num_tokens) + 1);
  sampler_.see(tokens_);
  if (request.logprobs) {
    logprobs_ = Logprobs(*request.logprobs, static_cast<std::size_t>(most));
    if (sampler_.changes_logits()) model_logits_.resize(static_cast<std::size_t>(model.info().vocab_size));
    if (request.prompt_logprobs) prompt_logprobs_ = Logprobs(*request.logprobs, tokens_.size() - 1);
  }
  if (!model.has_tokenizer()) return;
  text_.emplace(model.tokenizer(), options.skip_special_tokens && options.kept_special_token_ids.empty());
  for (const std::int64_t id : Tokens(tokens_).last(std::min(kTokensBefore, tokens_.size())))
    if (has_text(id)) text_->add(id);
}

void Sequence::set_images(std::shared_ptr<const PreparedImages> images) {
  if (images) {
    keys_.reserve(tokens_.capacity());
    keys_ = images->keys;
    // What the first tokens see is of all pictures: beside others nothing of the sequence is of use.
    if (!images->ranges.empty())
      for (std::size_t i = 0; i < images->digest.size(); i += 8) {
        std::uint64_t part = 0;
        for (std::size_t b = 0; b < 8; ++b) part = part << 8 | images->digest[i + b];
        cache_salt_ = mixed(cache_salt_ + part);
      }
  }
  images_ = std::move(images);
}

bool Sequence::has_text(std::int64_t id) const {
  if (id >= model_.tokenizer()->size()) return false;  // a model may have more ids than its tokenizer
  const auto& kept = options_.kept_special_token_ids;
  return kept.empty() || !options_.skip_special_tokens || !model_.tokenizer()->is_special(id) ||
         std::ranges::find(kept, id) != kept.end();
}

const std::vector<std::int64_t>& Sequence::next_feed() {
  feed_.clear();
  if (done_) return feed_;
  const std::int64_t room =
      std::min(capacity_ - std::ssize(tokens_), options_.max_new_tokens - std::ssize(result_.tokens) - 1);
  const std::int64_t most = std::min(room, options_.prompt_lookup_num_tokens);
  lookup_draft(tokens_, options_.max_matching_ngram_size, most, feed_);
  feed_.insert(feed_.begin(), tokens_.back());
  return feed_;
}

void Sequence::take_prompt(std::size_t first, std::span<const float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.info().vocab_size);
  const auto prompt = static_cast<std::size_t>(prompt_tokens_);
  for (std::size_t i = 0; i * vocabulary < logits.size() && first + i + 1 < prompt; ++i)
    prompt_logprobs_.add(logits.subspan(i * vocabulary, vocabulary), tokens_[first + i + 1]);
}

std::int64_t Sequence::take(std::span<float> logits) {
  if (!model_logits_.empty()) std::ranges::copy(logits, model_logits_.begin());
  const std::int64_t id = sampler_.next(logits);
  if (mask_) call_back([&] { mask_->accept(id); });
  if (logprobs_.wanted()) logprobs_.add(model_logits_.empty() ? logits : std::span<float>(model_logits_), id);
  result_.tokens.push_back(id);
  tokens_.push_back(id);
  if (images_) keys_.push_back(id);
  sampler_.see({&id, 1});
  sampler_.count_generated(id);
  if (text_ && has_text(id)) show(text_->add(id));
  if (stops_.stopped()) {
    end(FinishReason::stop_string);
  } else if (is_eos(id)) {
    end(FinishReason::eos);
  } else if (mask_ && call_back([&] { return mask_->done(); })) {
    end(FinishReason::complete);
  } else if (std::ssize(result_.tokens) >= options_.max_new_tokens) {
    end(FinishReason::length);
  } else if (std::ssize(tokens_) > capacity_) {
    end(FinishReason::context);
  }
  return id;
}

std::size_t Sequence::take_fed(std::span<float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.info().vocab_size);
  const std::size_t width = logits.size() / vocabulary, count = feed_.size();
  std::size_t right = 1;
  for (;; ++right) {
    const std::int64_t id = take(logits.subspan((width - count + right - 1) * vocabulary, vocabulary));
    if (done_ || right == count || id != feed_[right]) return right;
  }
}

void Sequence::end(FinishReason reason) {
  done_ = true;
  result_.reason = reason;
  if (text_ && !stops_.stopped()) {
    show(text_->finish());
    if (!stops_.stopped()) send(stops_.finish());
  }
}

bool Sequence::is_eos(std::int64_t id) const {
  if (options_.ignore_eos) return false;
  const auto among = [&](const std::vector<std::int64_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  return among(model_.info().eos_token_ids) || among(options_.eos_token_ids);
}

void Sequence::show(std::string_view text) {
  if (!text.empty()) send(stops_.add(text));
}

void Sequence::send(std::string_view text) {
  if (text.empty()) return;
  result_.text += text;
  if (on_text_) call_back([&] { on_text_(text); });
}

}  // namespace graft::llm
