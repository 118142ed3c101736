#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/fair_share.h"
#include "llm/loop.h"
#include "llm/prefix_cache.h"

namespace graft {
namespace {

constexpr std::int64_t kSmallestWidth = 16;                    // of a prompt's chunk: fewer tokens hardly save time
constexpr std::int64_t kPromptLogits = std::int64_t{1} << 24;  // of one run: 64 MiB
constexpr const char* kTaken = ", or its text was taken";
constexpr const char* kWhat = "BatchGenerator";

}  // namespace

// Schedules the loop: the queue of requests, which prompt is prefilled next and in runs of which width, and the
// results.
class BatchGenerator::Impl {
 public:
  Impl(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, const PrefixCacheOptions& prefixes);

  void prepare(std::int64_t prompt_lookup_num_tokens, bool prompt_logprobs);
  Id submit(ImagePrompt prompt, const GenerationOptions& options, const RequestOptions& request, OnText on_text);
  bool step(const RunOptions& options);
  bool cancel(Id id);
  std::optional<Generation> take(Id id);
  RequestState state(Id id);
  std::size_t running() const;

  llm::Loop loop;
  std::size_t waiting() const { return waiting_.size(); }
  PrefixCacheStats prefix_cache() const { return prefixes_ ? prefixes_->stats() : PrefixCacheStats(); }

 private:
  struct Waiting {
    Id id = 0;
    std::unique_ptr<llm::Sequence> sequence;
  };
  struct Ended {
    Id id = 0;
    Generation result;
    llm::Logprobs logprobs, prompt_logprobs;
    std::int64_t reused = 0;
  };
  void join();
  // One that has not ended; null for an unknown one.
  llm::Sequence* find(Id id);
  void keep(Id id, llm::Sequence& sequence);
  // How many of `widths_` prompts with log-probabilities are read in: a run gives the logits of all its tokens.
  std::size_t widths_with_logits() const;
  // Whether a sequence gets a row, or has its prompt read, before another one.
  bool is_before(const llm::Sequence& a, Id id_of_a, const llm::Sequence& b, Id id_of_b) const;
  // The row whose prompt is read next; as many as there are rows: all are read.
  std::size_t next_unread() const;
  void read(std::size_t row, const RunOptions& options);
  void go_on(const RunOptions& options);
  // Keeps the blocks that the rows have completed.
  void store_prefixes();
  // Counts what the last step computed.
  void charge();
  // Removes finished requests until none is left: the last callback of one may cancel others.
  void sweep();
  bool sweep_once();
  std::int64_t width_for(std::int64_t rest, std::span<const std::int64_t> widths) const;

  std::vector<std::int64_t> widths_, batches_;  // widths of prompt runs, and row counts of steps; ascending
  std::deque<Waiting> waiting_;
  std::vector<Id> row_ids_;                     // of the sequences that are or were last in the rows; 0: none
  std::unique_ptr<llm::PrefixCache> prefixes_;  // null: none
  std::vector<std::int64_t> stored_;            // by row: tokens of its sequence that were kept, or could not be
  std::vector<std::int64_t> charged_;           // by row: tokens of its sequence that its caller has been charged
  llm::FairShare share_;
  std::vector<Ended> ended_;
  bool read_last_ = false;  // the last step read a prompt
  Id next_ = 1;
};

BatchGenerator::Impl::Impl(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options,
                           const PrefixCacheOptions& prefixes)
    : loop(std::move(model), options, llm::Loop::CallbackErrors::end_their_sequence) {
  GRAFT_CHECK(Unsupported, !loop.model().info().encoder,
              "BatchGenerator runs no model with an encoder: ", loop.model().info().architecture);
  GRAFT_CHECK(Unsupported, prefixes.max_bytes == 0 || !loop.model().info().stage,
              "a model in stages has no prefix cache: each stage has the keys and values of its layers");
  const DecoderOptions& decoder = loop.decoder().options;
  row_ids_.resize(loop.rows().size());
  stored_.resize(loop.rows().size());
  charged_.resize(loop.rows().size());
  if (prefixes.max_bytes > 0) prefixes_ = std::make_unique<llm::PrefixCache>(loop.decoder().session, prefixes);
  if (decoder.buckets.empty()) {
    for (std::int64_t width = std::min(decoder.prefill_chunk_size, decoder.length);; width = (width + 1) / 2) {
      widths_.push_back(width);
      if (width <= kSmallestWidth) break;
    }
    std::ranges::reverse(widths_);
  } else {
    widths_ = decoder.buckets;
  }
  for (std::int64_t batch = 1; batch < decoder.rows; batch *= 2) batches_.push_back(batch);
  batches_.push_back(decoder.rows);
}

std::size_t BatchGenerator::Impl::running() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(loop.rows(), [](const auto& sequence) { return sequence != nullptr; }));
}

