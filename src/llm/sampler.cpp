#include "llm/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rethrow.h"

namespace graft::llm {
namespace {

constexpr const char* kNoNumbers = "the model's logits hold no finite number: no token can be chosen";

std::int64_t largest(std::span<const float> logits) {
  std::int64_t best = -1;
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > most) {
      most = logits[i];
      best = static_cast<std::int64_t>(i);
    }
  GRAFT_CHECK(ExecutionError, best >= 0, kNoNumbers);
  return best;
}

}  // namespace

void check(const GenerationOptions& options) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  GRAFT_CHECK(InvalidArgument, options.max_new_tokens >= 1, "max_new_tokens must be at least 1, got ",
              options.max_new_tokens);
  GRAFT_CHECK(InvalidArgument, options.temperature == 0 || positive(options.temperature),
              "temperature must be 0 (greedy) or above, got ", options.temperature);
  GRAFT_CHECK(InvalidArgument, options.top_k >= 0, "top_k must be 0 (all) or above, got ", options.top_k);
  GRAFT_CHECK(InvalidArgument, options.top_p >= 0 && options.top_p <= 1, "top_p must be from 0 to 1, got ",
              options.top_p);
  GRAFT_CHECK(InvalidArgument, options.min_p >= 0 && options.min_p <= 1, "min_p must be from 0 to 1, got ",
              options.min_p);
  GRAFT_CHECK(InvalidArgument, positive(options.repetition_penalty), "repetition_penalty must be above 0, got ",
              options.repetition_penalty);
  GRAFT_CHECK(InvalidArgument, options.prompt_lookup_num_tokens >= 0,
              "prompt_lookup_num_tokens must be 0 (none) or above, got ", options.prompt_lookup_num_tokens);
  GRAFT_CHECK(InvalidArgument, options.max_matching_ngram_size >= 1, "max_matching_ngram_size must be at least 1, got ",
              options.max_matching_ngram_size);
  for (const std::string& stop : options.stop_strings)
    GRAFT_CHECK(InvalidArgument, !stop.empty(), "a stop string is empty");
}

void check(const RequestOptions& request, std::int64_t vocabulary) {
  GRAFT_CHECK(InvalidArgument, std::isfinite(request.frequency_penalty), "frequency_penalty must be finite, got ",
              request.frequency_penalty);
  GRAFT_CHECK(InvalidArgument, std::isfinite(request.presence_penalty), "presence_penalty must be finite, got ",
              request.presence_penalty);
  for (const auto& [id, bias] : request.logit_bias) {
    GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "token ", id,
                " of logit_bias is not in the vocabulary of ", vocabulary, " tokens");
    GRAFT_CHECK(InvalidArgument, std::isfinite(bias), "the logit_bias of token ", id, " must be finite, got ", bias);
  }
  GRAFT_CHECK(InvalidArgument, !request.logprobs || (*request.logprobs >= 0 && *request.logprobs <= vocabulary),
              "logprobs must be from 0 to the vocabulary of ", vocabulary, " tokens, got ",
              request.logprobs.value_or(0));
  GRAFT_CHECK(InvalidArgument, request.logprobs || !request.prompt_logprobs, "prompt_logprobs needs logprobs");
}

Sampler::Sampler(const GenerationOptions& options, std::int64_t vocabulary, std::uint64_t seed,
                 const RequestOptions& request)
    : options_(options), request_(request), random_(seed) {
  check(options_);
  check(request_, vocabulary);
  const auto tokens = static_cast<std::size_t>(vocabulary);
  if (options_.repetition_penalty != 1) {
    seen_.resize(tokens);
    seen_ids_.reserve(tokens);
  }
  if (request_.frequency_penalty != 0 || request_.presence_penalty != 0) {
    counts_.resize(tokens);
    generated_ids_.reserve(tokens);
  }
  // The mask is of the tokenizer's vocabulary.
  if (request_.mask) allowed_.resize((tokens + kMostWithoutLogits + 31) / 32);
  if (options_.temperature > 0) {
    candidates_.reserve(tokens);
    weights_.reserve(tokens);
  }
}

void Sampler::see(std::span<const std::int64_t> tokens) {
  if (seen_.empty()) return;
  for (const std::int64_t id : tokens) {
    if (id >= std::ssize(seen_)) continue;  // it has no logit
    std::uint8_t& seen = seen_[static_cast<std::size_t>(id)];
    if (!seen) seen_ids_.push_back(id);
    seen = 1;
  }
}

void Sampler::count_generated(std::int64_t id) {
  if (counts_.empty()) return;
  if (counts_[static_cast<std::size_t>(id)]++ == 0) generated_ids_.push_back(id);
}

void Sampler::penalize(std::span<float> logits) const {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const std::int64_t id : seen_ids_) {
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
  for (const std::int64_t id : generated_ids_) {
    const auto count = static_cast<double>(counts_[static_cast<std::size_t>(id)]);
    logits[static_cast<std::size_t>(id)] -=
        static_cast<float>(count * request_.frequency_penalty + request_.presence_penalty);
  }
  for (const auto& [id, bias] : request_.logit_bias) logits[static_cast<std::size_t>(id)] += bias;
}

