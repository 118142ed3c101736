#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "graft/llm.h"

namespace graft::llm {

// Throws InvalidArgument naming the option that makes no sense.
void check(const GenerationOptions& options);
void check(const RequestOptions& request, std::int64_t vocabulary);

// Ids behind the logits that prompts may have (MLlama's token for pictures): embeddings have room for so many.
inline constexpr std::int64_t kMostWithoutLogits = 8;

// Draws the tokens of one sequence. The definitions and their order are those of Hugging Face's logits processors.
class Sampler {
 public:
  // `seed` instead of the options'. Throws InvalidArgument for options that make no sense.
  Sampler(const GenerationOptions& options, std::int64_t vocabulary, std::uint64_t seed,
          const RequestOptions& request = {});

  // Appends these tokens to the sequence.
  void see(std::span<const std::int64_t> tokens);
  // Says that this token, which was seen too, was generated.
  void count_generated(std::int64_t id);
  // Whether next() overwrites logits.
  bool changes_logits() const {
    return !seen_.empty() || !counts_.empty() || !request_.logit_bias.empty() || request_.mask;
  }
  // The next token. Allocates nothing.
  std::int64_t next(std::span<float> logits);
  // The probabilities that next() draws from.
  std::vector<float> probabilities(std::span<float> logits);

 private:
  struct Candidate {
    float logit = 0;
    std::int32_t id = 0;
  };
  // Candidates that are left, with their logits; weights_ are their probabilities times the returned sum.
  double filter(std::span<const float> logits);
  void penalize(std::span<float> logits) const;
  void apply_mask(std::span<float> logits);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();

  GenerationOptions options_;
  RequestOptions request_;
  std::mt19937_64 random_;
  std::vector<std::uint8_t> seen_;           // by token; empty without a penalty
  std::vector<std::int64_t> seen_ids_;       // each once
  std::vector<std::uint32_t> counts_;        // of generated tokens, by token; empty without such a penalty
  std::vector<std::int64_t> generated_ids_;  // each once
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
  std::vector<std::uint32_t> allowed_;  // by the mask; empty without one
};

}  // namespace graft::llm