void BatchGenerator::Impl::prepare(std::int64_t prompt_lookup_num_tokens, bool prompt_logprobs) {
  const llm::Use use(loop.decoder().in_use, kWhat, "prepare()");
  const std::int64_t capacity = loop.decoder().options.length;
  GRAFT_CHECK(InvalidArgument, prompt_lookup_num_tokens >= 0 && prompt_lookup_num_tokens < capacity,
              "prompt_lookup_num_tokens is ", prompt_lookup_num_tokens, ", the context ", capacity);
  for (const std::int64_t width : widths_) loop.decoder().prepare(1, width, 1);
  if (prompt_logprobs)
    for (const std::int64_t width : std::span(widths_).first(widths_with_logits()))
      loop.decoder().prepare(1, width, width);
  loop.check_drafts(prompt_lookup_num_tokens);
  loop.drafts = std::max(loop.drafts, prompt_lookup_num_tokens);
  for (const std::int64_t batch : batches_) {
    loop.decoder().prepare(batch, 1, 1);
    const std::int64_t width = loop.drafts + 1;
    if (width > 1) loop.decoder().prepare(batch, width, width);
  }
}

std::size_t BatchGenerator::Impl::widths_with_logits() const {
  const std::int64_t most = kPromptLogits / loop.model().info().vocab_size;
  return static_cast<std::size_t>(
      std::max<std::ptrdiff_t>(std::ranges::upper_bound(widths_, most) - widths_.begin(), 1));
}

llm::Sequence* BatchGenerator::Impl::find(Id id) {
  for (const Waiting& waiting : waiting_)
    if (waiting.id == id) return waiting.sequence.get();
  for (std::size_t r = 0; r < row_ids_.size(); ++r)
    if (loop.rows()[r] && row_ids_[r] == id) return loop.rows()[r].get();
  return nullptr;
}

void BatchGenerator::Impl::keep(Id id, llm::Sequence& sequence) {
  ended_.push_back({id, std::move(sequence.result()), std::move(sequence.logprobs()),
                    std::move(sequence.prompt_logprobs()), sequence.reused});
}

BatchGenerator::Id BatchGenerator::Impl::submit(ImagePrompt prompt, const GenerationOptions& options,
                                                const RequestOptions& request, OnText on_text) {
  const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "submit()");
  loop.check(prompt.tokens, options, 1, prompt.images.get());
  const std::int64_t vocabulary = loop.model().info().vocab_size;
  GRAFT_CHECK(InvalidArgument,
              !request.prompt_logprobs || std::ranges::all_of(prompt.tokens, [&](auto id) { return id < vocabulary; }),
              "prompt_logprobs of a prompt with pictures: the token of these has no logit");
  // A request that ends must get its place.
  if (const std::size_t most = ended_.size() + waiting_.size() + running() + 1; ended_.capacity() < most)
    ended_.reserve(2 * most);
  auto sequence = std::make_unique<llm::Sequence>(loop.model(), std::move(prompt.tokens), options, options.seed,
                                                  loop.decoder().options.length, std::move(on_text), request);
  sequence->set_images(std::move(prompt.images));
  waiting_.push_back({next_, nullptr});
  try {
    share_.join(request.caller);
  } catch (...) {
    waiting_.pop_back();
    throw;
  }
  waiting_.back().sequence = std::move(sequence);
  loop.drafts = std::max(loop.drafts, options.prompt_lookup_num_tokens);
  return next_++;
}

bool BatchGenerator::Impl::is_before(const llm::Sequence& a, Id id_of_a, const llm::Sequence& b, Id id_of_b) const {
  return std::tuple(a.priority(), share_.tokens(a.caller()), id_of_a) <
         std::tuple(b.priority(), share_.tokens(b.caller()), id_of_b);
}

void BatchGenerator::Impl::charge() {
  for (std::size_t r = 0; r < loop.rows().size(); ++r) {
    const llm::Sequence* sequence = loop.rows()[r].get();
    if (!sequence) continue;
    // A new token is counted when it is drawn, and when it is an input.
    const std::int64_t drawn = std::ssize(sequence->tokens()) - sequence->prompt_tokens();
    const std::int64_t all = loop.decoder().length(r) - sequence->reused + drawn;
    share_.charge(sequence->caller(), std::max<std::int64_t>(all - charged_[r], 0));
    charged_[r] = all;
  }
}

