#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/loop.h"

namespace graft {
namespace {

constexpr std::int64_t kSmallestWidth = 16;  // of a prompt's chunk: fewer tokens hardly save time
constexpr const char* kWhat = "BatchGenerator";

}  // namespace

// Schedules the loop: the queue of requests, which prompt is prefilled next and in runs of which width, and the
// results.
class BatchGenerator::Impl {
 public:
  Impl(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options);

  void prepare(std::int64_t prompt_lookup_num_tokens);
  Id submit(std::vector<std::int64_t> prompt, const GenerationOptions& options, OnText on_text);
  bool step(const RunOptions& options);
  bool cancel(Id id);
  std::optional<Generation> take(Id id);
  std::size_t running() const;

  llm::Loop loop;
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Id id = 0;
    std::unique_ptr<llm::Sequence> sequence;
  };
  void join();
  void read_oldest(const RunOptions& options);
  void go_on(const RunOptions& options);
  // Removes finished requests until none is left: the last callback of one may cancel others.
  void sweep();
  bool sweep_once();
  std::int64_t width_for(std::int64_t rest) const;

  std::vector<std::int64_t> widths_, batches_;  // widths of prompt runs, and row counts of steps; ascending
  std::deque<Waiting> waiting_;
  std::vector<Id> row_ids_;  // of the sequences in the rows
  std::vector<std::pair<Id, Generation>> ended_;
  Id next_ = 0;
};

BatchGenerator::Impl::Impl(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options)
    : loop(std::move(model), options, llm::Loop::CallbackErrors::end_their_sequence) {
  GRAFT_CHECK(Unsupported, !loop.model().info().encoder,
              "BatchGenerator runs no model with an encoder: ", loop.model().info().architecture);
  const DecoderOptions& decoder = loop.decoder().options;
  row_ids_.resize(loop.rows().size());
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

void BatchGenerator::Impl::prepare(std::int64_t prompt_lookup_num_tokens) {
  const llm::Use use(loop.decoder().in_use, kWhat, "prepare()");
  const std::int64_t capacity = loop.decoder().options.length;
  GRAFT_CHECK(InvalidArgument, prompt_lookup_num_tokens >= 0 && prompt_lookup_num_tokens < capacity,
              "prompt_lookup_num_tokens is ", prompt_lookup_num_tokens, ", the context ", capacity);
  for (const std::int64_t width : widths_) loop.decoder().prepare(1, width, 1);
  loop.drafts = std::max(loop.drafts, prompt_lookup_num_tokens);
  for (const std::int64_t batch : batches_) {
    loop.decoder().prepare(batch, 1, 1);
    const std::int64_t width = loop.drafts + 1;
    if (width > 1) loop.decoder().prepare(batch, width, width);
  }
}

BatchGenerator::Id BatchGenerator::Impl::submit(std::vector<std::int64_t> prompt, const GenerationOptions& options,
                                                OnText on_text) {
  const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "submit()");
  loop.check(prompt, options);
  // A request that ends must get its place.
  if (const std::size_t most = ended_.size() + waiting_.size() + running() + 1; ended_.capacity() < most)
    ended_.reserve(2 * most);
  waiting_.push_back({next_, std::make_unique<llm::Sequence>(loop.model(), std::move(prompt), options, options.seed,
                                                             loop.decoder().options.length, std::move(on_text))});
  loop.drafts = std::max(loop.drafts, options.prompt_lookup_num_tokens);
  return next_++;
}

// Gives the free rows to the oldest requests, each the row that holds the longest prefix of its prompt.
void BatchGenerator::Impl::join() {
  while (!waiting_.empty()) {
    const auto& prompt = waiting_.front().sequence->tokens();
    std::size_t best = loop.rows().size();
    std::int64_t most = -1;
    for (std::size_t r = 0; r < loop.rows().size(); ++r) {
      if (loop.rows()[r]) continue;
      if (const std::int64_t same = loop.reusable(r, prompt); same > most) {
        most = same;
        best = r;
      }
    }
    if (best == loop.rows().size()) break;
    row_ids_[best] = waiting_.front().id;
    loop.begin(std::move(waiting_.front().sequence), best, most);
    waiting_.pop_front();
  }
}

