#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "graft/llm.h"
#include "llm/decoder_impl.h"
#include "llm/sequence.h"

namespace graft::llm {

// The loop of generation: sequences that go on side by side, each in a row of the cache. What a row holds already of a
// prompt is not computed again; a step gives every sequence whose prompt is read one token, or with drafts some. Who
// uses it says which sequences go on when, and holds `decoder().in_use`. When a run throws, nothing has changed.
class Loop {
 public:
  enum class CallbackErrors {
    end_their_sequence,  // as cancelled; rethrow() brings the first one out
    come_out,            // at once: the loop is then good for clear() only
  };
  Loop(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, CallbackErrors errors);

  // Throws InvalidArgument for a prompt that has no tokens, too many, or one outside the vocabulary, and for options
  // that make no sense or drafts that do not fit the cache.
  void check(std::span<const std::int64_t> prompt, const GenerationOptions& options) const;

  // How many tokens of a prompt a free row has in the cache and can go on from; never the last one, whose logits are
  // wanted.
  std::int64_t reusable(std::size_t row, std::span<const std::int64_t> prompt);
  // The sequence goes on in this row, which is free, behind `reused` tokens.
  void begin(std::unique_ptr<Sequence> sequence, std::size_t row, std::int64_t reused);
  // Reads the prompts of all rows, the first ones, up to their first tokens.
  void read_prompts(const RunOptions& options);
  // Reads the next chunk of a prompt, in a run of `width` tokens; with the last chunk the first token comes.
  void read_chunk(std::size_t row, std::int64_t width, const RunOptions& options);
  // How many sequences a step would give a token.
  std::size_t going() const;
  // One run of `batch` rows, at least going(): those that get none are there for the plan of that size.
  void step(std::size_t batch, const RunOptions& options);
  // Takes a sequence out, ended for this reason if it was not done.
  std::unique_ptr<Sequence> leave(std::size_t row, FinishReason reason);
  // Forgets all sequences, and what their rows hold.
  void clear();

  // Calls `call`, which may call a callback of this sequence.
  template <typename Call>
  void guarded(Sequence& sequence, const Call& call) {
    if (errors_ == CallbackErrors::come_out) return call();
    try {
      call();
    } catch (...) {
      if (!thrown_) thrown_ = std::current_exception();
      sequence.cancelled = true;
    }
  }
  // What a callback has thrown, once.
  void rethrow();

  // By row; null: free.
  const std::vector<std::unique_ptr<Sequence>>& rows() const { return rows_; }
  const LanguageModel& model() const { return *decoder_.impl_->model; }
  Decoder::Impl& decoder() { return *decoder_.impl_; }
  const Decoder::Impl& decoder() const { return *decoder_.impl_; }
  Decoder& public_decoder() { return decoder_; }

  std::int64_t drafts = 0;  // steps with drafts are so many tokens wider than those without
  GenerationStats stats;    // the seconds are those of runs and of what follows them

 private:
  bool goes_on(const std::unique_ptr<Sequence>& sequence) const {
    return sequence && !sequence->reading && !sequence->cancelled && !sequence->done();
  }
  void take_first(Sequence& sequence, std::span<float> logits);

  Decoder decoder_;
  CallbackErrors errors_;
  std::vector<std::unique_ptr<Sequence>> rows_;
  std::vector<std::vector<std::int64_t>> cached_;  // by free row: the tokens that it holds
  std::vector<std::int64_t> run_rows_;             // of a step
  std::vector<Decoder::Tokens> feeds_;
  std::exception_ptr thrown_;
};

}  // namespace graft::llm