// Gives the free rows to the next requests, each the row that holds the longest prefix of its prompt; of equal ones
// that which was taken longest ago, so that other prefixes stay.
void BatchGenerator::Impl::join() {
  while (!waiting_.empty() && running() < loop.rows().size()) {
    auto next = waiting_.begin();
    for (auto other = std::next(next); other != waiting_.end(); ++other)
      if (is_before(*other->sequence, other->id, *next->sequence, next->id)) next = other;
    const llm::Sequence& first = *next->sequence;
    std::size_t best = loop.rows().size();
    std::int64_t most = -1;
    for (std::size_t r = 0; r < loop.rows().size(); ++r) {
      if (loop.rows()[r]) continue;
      // The logits of a prompt that is in the cache are not known.
      const std::int64_t same = first.wants_prompt_logprobs() ? 0 : loop.reusable(r, first);
      if (same > most || (same == most && row_ids_[r] < row_ids_[best])) {
        most = same;
        best = r;
      }
    }
    if (prefixes_ && !first.wants_prompt_logprobs()) most = loop.restore(*prefixes_, best, first, most);
    row_ids_[best] = next->id;
    stored_[best] = charged_[best] = 0;
    loop.begin(std::move(next->sequence), best, most);
    waiting_.erase(next);
  }
}

std::int64_t BatchGenerator::Impl::width_for(std::int64_t rest, std::span<const std::int64_t> widths) const {
  const auto above = std::ranges::lower_bound(widths, rest);
  if (above == widths.end()) return widths.back();
  // A run is padded up to its width unless two smaller ones compute much less.
  if (above == widths.begin() || rest > *above * 3 / 4) return *above;
  return *(above - 1);
}

std::size_t BatchGenerator::Impl::next_unread() const {
  const auto& rows = loop.rows();
  std::size_t next = rows.size();
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r] && rows[r]->reading)
      if (next == rows.size() || is_before(*rows[r], row_ids_[r], *rows[next], row_ids_[next])) next = r;
  return next;
}

void BatchGenerator::Impl::read(std::size_t row, const RunOptions& options) {
  const llm::Sequence& sequence = *loop.rows()[row];
  const std::int64_t rest = sequence.prompt_tokens() - loop.decoder().length(row);
  const bool logits = sequence.wants_prompt_logprobs();
  const auto widths = std::span(widths_).first(logits ? widths_with_logits() : widths_.size());
  loop.read_chunk(row, width_for(rest, widths), options);
}

void BatchGenerator::Impl::go_on(const RunOptions& options) {
  const auto going = static_cast<std::int64_t>(loop.going());
  // Rounded up to the next batch size, so that joining and leaving need no new plan.
  if (going > 0) loop.step(static_cast<std::size_t>(*std::ranges::lower_bound(batches_, going)), options);
}

void BatchGenerator::Impl::store_prefixes() {
  if (!prefixes_) return;
  for (std::size_t r = 0; r < loop.rows().size(); ++r) {
    const llm::Sequence* sequence = loop.rows()[r].get();
    if (!sequence || sequence->cancelled) continue;
    const std::int64_t length = loop.decoder().length(r), whole = length - length % llm::PrefixCache::kBlock;
    if (whole <= stored_[r]) continue;
    const auto tokens = std::span(sequence->keys()).first(static_cast<std::size_t>(whole));
    prefixes_->store(tokens, sequence->cache_salt(), static_cast<std::int64_t>(r));
    stored_[r] = whole;
  }
}

void BatchGenerator::Impl::sweep() {
  while (sweep_once()) {
  }
}

bool BatchGenerator::Impl::sweep_once() {
  bool any = false;
  for (std::size_t r = 0; r < loop.rows().size(); ++r) {
    const llm::Sequence* sequence = loop.rows()[r].get();
    if (!sequence || !(sequence->cancelled || sequence->done())) continue;
    share_.leave(sequence->caller());
    const auto left = loop.leave(r, FinishReason::cancelled);
    keep(row_ids_[r], *left);
    any = true;
  }
  for (std::size_t w = 0; w < waiting_.size();) {
    if (!waiting_[w].sequence->cancelled) {
      ++w;
      continue;
    }
    const Waiting left = std::move(waiting_[w]);  // on_text may submit another one
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(w));
    share_.leave(left.sequence->caller());
    loop.guarded(*left.sequence, [&] { left.sequence->end(FinishReason::cancelled); });
    keep(left.id, *left.sequence);
    any = true;
  }
  return any;
}

bool BatchGenerator::Impl::step(const RunOptions& options) {
  {
    const llm::Use use(loop.decoder().in_use, kWhat, "step()");
    GRAFT_CHECK(InvalidArgument, options.kv_rows.empty(), "kv_rows are the generator's own");
    GRAFT_CHECK(InvalidArgument, options.adapters.empty(), "adapters are those of requests");
    try {
      loop.decoder().connect();  // requests wait where a stage is not back
      join();
      // In turn, so that each token is known as soon as it is computed and a long prompt does not hold up the others.
      const std::size_t unread = next_unread();
      const bool reads = unread < loop.rows().size() && (!read_last_ || loop.going() == 0);
      if (reads)
        read(unread, options);
      else
        go_on(options);
      read_last_ = reads;
    } catch (const Unavailable&) {
      for (const auto& sequence : loop.rows())
        if (sequence) sequence->cancelled = true;
      sweep();
      throw;
    }
    store_prefixes();
    charge();
    sweep();
  }
  loop.rethrow();
  return !waiting_.empty() || running() > 0;
}

