#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "graft/llm.h"
#include "llm/decoder_impl.h"
#include "llm/prefix_cache.h"
#include "llm/sequence.h"

namespace graft::llm {

// The generation loop of both generators: each sequence has a row of the cache. begin() reuses the prefix that the row
// holds already; step() gives every sequence with a prefilled prompt one token, or with drafts several. The caller
// decides which sequence runs when, and holds `decoder().in_use` meanwhile. A run that throws changes nothing.
class Loop {
 public:
  enum class CallbackErrors {
    end_their_sequence,  // as cancelled; rethrow() throws the first one
    propagate,           // immediately; call clear() next
  };
  Loop(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, CallbackErrors errors);

  // Throws InvalidArgument for a prompt that has no tokens, too many, or one outside the vocabulary, and for options
  // that make no sense or drafts that do not fit the cache.
  // `batch`: of prompts with these options.
  // `images`: of the prompt; null: none.
  void check(std::span<const std::int64_t> prompt, const GenerationOptions& options, std::size_t batch = 1,
             const PreparedImages* images = nullptr) const;
  // Throws Unsupported for drafts of a model whose tokens cannot be taken back.
  void check_drafts(std::int64_t tokens) const;
  // Throws InvalidArgument for adapters of another program and for another number of them than one or the batch's,
  // Unsupported for a model in stages.
  void check_adapters(const GenerationOptions& options, std::size_t batch) const;

  // The length of the prompt's prefix that a free row holds and can continue. Never the whole prompt: the logits of its
  // last token are needed.
  std::int64_t reusable(std::size_t row, const Sequence& sequence);
  // Fills a free row from the prefix cache where that has more of the prompt than the row, which holds `reusable`
  // tokens of it. Returns how many it then holds.
  std::int64_t restore(PrefixCache& cache, std::size_t row, const Sequence& sequence, std::int64_t reusable);
  // Gives the sequence this free row, which keeps the first `reused` tokens. When it throws, the caller still has it.
  void begin(std::unique_ptr<Sequence>&& sequence, std::size_t row, std::int64_t reused);
  // Prefills the prompts of all occupied rows, which are the first ones, and draws their first tokens.
  void read_prompts(const RunOptions& options);
  // Prefills the next chunk of a prompt in a run of `width` tokens; the last chunk yields the first token. Where the
  // prompt's log-probabilities are wanted the run gives the logits of all its tokens.
  void read_chunk(std::size_t row, std::int64_t width, const RunOptions& options);
  // How many sequences step() would give a token.
  std::size_t going() const;
  // One run of `batch` >= going() rows. The rest are idle rows: batches of equal size share a plan.
  void step(std::size_t batch, const RunOptions& options);
  // Removes a sequence; one that was not done ends for this reason.
  std::unique_ptr<Sequence> leave(std::size_t row, FinishReason reason);
  // Removes all sequences and the tokens of their rows.
  void clear() noexcept;

  // Runs `call`, which may run a callback of this sequence.
  template <typename Call>
  void guarded(Sequence& sequence, const Call& call) {
    if (errors_ == CallbackErrors::propagate) return call();
    try {
      call();
    } catch (...) {
      if (!thrown_) thrown_ = std::current_exception();
      sequence.cancelled = true;
    }
  }
  // Throws what a callback has thrown, once.
  void rethrow();

  // By row; null: free.
  const std::vector<std::unique_ptr<Sequence>>& rows() const { return rows_; }
  const LanguageModel& model() const { return *decoder_.impl_->model; }
  Decoder::Impl& decoder() { return *decoder_.impl_; }
  const Decoder::Impl& decoder() const { return *decoder_.impl_; }
  Decoder& public_decoder() { return decoder_; }

  std::int64_t drafts = 0;  // the most tokens of a draft: the width of runs with drafts is one more
  GenerationStats stats;

 private:
  bool goes_on(const std::unique_ptr<Sequence>& sequence) const {
    return sequence && !sequence->reading && !sequence->cancelled && !sequence->done();
  }
  void take_first(Sequence& sequence, std::span<float> logits);
  // The options of a run of these rows, with their adapters.
  RunOptions with_adapters(const RunOptions& options, std::span<const std::int64_t> rows);

  Decoder decoder_;
  CallbackErrors errors_;
  std::vector<std::unique_ptr<Sequence>> rows_;
  std::vector<std::vector<std::int64_t>> cached_;  // by free row: the keys of the tokens that it holds
  std::vector<std::uint64_t> cached_salts_;        // of these: Sequence::cache_salt
  std::vector<std::int64_t> run_rows_;             // of a step
  std::vector<Decoder::Tokens> feeds_;
  std::vector<const Adapter*> run_adapters_;
  std::exception_ptr thrown_;
};

}  // namespace graft::llm
