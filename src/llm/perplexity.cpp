#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/llm.h"

namespace graft {
namespace {

constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 24;  // 64 MiB

Decoder make_decoder(const std::shared_ptr<const LanguageModel>& model, const PerplexityOptions& options) {
  DecoderOptions decoder;
  decoder.threads = options.threads;
  decoder.kv_type = options.kv_type;
  GRAFT_CHECK(InvalidArgument, options.window <= model->info().context_length, "the window is ", options.window,
              " tokens, the model's context ", model->info().context_length);
  decoder.length = options.window;
  return Decoder(model, decoder);
}

// log(sum(exp(logits))).
double log_sum(std::span<const float> logits) {
  const float most = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - most));
  return static_cast<double>(most) + std::log(sum);
}

}  // namespace

Perplexity perplexity(const std::shared_ptr<const LanguageModel>& model, std::span<const std::int64_t> tokens,
                      const PerplexityOptions& options, const std::shared_ptr<const LanguageModel>& reference) try {
  GRAFT_CHECK(InvalidArgument, options.window >= 1, "a window has at least 1 token, got ", options.window);
  const std::int64_t vocabulary = model->info().vocab_size;
  GRAFT_CHECK(InvalidArgument, !reference || reference->info().vocab_size == vocabulary,
              "the reference has another vocabulary: ", reference ? reference->info().vocab_size : 0,
              " tokens, the model has ", vocabulary);
  Perplexity result;
  result.windows = (std::ssize(tokens) - 1) / options.window;
  GRAFT_CHECK(InvalidArgument, result.windows > 0, "the text has ", tokens.size(),
              " tokens, a window and the token after it ", options.window + 1);
  Decoder decoder = make_decoder(model, options);
  std::optional<Decoder> other;
  if (reference) other.emplace(make_decoder(reference, options));
  const std::int64_t chunk = std::clamp<std::int64_t>(kLogitsAtOnce / vocabulary, 1, options.window);
  RunOptions run_options;
  run_options.cancel = options.cancel;
  double loss = 0, reference_loss = 0, kl = 0;
  std::int64_t agree = 0;
  for (std::int64_t w = 0; w < result.windows; ++w) {
    decoder.truncate(0, 0);
    if (other) other->truncate(0, 0);
    for (std::int64_t begin = 0; begin < options.window; begin += chunk) {
      const std::int64_t width = std::min(chunk, options.window - begin);
      const auto from = static_cast<std::size_t>(w * options.window + begin);
      const Decoder::Tokens taken = tokens.subspan(from, static_cast<std::size_t>(width));
      const std::span<const float> logits = decoder.run({&taken, 1}, width, width, run_options);
      const std::span<const float> wanted =
          other ? other->run({&taken, 1}, width, width, run_options) : std::span<float>{};
      for (std::size_t i = 0; i < taken.size(); ++i) {
        const auto size = static_cast<std::size_t>(vocabulary);
        const auto target = static_cast<std::size_t>(tokens[from + i + 1]);
        GRAFT_CHECK(InvalidArgument, target < size, "token ", target, " is not in the vocabulary of ", size, " tokens");
        const std::span<const float> q = logits.subspan(i * size, size);
        const double q_sum = log_sum(q);
        loss += q_sum - static_cast<double>(q[target]);
        if (!other) continue;
        const std::span<const float> p = wanted.subspan(i * size, size);
        const double p_sum = log_sum(p);
        reference_loss += p_sum - static_cast<double>(p[target]);
        for (std::size_t v = 0; v < size; ++v) {
          const double log_p = static_cast<double>(p[v]) - p_sum;
          kl += std::exp(log_p) * (log_p - static_cast<double>(q[v]) + q_sum);
        }
        agree += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
      }
      result.scored += width;
    }
    if (options.on_window)
      call_back([&] { options.on_window(w + 1, result.windows, std::exp(loss / static_cast<double>(result.scored))); });
  }
  const auto count = static_cast<double>(result.scored);
  result.perplexity = std::exp(loss / count);
  if (other) {
    result.reference_perplexity = std::exp(reference_loss / count);
    result.mean_kl = kl / count;
    result.top1_agreement = static_cast<double>(agree) / count;
  }
  return result;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
