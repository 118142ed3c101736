#include "llm/loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "load/adapter_impl.h"
#include "load/program_impl.h"

namespace graft::llm {
namespace {

using Tokens = Decoder::Tokens;

}  // namespace

Loop::Loop(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, CallbackErrors errors)
    : decoder_(std::move(model), options), errors_(errors) {
  const auto rows = static_cast<std::size_t>(decoder().options.rows);
  rows_.resize(rows);
  cached_.resize(rows);
  cached_salts_.resize(rows);
  run_rows_.reserve(rows);
  feeds_.reserve(rows);
  run_adapters_.reserve(rows);
}

void Loop::check_adapters(const GenerationOptions& options, std::size_t batch) const {
  const auto& adapters = options.adapters;
  if (std::ranges::none_of(adapters, [](const auto& adapter) { return adapter != nullptr; })) return;
  GRAFT_CHECK(InvalidArgument, adapters.size() == 1 || adapters.size() == batch, "a batch of ", batch, " prompts got ",
              adapters.size(), " adapters");
  GRAFT_CHECK(Unsupported, !model().info().stage, "a model in stages runs without adapters");
  const ProgramImpl& program = Internal::of(*model().program());
  for (const auto& adapter : adapters)
    GRAFT_CHECK(InvalidArgument, !adapter || (program.adapters && AdapterAccess::is_of(*adapter, *program.adapters)),
                "an adapter is of another program than ", program.source);
}

RunOptions Loop::with_adapters(const RunOptions& options, std::span<const std::int64_t> rows) {
  run_adapters_.clear();
  bool any = false;
  for (const std::int64_t row : rows) {
    const auto& sequence = rows_[static_cast<std::size_t>(row)];
    run_adapters_.push_back(sequence ? sequence->adapter() : nullptr);
    any |= run_adapters_.back() != nullptr;
  }
  RunOptions out = options;
  if (any) out.adapters = run_adapters_;
  return out;
}

void Loop::check_drafts(std::int64_t tokens) const {
  GRAFT_CHECK(Unsupported, tokens == 0 || !model().info().recurrent, "prompt_lookup_num_tokens is ", tokens,
              "; a model with recurrent states cannot take drafts back");
}

void Loop::check(std::span<const std::int64_t> prompt, const GenerationOptions& options, std::size_t batch,
                 const PreparedImages* images) const {
  const std::int64_t capacity = decoder().options.length, vocabulary = input_ids(model().info());
  llm::check(options);
  check_adapters(options, batch);
  check_drafts(options.prompt_lookup_num_tokens);
  GRAFT_CHECK(InvalidArgument, options.prompt_lookup_num_tokens < capacity, "prompt_lookup_num_tokens is ",
              options.prompt_lookup_num_tokens, ", the context ", capacity);
  GRAFT_CHECK(InvalidArgument, !prompt.empty(), "a prompt has no tokens");
  GRAFT_CHECK(InvalidArgument, std::ssize(prompt) <= capacity, "the prompt has ", prompt.size(),
              " tokens, the context has room for ", capacity);
  for (const std::int64_t id : prompt)
    GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "token ", id,
                " of the prompt is not in the vocabulary of ", vocabulary, " tokens");
  check_placeholders(model().info(), prompt, images);
  if (images != nullptr) decoder().check_room(*images);
}

std::int64_t Loop::reusable(std::size_t row, const Sequence& sequence) {
  const auto prompt = Tokens(sequence.keys()).first(static_cast<std::size_t>(sequence.prompt_tokens()));
  if (std::exchange(decoder().ran_by_user, false))
    for (auto& tokens : cached_) tokens.clear();
  if (cached_salts_[row] != sequence.cache_salt() || std::ssize(cached_[row]) < decoder().length(row)) return 0;
  const Tokens held = Tokens(cached_[row]).first(static_cast<std::size_t>(decoder().length(row)));
  const auto common = std::ranges::mismatch(held, prompt).in1 - held.begin();
  const std::int64_t same = std::min<std::int64_t>(common, std::ssize(prompt) - 1);
  return same < std::ssize(held) && same < decoder().shortest(row) ? 0 : same;
}

std::int64_t Loop::restore(PrefixCache& cache, std::size_t row, const Sequence& sequence, std::int64_t reusable) {
  // Never the whole prompt, as above.
  const auto prompt = Tokens(sequence.keys()).first(static_cast<std::size_t>(sequence.prompt_tokens()) - 1);
  const std::int64_t found = cache.find(prompt, sequence.cache_salt());
  if (found <= reusable) return reusable;
  std::int64_t from = reusable / PrefixCache::kBlock * PrefixCache::kBlock;
  if (from < decoder().shortest(row)) from = 0;
  cached_[row].clear();
  decoder().truncate(row, from);
  const auto prefix = prompt.first(static_cast<std::size_t>(found));
  decoder().set_length(row, cache.restore(prefix, sequence.cache_salt(), from, static_cast<std::int64_t>(row)));
  return decoder().length(row);
}

