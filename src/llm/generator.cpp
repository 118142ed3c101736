#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/plant.h"
#include "graft/llm.h"
#include "llm/lookup.h"
#include "llm/sampler.h"
#include "llm/stop.h"

namespace graft {
namespace {

using Clock = std::chrono::steady_clock;
using Tokens = Decoder::Tokens;

// A token's text can depend on those before it: a word's leading space is dropped only at the beginning of a text.
constexpr std::size_t kTokensBefore = 16;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One sequence on its way.
class Row {
 public:
  Row(const LanguageModel& model, const GenerationOptions& options, std::size_t index, std::int64_t capacity,
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

  bool done() const { return done_; }
  Generation& result() { return result_; }

  // What the next run takes: the last token and a draft of those after it; nothing once it is done.
  const std::vector<std::int64_t>& next_feed() {
    feed_.clear();
    if (done_) return feed_;
    const std::int64_t room =
        std::min(capacity_ - std::ssize(sequence_), options_.max_new_tokens - std::ssize(result_.tokens) - 1);
    const std::int64_t most = std::min(room, options_.prompt_lookup_num_tokens);
    llm::lookup_draft(sequence_, options_.max_matching_ngram_size, most, feed_);
    feed_.insert(feed_.begin(), sequence_.back());
    return feed_;
  }
  const std::vector<std::int64_t>& feed() const { return feed_; }

  // Takes the next token from these logits and returns it.
  std::int64_t take(std::span<float> logits) {
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

  void end(FinishReason reason) {
    done_ = true;
    result_.reason = reason;
    if (text_ && !stops_.stopped()) {
      show(text_->finish());
      if (!stops_.stopped()) send(stops_.finish());
    }
  }

 private:
  bool is_eos(std::int64_t id) const {
    if (options_.ignore_eos) return false;
    const auto among = [&](const std::vector<std::int64_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
    return among(model_.info().eos_token_ids) || among(options_.eos_token_ids);
  }
  void show(std::string_view text) {
    if (!text.empty()) send(stops_.add(text));
  }
  void send(std::string_view text) {
    if (text.empty()) return;
    result_.text += text;
    if (on_text_) on_text_(index_, text);
  }

  const LanguageModel& model_;
  const GenerationOptions& options_;
  std::size_t index_;
  std::int64_t capacity_;
  std::vector<std::int64_t>& sequence_;  // prompt and what came
  const TextGenerator::OnText& on_text_;
  llm::Sampler sampler_;
  llm::StopStrings stops_;
  std::optional<Detokenizer> text_;
  std::vector<std::int64_t> feed_;
  Generation result_;
  bool done_ = false;
};

std::int64_t common_prefix(Tokens a, Tokens b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }

}  // namespace

std::string_view name(FinishReason reason) {
  constexpr std::string_view names[] = {"length", "eos", "stop_string", "context", "cancelled"};
  return names[static_cast<std::size_t>(reason)];
}

TextGenerator::TextGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options)
    : model_(std::move(model)), decoder_(model_, options), cached_(static_cast<std::size_t>(options.rows)) {}

std::vector<Generation> TextGenerator::generate(std::span<const std::vector<std::int64_t>> prompts,
                                                const GenerationOptions& options, const OnText& on_text,
                                                const CancelToken* cancel) {
  const auto& encoder = model_->info().encoder;
  if (!encoder || encoder->takes_features) return go_on(prompts, options, on_text, cancel, 0);
  const auto start = Clock::now();
  llm::check(options);
  GRAFT_CHECK(InvalidArgument, !encoder->decoder_start_token_ids.empty(),
              "the model does not say what its decoder begins with (decoder_start_token_id)");
  const std::vector<Tokens> sources(prompts.begin(), prompts.end());
  RunOptions run_options;
  run_options.cancel = cancel;
  decoder_.encode(sources, run_options);
  const std::vector<std::vector<std::int64_t>> begun(prompts.size(), encoder->decoder_start_token_ids);
  return go_on(begun, options, on_text, cancel, seconds_between(start, Clock::now()));
}

std::vector<Generation> TextGenerator::go_on(std::span<const std::vector<std::int64_t>> prompts,
                                             const GenerationOptions& options, const OnText& on_text,
                                             const CancelToken* cancel, double start_seconds) {
  const auto start = Clock::now();
  llm::check(options);
  stats_ = {};
  const std::int64_t capacity = decoder_.capacity(), vocabulary = model_->info().vocab_size;
  const std::int64_t drafts = options.prompt_lookup_num_tokens;
  GRAFT_CHECK(InvalidArgument, drafts < capacity, "prompt_lookup_num_tokens is ", drafts, ", the context ", capacity);
  GRAFT_CHECK(InvalidArgument, !prompts.empty() && prompts.size() <= cached_.size(), "a batch of ", prompts.size(),
              " prompts: the cache has ", cached_.size(), " rows");
  for (const auto& prompt : prompts) {
    GRAFT_CHECK(InvalidArgument, !prompt.empty(), "a prompt has no tokens");
    GRAFT_CHECK(InvalidArgument, std::ssize(prompt) <= capacity, "the prompt has ", prompt.size(),
                " tokens, the context has room for ", capacity);
    for (const std::int64_t id : prompt)
      GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "token ", id,
                  " of the prompt is not in the vocabulary of ", vocabulary, " tokens");
  }
  std::vector<Tokens> feeds;
  for (std::size_t r = 0; r < prompts.size(); ++r) {
    // The last token is computed in any case: its logits are wanted.
    const Tokens held = Tokens(cached_[r]).first(static_cast<std::size_t>(decoder_.length(r)));
    std::int64_t same = std::min(common_prefix(held, prompts[r]), std::ssize(prompts[r]) - 1);
    if (same < std::ssize(held) && same < decoder_.shortest(r)) same = 0;
    decoder_.truncate(r, same);
    cached_[r] = prompts[r];
    feeds.push_back(Tokens(prompts[r]).subspan(static_cast<std::size_t>(same)));
    stats_.prompt_tokens += std::ssize(prompts[r]);
    stats_.reused_tokens += same;
  }
  std::vector<Row> rows;
  rows.reserve(prompts.size());
  for (std::size_t r = 0; r < prompts.size(); ++r)
    rows.emplace_back(*model_, options, r, capacity, cached_[r], on_text);
  RunOptions run_options;
  run_options.cancel = cancel;
  Clock::time_point first = start;
  try {
    std::span<float> logits = decoder_.prefill(feeds, run_options);
    first = Clock::now();
    const auto logits_at = [&](std::size_t place) {
      return logits.subspan(place * static_cast<std::size_t>(vocabulary), static_cast<std::size_t>(vocabulary));
    };
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r].take(logits_at(r));
    while (!std::ranges::all_of(rows, &Row::done)) {
      bool any_draft = false;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        feeds[r] = rows[r].next_feed();
        any_draft |= feeds[r].size() > 1;
      }
      const std::int64_t width = any_draft ? drafts + 1 : 1;
      logits = decoder_.run(feeds, width, width, run_options);
      ++stats_.decode_runs;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::size_t count = feeds[r].size();
        if (count == 0) continue;
        const std::size_t end = (r + 1) * static_cast<std::size_t>(width);
        std::size_t right = 1;  // tokens of the feed that are the sequence's
        for (;; ++right) {
          const std::int64_t id = rows[r].take(logits_at(end - count + right - 1));
          if (rows[r].done() || right == count || id != feeds[r][right]) break;
        }
        stats_.drafted_tokens += static_cast<std::int64_t>(count) - 1;
        stats_.accepted_tokens += static_cast<std::int64_t>(right) - 1;
        if (right < count && !GRAFT_PLANT("rejected-drafts-kept"))
          decoder_.truncate(r, decoder_.length(r) - static_cast<std::int64_t>(count - right));
      }
    }
  } catch (const Cancelled&) {
    if (first == start) first = Clock::now();
    for (Row& row : rows)
      if (!row.done()) row.end(FinishReason::cancelled);
  } catch (...) {
    for (std::size_t r = 0; r < rows.size(); ++r) decoder_.truncate(r, 0);
    throw;
  }
  stats_.prefill_seconds = start_seconds + seconds_between(start, first);
  stats_.decode_seconds = seconds_between(first, Clock::now());
  std::vector<Generation> results;
  for (Row& row : rows) {
    stats_.new_tokens += std::ssize(row.result().tokens);
    results.push_back(std::move(row.result()));
  }
  return results;
}

Generation TextGenerator::generate(const std::vector<std::int64_t>& prompt, const GenerationOptions& options,
                                   const OnText& on_text, const CancelToken* cancel) {
  return std::move(generate({&prompt, 1}, options, on_text, cancel)[0]);
}

}  // namespace graft