std::int64_t BatchGenerator::Impl::width_for(std::int64_t rest) const {
  const auto above = std::ranges::lower_bound(widths_, rest);
  if (above == widths_.end()) return widths_.back();
  // A run is padded up to its width unless two smaller ones compute much less.
  if (above == widths_.begin() || rest > *above * 3 / 4) return *above;
  return *(above - 1);
}

void BatchGenerator::Impl::read_oldest(const RunOptions& options) {
  const auto& rows = loop.rows();
  std::size_t oldest = rows.size();
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r] && rows[r]->reading && (oldest == rows.size() || row_ids_[r] < row_ids_[oldest])) oldest = r;
  if (oldest == rows.size()) return;
  const std::int64_t rest = rows[oldest]->prompt_tokens() - loop.decoder().length(oldest);
  loop.read_chunk(oldest, width_for(rest), options);
}

void BatchGenerator::Impl::go_on(const RunOptions& options) {
  const auto going = static_cast<std::int64_t>(loop.going());
  // Rounded up to the next batch size, so that joining and leaving need no new plan.
  if (going > 0) loop.step(static_cast<std::size_t>(*std::ranges::lower_bound(batches_, going)), options);
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
    const auto left = loop.leave(r, FinishReason::cancelled);
    ended_.emplace_back(row_ids_[r], std::move(left->result()));
    any = true;
  }
  for (std::size_t w = 0; w < waiting_.size();) {
    if (!waiting_[w].sequence->cancelled) {
      ++w;
      continue;
    }
    const Waiting left = std::move(waiting_[w]);  // on_text may submit another one
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(w));
    loop.guarded(*left.sequence, [&] { left.sequence->end(FinishReason::cancelled); });
    ended_.emplace_back(left.id, std::move(left.sequence->result()));
    any = true;
  }
  return any;
}

bool BatchGenerator::Impl::step(const RunOptions& options) {
  {
    const llm::Use use(loop.decoder().in_use, kWhat, "step()");
    GRAFT_CHECK(InvalidArgument, options.kv_rows.empty(), "kv_rows are the generator's own");
    join();
    read_oldest(options);
    go_on(options);
    sweep();
  }
  loop.rethrow();
  return !waiting_.empty() || running() > 0;
}

bool BatchGenerator::Impl::cancel(Id id) {
  {
    const llm::Use use = llm::Use::nested(loop.decoder().in_use, kWhat, "cancel()");
    llm::Sequence* found = nullptr;
    for (const Waiting& waiting : waiting_)
      if (waiting.id == id) found = waiting.sequence.get();
    for (std::size_t r = 0; r < row_ids_.size(); ++r)
      if (loop.rows()[r] && row_ids_[r] == id) found = loop.rows()[r].get();
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
  const auto found = std::ranges::find(ended_, id, &std::pair<Id, Generation>::first);
  if (found != ended_.end()) {
    Generation result = std::move(found->second);
    ended_.erase(found);
    return result;
  }
  for (const Waiting& waiting : waiting_)
    if (waiting.id == id) return {};
  for (std::size_t r = 0; r < row_ids_.size(); ++r)
    if (loop.rows()[r] && row_ids_[r] == id) return {};
  throw NotFound(str("there is no request ", id, ", or its text was taken"));
}

BatchGenerator::BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options) try
    : impl_(std::make_unique<Impl>(std::move(model), options)) {
} catch (...) {
  rethrow_typed();
}
BatchGenerator::~BatchGenerator() = default;

BatchGenerator::Id BatchGenerator::submit(std::vector<std::int64_t> prompt, const GenerationOptions& options,
                                          OnText on_text) try {
  return impl_->submit(std::move(prompt), options, std::move(on_text));
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
void BatchGenerator::prepare(std::int64_t prompt_lookup_num_tokens) try {
  impl_->prepare(prompt_lookup_num_tokens);
} catch (...) {
  rethrow_typed();
}
std::size_t BatchGenerator::waiting() const { return impl_->waiting(); }
std::size_t BatchGenerator::running() const { return impl_->running(); }
const GenerationStats& BatchGenerator::stats() const { return impl_->loop.stats; }
Decoder& BatchGenerator::decoder() { return impl_->loop.public_decoder(); }

}  // namespace graft
