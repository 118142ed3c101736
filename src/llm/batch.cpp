#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "graft/llm.h"
#include "llm/row.h"

namespace graft {
namespace {

using Tokens = Decoder::Tokens;

constexpr std::int64_t kSmallestWidth = 16;  // of a run of a prompt: fewer tokens hardly take less time

}  // namespace

struct BatchGenerator::Request {
  Id id = 0;
  GenerationOptions options;
  TextGenerator::OnText show;
  std::vector<std::int64_t> sequence;  // the prompt and what came
  std::int64_t prompt = 0;             // tokens of it
  std::int64_t row = -1;               // of the cache
  std::optional<llm::Row> text;
  bool reading = true;  // the prompt
  bool cancelled = false;
};

BatchGenerator::BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options)
    : model_(std::move(model)), decoder_(model_, options) {
  GRAFT_CHECK(Unsupported, !model_->info().encoder,
              "BatchGenerator runs no model with an encoder: ", model_->info().architecture);
  const auto rows = static_cast<std::size_t>(decoder_.options().rows);
  rows_.resize(rows);
  cached_.resize(rows);
  sequences_.reserve(rows);
  feeds_.reserve(rows);
  const std::int64_t chunk = std::min(decoder_.options().prefill_chunk_size, decoder_.capacity());
  for (std::int64_t width = chunk;; width = (width + 1) / 2) {
    widths_.push_back(width);
    if (width <= kSmallestWidth) break;
  }
  std::ranges::reverse(widths_);
  for (std::int64_t batch = 1; batch < decoder_.options().rows; batch *= 2) batches_.push_back(batch);
  batches_.push_back(decoder_.options().rows);
}

BatchGenerator::~BatchGenerator() = default;

std::size_t BatchGenerator::running() const {
  return static_cast<std::size_t>(std::ranges::count_if(rows_, [](const auto& request) { return request != nullptr; }));
}

void BatchGenerator::prepare(std::int64_t prompt_lookup_num_tokens) {
  GRAFT_CHECK(InvalidArgument, prompt_lookup_num_tokens >= 0 && prompt_lookup_num_tokens < decoder_.capacity(),
              "prompt_lookup_num_tokens is ", prompt_lookup_num_tokens, ", the context ", decoder_.capacity());
  for (const std::int64_t width : widths_) decoder_.prepare(1, width, 1);
  drafts_ = std::max(drafts_, prompt_lookup_num_tokens);
  for (const std::int64_t batch : batches_) {
    decoder_.prepare(batch, 1, 1);
    const std::int64_t width = drafts_ + 1;
    if (width > 1) decoder_.prepare(batch, width, width);
  }
}

BatchGenerator::Id BatchGenerator::submit(std::vector<std::int64_t> prompt, const GenerationOptions& options,
                                          OnText on_text) {
  llm::check_options(options, decoder_.capacity());
  llm::check_prompt(prompt, decoder_.capacity(), model_->info().vocab_size);
  auto request = std::make_unique<Request>();
  request->options = options;
  if (on_text) request->show = [on_text = std::move(on_text)](std::size_t, std::string_view text) { on_text(text); };
  request->prompt = std::ssize(prompt);
  request->sequence = std::move(prompt);
  request->text.emplace(*model_, request->options, 0, decoder_.capacity(), request->sequence, request->show);
  request->id = next_;
  drafts_ = std::max(drafts_, options.prompt_lookup_num_tokens);
  waiting_.push_back(std::move(request));
  return next_++;
}

void BatchGenerator::join() {
  std::size_t joined = 0;
  for (; joined < waiting_.size(); ++joined) {
    const Tokens prompt = waiting_[joined]->sequence;
    std::int64_t best = -1, most = -1;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r]) continue;
      const Tokens held = Tokens(cached_[r]).first(static_cast<std::size_t>(decoder_.length(r)));
      // The last token is computed in any case: its logits are wanted.
      std::int64_t same = std::min(llm::common_prefix(held, prompt), std::ssize(prompt) - 1);
      if (same < std::ssize(held) && same < decoder_.shortest(r)) same = 0;
      if (same > most) {
        most = same;
        best = static_cast<std::int64_t>(r);
      }
    }
    if (best < 0) break;
    const auto row = static_cast<std::size_t>(best);
    decoder_.truncate(row, most);
    cached_[row].clear();
    waiting_[joined]->row = best;
    stats_.prompt_tokens += std::ssize(prompt);
    stats_.reused_tokens += most;
    rows_[row] = std::move(waiting_[joined]);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(joined));
}

std::int64_t BatchGenerator::piece(std::int64_t rest) const {
  const auto above = std::ranges::lower_bound(widths_, rest);
  if (above == widths_.end()) return widths_.back();
  // A run is padded up to its width unless two smaller ones compute much less.
  if (above == widths_.begin() || rest > *above * 3 / 4) return *above;
  return *(above - 1);
}

template <typename Take>
void BatchGenerator::guarded(Request& request, const Take& take) {
  try {
    take();
  } catch (...) {
    if (!thrown_) thrown_ = std::current_exception();
    request.cancelled = true;
  }
}

