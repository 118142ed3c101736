#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "graft/llm.h"
#include "llm/images.h"
#include "llm/in_use.h"
#include "stage/chain.h"
#include "stage/first_stage.h"

namespace graft {

// Decoder without the check for concurrent calls: callers that make several runs hold `in_use` for all of them.
class Decoder::Impl {
 public:
  Impl(std::shared_ptr<const LanguageModel> language_model, const DecoderOptions& decoder_options);

  void encode(std::span<const Tokens> encoder_inputs, const RunOptions& run_options);
  void encode(const TensorView& features, const RunOptions& run_options);
  std::span<float> run(std::span<const std::int64_t> sequences, std::span<const Tokens> rows, std::int64_t width,
                       std::int64_t keep, const RunOptions& run_options);
  void prepare(std::int64_t rows, std::int64_t width, std::int64_t keep);
  // In runs of at most prefill_chunk_size tokens. `take` gets the logits of every token; without it, those of the last
  // tokens are returned.
  std::span<float> prefill(std::span<const Tokens> rows, const std::function<void(std::span<float>)>& take,
                           const RunOptions& run_options);
  // What callers may do: a sequence is not cut within its pictures, and what follows in their place is text.
  void truncate_by_user(std::size_t row, std::int64_t length);
  // How many tokens of a sequence a run of about `count` takes so that no tokens are cut off that see each other: fewer
  // where that leaves some, else more.
  std::int64_t uncut(std::size_t row, std::int64_t count) const;
  // Throws InvalidArgument for pictures of more rows than the layers of a sequence that attend to them have room for.
  void check_room(const llm::PreparedImages& images) const;
  // The pictures of the tokens that a sequence begins with; null: none. Their features are made when they are read.
  void place_images(std::size_t row, std::shared_ptr<const llm::PreparedImages> images);
  std::int64_t length(std::size_t row) const { return lengths_[row]; }
  std::int64_t shortest(std::size_t row);
  void truncate(std::size_t row, std::int64_t length);
  // After keys and values of a row were copied in.
  void set_length(std::size_t row, std::int64_t length) { lengths_[row] = length; }
  // Of a model in stages: connects again to those that were lost. Throws Unavailable where they are not back.
  void connect();
  // 0, 1, 2, ...: the sequences of a run that names none. Throws InvalidArgument when the cache has fewer rows.
  std::span<const std::int64_t> first_sequences(std::size_t count) const;

  const std::shared_ptr<const LanguageModel> model;
  const std::optional<llm::FeaturesInfo> features_info;  // of pictures or sounds
  const DecoderOptions options;
  const std::shared_ptr<stage::FirstStage> first_stage;  // null: the model is in one piece
  Session session;                                       // of the first stage, where there are several
  llm::InUse in_use;
  bool ran_by_user = false;  // since a Loop looked: its rows may hold other tokens than it put there

 private:
  struct Call {  // the buffers of runs of one size
    std::int64_t batch = 0, width = 0, keep = 0;
    bool with_images = false;
    std::uint64_t used = 0;
    std::vector<std::int64_t> ids, positions, cache_positions, kept;
    std::vector<float> features;           // [batch, width, FeaturesInfo::width]
    std::vector<std::uint8_t> image_mask;  // [batch, width]
    std::vector<std::int64_t> blocks;      // [batch, width, 2]: blocks or ranges; empty: the step takes none
    std::vector<Value> inputs, outputs;
  };
  void encode(std::span<const Value> inputs, std::size_t rows, const RunOptions& run_options);
  stage::Step step_of(const Call& call, std::span<const std::int64_t> sequences) const;
  // Places the tokens of a run that was checked, and makes it. Where there are stages behind the first and `wait` is
  // false, they are not waited for, and there are no logits.
  std::span<float> run_once(std::span<const std::int64_t> sequences, std::span<const Tokens> rows, std::int64_t width,
                            std::int64_t keep, const RunOptions& run_options, bool wait = true);
  std::span<float> run_stages(Call& call, std::span<const std::int64_t> sequences, const RunOptions& run_options,
                              bool wait);
  // Whether stages get such a run in pieces, so that one is at a piece while the next one is at that before it.
  bool in_pieces(std::size_t rows, std::int64_t width, std::int64_t keep) const;
  std::span<float> run_pieces(std::int64_t sequence, Tokens tokens, const RunOptions& run_options);
  // After a stage or a device was lost: all sequences are empty.
  void lose() noexcept;
  // What asks the stages, and may lose them.
  template <typename Work>
  auto with_stages(const Work& work);
  Call& call_for(std::int64_t batch, std::int64_t width, std::int64_t keep, bool with_images = false);
  // Whether a run of these has tokens of pictures; makes the features that are missing.
  bool see_images(std::span<const std::int64_t> sequences, std::span<const Tokens> rows, const RunOptions& run_options);
  // The same of a model whose layers attend to pictures: stores those that a row of the cache does not have.
  bool store_images(std::span<const std::int64_t> sequences, std::span<const Tokens> rows,
                    const RunOptions& run_options);
  // Which rows of its pictures' features each of these tokens sees.
  void place_ranges(Call& call, std::size_t sequence, std::size_t row, std::size_t at, std::size_t count) const;
  // Of `count` tokens of a sequence, which stand from `at` on in the buffers of the call: positions and features.
  void place(Call& call, std::size_t sequence, std::size_t row, std::size_t at, std::size_t count) const;
  void check(std::span<const std::int64_t> sequences, std::span<const Tokens> rows) const;
  // Whether a run that ends before this token of a sequence cuts off tokens that see each other.
  bool cuts(std::size_t row, std::int64_t end) const;
  // Of rows that are aligned on the right, of which `begin` tokens were read, how many the next run reads.
  std::int64_t prefill_width(std::span<const Tokens> rows, std::int64_t total, std::int64_t begin) const;

  struct Images {
    std::shared_ptr<const llm::PreparedImages> prepared;  // null: none
    std::vector<float> features;                          // [rows, width]; empty: not made yet, or not needed any more
  };
  struct Source {
    std::array<std::uint8_t, 32> digest = {};  // of the pictures that layers of the row can attend to
    std::uint64_t adapter = 0;                 // that made their keys and values; 0: none
    bool whole = false;                        // false: there are none, or not all
  };
  std::vector<Source> sources_;        // by row
  std::vector<std::int64_t> lengths_;  // tokens by row
  std::vector<Images> images_;         // by row
  std::vector<std::int64_t> first_;
  std::vector<Call> calls_;
  std::vector<Tokens> chunks_;
  std::vector<float> logits_;
  std::uint64_t clock_ = 0;
  std::unique_ptr<stage::Chain> chain_;  // null: the model is in one piece
  std::vector<std::int64_t> shortest_;   // by row: of the stages behind the first
};

}  // namespace graft
