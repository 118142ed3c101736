#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "graft/llm.h"
#include "llm/row.h"

namespace graft {
namespace {

using Tokens = Decoder::Tokens;
using llm::Row;

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
  return go_on(begun, options, on_text, cancel, seconds_since(start));
}

std::vector<Generation> TextGenerator::go_on(std::span<const std::vector<std::int64_t>> prompts,
                                             const GenerationOptions& options, const OnText& on_text,
                                             const CancelToken* cancel, double start_seconds) {
  const auto start = Clock::now();
  stats_ = {};
  const std::int64_t capacity = decoder_.capacity(), vocabulary = model_->info().vocab_size;
  const std::int64_t drafts = options.prompt_lookup_num_tokens;
  llm::check_options(options, capacity);
  GRAFT_CHECK(InvalidArgument, !prompts.empty() && prompts.size() <= cached_.size(), "a batch of ", prompts.size(),
              " prompts: the cache has ", cached_.size(), " rows");
  for (const auto& prompt : prompts) llm::check_prompt(prompt, capacity, vocabulary);
  std::vector<Tokens> feeds;
  for (std::size_t r = 0; r < prompts.size(); ++r) {
    // The last token is computed in any case: its logits are wanted.
    const Tokens held = Tokens(cached_[r]).first(static_cast<std::size_t>(decoder_.length(r)));
    std::int64_t same = std::min(llm::common_prefix(held, prompts[r]), std::ssize(prompts[r]) - 1);
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
        const std::size_t places = static_cast<std::size_t>(width * vocabulary);
        const std::size_t right = rows[r].take_fed(logits.subspan(r * places, places));
        stats_.drafted_tokens += static_cast<std::int64_t>(count) - 1;
        stats_.accepted_tokens += static_cast<std::int64_t>(right) - 1;
        if (right < count) decoder_.truncate(r, decoder_.length(r) - static_cast<std::int64_t>(count - right));
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
  stats_.decode_seconds = seconds_since(first);
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