void BatchGenerator::read_prompt(Request& request, const RunOptions& options) {
  const auto start = Clock::now();
  const std::int64_t done = decoder_.length(static_cast<std::size_t>(request.row)), rest = request.prompt - done;
  const std::int64_t width = piece(rest), count = std::min(rest, width);
  const Tokens feed = Tokens(request.sequence).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
  const std::span<float> logits = decoder_.run({&request.row, 1}, {&feed, 1}, width, 1, options);
  stats_.prefill_seconds += seconds_since(start);
  if (count < rest) return;
  request.reading = false;
  ++stats_.new_tokens;
  guarded(request, [&] { request.text->take(logits); });
}

void BatchGenerator::go_on(const RunOptions& options) {
  sequences_.clear();
  feeds_.clear();
  bool any_draft = false;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (!rows_[r] || rows_[r]->reading || rows_[r]->cancelled || rows_[r]->text->done()) continue;
    sequences_.push_back(static_cast<std::int64_t>(r));
    feeds_.emplace_back(rows_[r]->text->next_feed());
    any_draft |= feeds_.back().size() > 1;
  }
  const std::size_t count = sequences_.size();
  if (count == 0) return;
  const auto start = Clock::now();
  // Up to the next size of a batch with rows that get no token.
  const auto batch = static_cast<std::size_t>(*std::ranges::lower_bound(batches_, static_cast<std::int64_t>(count)));
  for (std::int64_t r = 0; sequences_.size() < batch; ++r)
    if (std::ranges::find(sequences_, r) == sequences_.end()) {
      sequences_.push_back(r);
      feeds_.emplace_back();
    }
  const std::int64_t width = any_draft ? drafts_ + 1 : 1;
  const std::span<float> logits = decoder_.run(sequences_, feeds_, width, width, options);
  ++stats_.decode_runs;
  const auto places = static_cast<std::size_t>(width * model_->info().vocab_size);
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = *rows_[static_cast<std::size_t>(sequences_[i])];
    const std::size_t before = request.sequence.size(), fed = feeds_[i].size();
    std::size_t right = fed;
    guarded(request, [&] { right = request.text->take_fed(logits.subspan(i * places, places)); });
    stats_.new_tokens += static_cast<std::int64_t>(request.sequence.size() - before);
    stats_.drafted_tokens += static_cast<std::int64_t>(fed) - 1;
    stats_.accepted_tokens += static_cast<std::int64_t>(right) - 1;
    const auto row = static_cast<std::size_t>(sequences_[i]);
    // After an exception the sequence does not say what of the draft was right.
    if (request.cancelled) right = 1;
    if (right < fed) decoder_.truncate(row, decoder_.length(row) - static_cast<std::int64_t>(fed - right));
  }
  stats_.decode_seconds += seconds_since(start);
}

void BatchGenerator::leave(std::size_t row, FinishReason reason) {
  Request& request = *rows_[row];
  if (!request.text->done()) guarded(request, [&] { request.text->end(reason); });
  ended_.emplace_back(request.id, std::move(request.text->result()));
  cached_[row] = std::move(request.sequence);
  rows_[row].reset();
}

void BatchGenerator::sweep() {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    if (rows_[r] && (rows_[r]->cancelled || rows_[r]->text->done())) leave(r, FinishReason::cancelled);
  for (std::size_t w = 0; w < waiting_.size();) {
    if (!waiting_[w]->cancelled) {
      ++w;
      continue;
    }
    const std::unique_ptr<Request> request = std::move(waiting_[w]);  // on_text may submit another one
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(w));
    guarded(*request, [&] { request->text->end(FinishReason::cancelled); });
    ended_.emplace_back(request->id, std::move(request->text->result()));
  }
}

bool BatchGenerator::step(const RunOptions& options) {
  GRAFT_CHECK(InvalidArgument, !in_step_, "step() was called from on_text");
  GRAFT_CHECK(InvalidArgument, options.kv_rows.empty(), "kv_rows are the generator's own");
  struct Guard {
    bool& in_step;
    explicit Guard(bool& flag) : in_step(flag) { in_step = true; }
    ~Guard() { in_step = false; }
  };
  {
    const Guard guard(in_step_);
    join();
    Request* oldest = nullptr;
    for (const auto& request : rows_)
      if (request && request->reading && (!oldest || request->id < oldest->id)) oldest = request.get();
    if (oldest) read_prompt(*oldest, options);
    go_on(options);
    sweep();
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return !waiting_.empty() || running() > 0;
}

bool BatchGenerator::cancel(Id id) {
  for (auto* requests : {&waiting_, &rows_})
    for (const auto& request : *requests) {
      if (!request || request->id != id || request->text->done()) continue;
      request->cancelled = true;
      if (!in_step_) sweep();
      if (thrown_ && !in_step_) std::rethrow_exception(std::exchange(thrown_, nullptr));
      return true;
    }
  return false;
}

std::optional<Generation> BatchGenerator::take(Id id) {
  const auto found = std::ranges::find(ended_, id, &std::pair<Id, Generation>::first);
  if (found != ended_.end()) {
    Generation result = std::move(found->second);
    ended_.erase(found);
    return result;
  }
  for (const auto* requests : {&waiting_, &rows_})
    for (const auto& request : *requests)
      if (request && request->id == id) return {};
  throw NotFound(str("there is no request ", id, ", or its text was taken"));
}

}  // namespace graft