void Sampler::apply_mask(std::span<float> logits) {
  if (!request_.mask) return;
  call_back([&] { request_.mask->allowed(allowed_); });
  GRAFT_CHECK(ExecutionError, std::ranges::any_of(allowed_, [](std::uint32_t word) { return word != 0; }),
              "the mask allows no token: no token of the vocabulary goes on with the form that was asked for");
  for (std::size_t w = 0; w < allowed_.size(); ++w) {
    const std::uint32_t word = allowed_[w];
    if (word == ~0u) continue;
    const std::size_t end = std::min<std::size_t>(logits.size(), 32 * w + 32);
    for (std::size_t i = 32 * w; i < end; ++i)
      if (!(word >> (i % 32) & 1)) logits[i] = -std::numeric_limits<float>::infinity();
  }
}

// Tokens as likely as the k-th stay too.
void Sampler::keep_top_k() {
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  const auto kth = candidates_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(candidates_, kth, std::greater<>{}, &Candidate::logit);
  std::erase_if(candidates_, [least = kth->logit](const Candidate& c) { return c.logit < least; });
}

// The most likely tokens until their probabilities reach top_p; at least one. Sorted in parts: a few hundred
// usually suffice.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  double sum = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (const Candidate& c : candidates_) most = std::max(most, c.logit);
  for (const Candidate& c : candidates_) sum += std::exp(static_cast<double>(c.logit - most));
  const double enough = options_.top_p * sum;
  double before = 0;  // the weight of the kept tokens
  std::size_t kept = 0, sorted = 0;
  while (kept < candidates_.size() && (kept == 0 || before < enough)) {
    if (kept == sorted) {
      sorted = std::min(candidates_.size(), std::max<std::size_t>(256, sorted * 4));
      const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(kept);
      std::ranges::partial_sort(begin, candidates_.begin() + static_cast<std::ptrdiff_t>(sorted), candidates_.end(),
                                std::greater<>{}, &Candidate::logit);
    }
    before += std::exp(static_cast<double>(candidates_[kept++].logit - most));
  }
  candidates_.resize(kept);
}

void Sampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  const float most = std::ranges::max(candidates_, {}, &Candidate::logit).logit;
  const double limit = std::log(options_.min_p);
  std::erase_if(candidates_, [&](const Candidate& c) { return static_cast<double>(c.logit - most) < limit; });
}

double Sampler::filter(std::span<const float> logits) {
  const auto temperature = static_cast<float>(options_.temperature);
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -std::numeric_limits<float>::infinity())  // false for NaN
      candidates_.push_back({logits[i] / temperature, static_cast<std::int32_t>(i)});
  GRAFT_CHECK(ExecutionError, !candidates_.empty(), kNoNumbers);
  keep_top_k();
  keep_top_p();
  keep_min_p();
  const float most = std::ranges::max(candidates_, {}, &Candidate::logit).logit;
  GRAFT_CHECK(ExecutionError, std::isfinite(most), kNoNumbers);
  // In the order of the vocabulary, so that equal seeds give equal tokens whatever the sorting did.
  if (!std::ranges::is_sorted(candidates_, {}, &Candidate::id)) std::ranges::sort(candidates_, {}, &Candidate::id);
  weights_.clear();
  double sum = 0;
  for (const Candidate& c : candidates_) {
    weights_.push_back(std::exp(static_cast<double>(c.logit - most)));
    sum += weights_.back();
  }
  return sum;
}

std::int64_t Sampler::next(std::span<float> logits) {
  penalize(logits);
  apply_mask(logits);
  if (options_.temperature == 0) return largest(logits);
  const double sum = filter(logits);
  // 53 random bits: a number from 0 to below 1.
  double rest = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
  std::size_t i = 0;
  while (i + 1 < weights_.size() && rest >= weights_[i]) rest -= weights_[i++];
  return candidates_[i].id;
}

std::vector<float> Sampler::probabilities(std::span<float> logits) {
  std::vector<float> result(logits.size(), 0.f);
  penalize(logits);
  if (options_.temperature == 0) {
    result[static_cast<std::size_t>(largest(logits))] = 1;
    return result;
  }
  const double sum = filter(logits);
  for (std::size_t i = 0; i < candidates_.size(); ++i)
    result[static_cast<std::size_t>(candidates_[i].id)] = static_cast<float>(weights_[i] / sum);
  return result;
}

}  // namespace graft::llm

namespace graft {

std::vector<float> token_probabilities(std::span<const float> logits, std::span<const std::int64_t> tokens,
                                       const GenerationOptions& options) try {
  GRAFT_CHECK(InvalidArgument, !logits.empty(), "there are no logits");
  for (const std::int64_t id : tokens)
    GRAFT_CHECK(InvalidArgument, id >= 0 && id < std::ssize(logits), "token ", id, " is not in the vocabulary of ",
                logits.size(), " tokens");
  llm::Sampler sampler(options, std::ssize(logits), 0);
  sampler.see(tokens);
  std::vector<float> copy(logits.begin(), logits.end());
  return sampler.probabilities(copy);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