void Loop::begin(std::unique_ptr<Sequence>&& sequence, std::size_t row, std::int64_t reused) {
  decoder().truncate(row, reused);
  cached_[row].clear();
  decoder().place_images(row, sequence->images());
  sequence->reused = reused;
  stats.prompt_tokens += sequence->prompt_tokens();
  stats.reused_tokens += reused;
  rows_[row] = std::move(sequence);
}

void Loop::take_first(Sequence& sequence, std::span<float> logits) {
  sequence.reading = false;
  ++stats.new_tokens;
  guarded(sequence, [&] { sequence.take(logits); });
}

void Loop::read_prompts(const RunOptions& options) {
  const auto start = Clock::now();
  feeds_.clear();
  for (std::size_t r = 0; r < rows_.size() && rows_[r]; ++r)
    feeds_.push_back(Tokens(rows_[r]->tokens()).subspan(static_cast<std::size_t>(decoder().length(r))));
  const std::span<const std::int64_t> all = decoder().first_sequences(feeds_.size());
  const std::span<float> logits = decoder().prefill(feeds_, {}, with_adapters(options, all));
  stats.prefill_seconds += seconds_since(start);
  const auto vocabulary = static_cast<std::size_t>(model().info().vocab_size);
  for (std::size_t r = 0; r < feeds_.size(); ++r) take_first(*rows_[r], logits.subspan(r * vocabulary, vocabulary));
}

void Loop::read_chunk(std::size_t row, std::int64_t width, const RunOptions& options) {
  const auto start = Clock::now();
  Sequence& sequence = *rows_[row];
  const std::int64_t done = decoder().length(row), rest = sequence.prompt_tokens() - done;
  const std::int64_t count = decoder().uncut(row, std::min(rest, width)), sequence_row = static_cast<std::int64_t>(row);
  width = std::max(width, count);
  const Tokens feed =
      Tokens(sequence.tokens()).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
  const bool all = sequence.wants_prompt_logprobs();
  const std::span<float> logits =
      decoder().run({&sequence_row, 1}, {&feed, 1}, width, all ? width : 1, with_adapters(options, {&sequence_row, 1}));
  stats.prefill_seconds += seconds_since(start);
  const auto vocabulary = static_cast<std::size_t>(model().info().vocab_size);
  if (all)
    sequence.take_prompt(static_cast<std::size_t>(done), logits.last(static_cast<std::size_t>(count) * vocabulary));
  if (count == rest) take_first(sequence, logits.last(vocabulary));
}

std::size_t Loop::going() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(rows_, [&](const auto& sequence) { return goes_on(sequence); }));
}

void Loop::step(std::size_t batch, const RunOptions& options) {
  const auto start = Clock::now();
  run_rows_.clear();
  feeds_.clear();
  bool any_draft = false;
  std::size_t idle = batch - going();
  for (std::size_t r = 0; run_rows_.size() < batch; ++r) {
    if (goes_on(rows_[r])) {
      feeds_.emplace_back(rows_[r]->next_feed());
      any_draft |= feeds_.back().size() > 1;
    } else if (idle > 0) {
      feeds_.emplace_back();
      --idle;
    } else {
      continue;
    }
    run_rows_.push_back(static_cast<std::int64_t>(r));
  }
  const std::int64_t width = any_draft ? drafts + 1 : 1;
  const std::span<float> logits = decoder().run(run_rows_, feeds_, width, width, with_adapters(options, run_rows_));
  ++stats.decode_runs;
  const auto of_row = static_cast<std::size_t>(width * model().info().vocab_size);
  for (std::size_t i = 0; i < batch; ++i) {
    const std::size_t fed = feeds_[i].size();
    if (fed == 0) continue;
    const auto row = static_cast<std::size_t>(run_rows_[i]);
    Sequence& sequence = *rows_[row];
    const std::size_t before = sequence.tokens().size();
    std::size_t right = fed;
    guarded(sequence, [&] { right = sequence.take_fed(logits.subspan(i * of_row, of_row)); });
    stats.new_tokens += static_cast<std::int64_t>(sequence.tokens().size() - before);
    stats.drafted_tokens += static_cast<std::int64_t>(fed) - 1;
    stats.accepted_tokens += static_cast<std::int64_t>(right) - 1;
    // After an exception the sequence does not know how much of the draft was right.
    if (sequence.cancelled) right = 1;
    if (right < fed) decoder().truncate(row, decoder().length(row) - static_cast<std::int64_t>(fed - right));
  }
  stats.decode_seconds += seconds_since(start);
}

std::unique_ptr<Sequence> Loop::leave(std::size_t row, FinishReason reason) {
  Sequence& sequence = *rows_[row];
  if (!sequence.done()) guarded(sequence, [&] { sequence.end(reason); });
  cached_[row] = sequence.release_keys();
  cached_salts_[row] = sequence.cache_salt();
  return std::move(rows_[row]);
}

void Loop::clear() noexcept {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (!rows_[r]) continue;
    rows_[r].reset();
    cached_[r].clear();
    try {
      decoder().truncate(r, 0);
    } catch (...) {  // begin() does it again: nothing of the row is reused
    }
  }
}

void Loop::rethrow() {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace graft::llm