bool BatchGenerator::Impl::cancel(Id id) {
  {
    const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "cancel()");
    llm::Sequence* found = find(id);
    if (!found || found->done()) return false;
    found->cancelled = true;
    if (!use.outermost()) return true;
    sweep();
  }
  loop.rethrow();
  return true;
}

std::optional<Generation> BatchGenerator::Impl::take(Id id) {
  const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "take()");
  const auto found = std::ranges::find(ended_, id, &Ended::id);
  if (found != ended_.end()) {
    Generation result = std::move(found->result);
    ended_.erase(found);
    return result;
  }
  GRAFT_CHECK(NotFound, find(id), "there is no request ", id, kTaken);
  return {};
}

RequestState BatchGenerator::Impl::state(Id id) {
  const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "state()");
  const auto state = [](const Generation& result, const llm::Logprobs& logprobs, const llm::Logprobs& of_prompt,
                        std::int64_t reused, std::optional<FinishReason> reason) {
    return RequestState{
        result.tokens, result.text, logprobs.of_tokens(), logprobs.of_top(), of_prompt.of_tokens(), of_prompt.of_top(),
        reused,        reason};
  };
  if (const auto ended = std::ranges::find(ended_, id, &Ended::id); ended != ended_.end())
    return state(ended->result, ended->logprobs, ended->prompt_logprobs, ended->reused, ended->result.reason);
  llm::Sequence* found = find(id);
  GRAFT_CHECK(NotFound, found, "there is no request ", id, kTaken);
  return state(found->result(), found->logprobs(), found->prompt_logprobs(), found->reused, {});
}

BatchGenerator::BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options)
    : BatchGenerator(std::move(model), options, {}) {}
BatchGenerator::BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options,
                               const PrefixCacheOptions& prefix_cache) try
    : impl_(std::make_unique<Impl>(std::move(model), options, prefix_cache)) {
} catch (...) {
  rethrow_typed();
}
BatchGenerator::~BatchGenerator() = default;

BatchGenerator::Id BatchGenerator::submit(std::vector<std::int64_t> prompt, const GenerationOptions& options,
                                          OnText on_text) try {
  return impl_->submit({std::move(prompt), {}}, options, {}, std::move(on_text));
} catch (...) {
  rethrow_typed();
}
BatchGenerator::Id BatchGenerator::submit(std::vector<std::int64_t> prompt, const GenerationOptions& options,
                                          const RequestOptions& request, OnText on_text) try {
  return impl_->submit({std::move(prompt), {}}, options, request, std::move(on_text));
} catch (...) {
  rethrow_typed();
}
BatchGenerator::Id BatchGenerator::submit(ImagePrompt prompt, const GenerationOptions& options,
                                          const RequestOptions& request, OnText on_text) try {
  return impl_->submit(std::move(prompt), options, request, std::move(on_text));
} catch (...) {
  rethrow_typed();
}
bool BatchGenerator::step(const RunOptions& options) try { return impl_->step(options); } catch (...) {
  rethrow_typed();
}
bool BatchGenerator::cancel(Id id) try { return impl_->cancel(id); } catch (...) {
  rethrow_typed();
}
std::optional<Generation> BatchGenerator::take(Id id) try { return impl_->take(id); } catch (...) {
  rethrow_typed();
}
RequestState BatchGenerator::state(Id id) const try { return impl_->state(id); } catch (...) {
  rethrow_typed();
}
void BatchGenerator::prepare(std::int64_t prompt_lookup_num_tokens) try {
  impl_->prepare(prompt_lookup_num_tokens, false);
} catch (...) {
  rethrow_typed();
}
void BatchGenerator::prepare(std::int64_t prompt_lookup_num_tokens, bool prompt_logprobs) try {
  impl_->prepare(prompt_lookup_num_tokens, prompt_logprobs);
} catch (...) {
  rethrow_typed();
}
std::size_t BatchGenerator::waiting() const { return impl_->waiting(); }
std::size_t BatchGenerator::running() const { return impl_->running(); }
const GenerationStats& BatchGenerator::stats() const { return impl_->loop.stats; }
PrefixCacheStats BatchGenerator::prefix_cache() const try { return impl_->prefix_cache(); } catch (...) {
  rethrow_typed();
}
Decoder& BatchGenerator::decoder() { return impl_->loop.public_decoder(); }

}  // namespace graft
