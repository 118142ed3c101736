#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/loop.h"

namespace graft {

std::string_view name(FinishReason reason) {
  constexpr std::string_view names[] = {"length", "eos", "stop_string", "context", "cancelled", "complete"};
  return names[static_cast<std::size_t>(reason)];
}

// The prompts of a call start together, prompt r in row r, and the call ends when the last one is done.
class TextGenerator::Impl {
 public:
  Impl(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options)
      : loop(std::move(model), options, llm::Loop::CallbackErrors::propagate) {}

  using Images = std::vector<std::shared_ptr<const llm::PreparedImages>>;  // by prompt

  std::vector<Generation> generate(std::span<const ImagePrompt> prompts, const GenerationOptions& options,
                                   const OnText& on_text, const CancelToken* cancel) {
    std::vector<std::vector<std::int64_t>> tokens;
    Images images;
    for (const ImagePrompt& prompt : prompts) {
      tokens.push_back(prompt.tokens);
      images.push_back(prompt.images);
    }
    return generate(tokens, options, on_text, cancel, images);
  }

  std::vector<Generation> generate(std::span<const std::vector<std::int64_t>> prompts, const GenerationOptions& options,
                                   const OnText& on_text, const CancelToken* cancel, const Images& images = {}) {
    const llm::Use use(loop.decoder().in_use, "TextGenerator", "generate()");
    const auto start = Clock::now();
    RunOptions run_options;
    run_options.cancel = cancel;
    const auto& encoder = loop.model().info().encoder;
    if (!encoder || encoder->takes_features) return decode(prompts, options, on_text, run_options, start, images);
    llm::check(options);
    loop.check_adapters(options, prompts.size());
    std::vector<const Adapter*> adapters;
    for (const auto& adapter : options.adapters) adapters.push_back(adapter.get());
    GRAFT_CHECK(InvalidArgument, !encoder->decoder_start_token_ids.empty(),
                "the model does not say what its decoder begins with (decoder_start_token_id)");
    const std::vector<Decoder::Tokens> encoder_inputs(prompts.begin(), prompts.end());
    run_options.adapters = adapters;
    loop.decoder().encode(encoder_inputs, run_options);
    run_options.adapters = {};  // the loop's own from here on
    const std::vector<std::vector<std::int64_t>> begun(prompts.size(), encoder->decoder_start_token_ids);
    return decode(begun, options, on_text, run_options, start);
  }

  llm::Loop loop;

 private:
  // `prompts`: of the decoder. `start`: of the call.
  std::vector<Generation> decode(std::span<const std::vector<std::int64_t>> prompts, const GenerationOptions& options,
                                 const OnText& on_text, const RunOptions& run_options, Clock::time_point start,
                                 const Images& images = {}) {
    loop.stats = {};
    const std::size_t rows = loop.rows().size();
    GRAFT_CHECK(InvalidArgument, !prompts.empty() && prompts.size() <= rows, "a batch of ", prompts.size(),
                " prompts: the cache has ", rows, " rows");
    for (std::size_t r = 0; r < prompts.size(); ++r)
      loop.check(prompts[r], options, prompts.size(), images.empty() ? nullptr : images[r].get());
    loop.drafts = options.prompt_lookup_num_tokens;
    try {
      for (std::size_t r = 0; r < prompts.size(); ++r) {
        llm::Sequence::OnText show;
        if (on_text) show = [&on_text, r](std::string_view text) { on_text(r, text); };
        auto sequence =
            std::make_unique<llm::Sequence>(loop.model(), prompts[r], options, options.seed + r,
                                            loop.decoder().options.length, std::move(show), RequestOptions(), r);
        if (!images.empty()) sequence->set_images(images[r]);
        const std::int64_t reused = loop.reusable(r, *sequence);
        loop.begin(std::move(sequence), r, reused);
      }
      loop.stats.prefill_seconds = seconds_since(start);
      bool read = false;
      try {
        loop.read_prompts(run_options);
        read = true;
        while (loop.going() > 0) loop.step(prompts.size(), run_options);
      } catch (const Cancelled&) {
        if (!read) loop.stats.prefill_seconds = seconds_since(start);
      }
      loop.stats.decode_seconds = seconds_since(start) - loop.stats.prefill_seconds;
      std::vector<Generation> results;
      for (std::size_t r = 0; r < prompts.size(); ++r)
        results.push_back(std::move(loop.leave(r, FinishReason::cancelled)->result()));
      return results;
    } catch (...) {
      loop.clear();
      throw;
    }
  }
};

TextGenerator::TextGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options) try
    : impl_(std::make_unique<Impl>(std::move(model), options)) {
} catch (...) {
  rethrow_typed();
}
TextGenerator::TextGenerator(TextGenerator&&) noexcept = default;
TextGenerator& TextGenerator::operator=(TextGenerator&&) noexcept = default;
TextGenerator::~TextGenerator() = default;

std::vector<Generation> TextGenerator::generate(std::span<const std::vector<std::int64_t>> prompts,
                                                const GenerationOptions& options, const OnText& on_text,
                                                const CancelToken* cancel) try {
  return impl_->generate(prompts, options, on_text, cancel);
} catch (...) {
  rethrow_typed();
}

Generation TextGenerator::generate(const std::vector<std::int64_t>& prompt, const GenerationOptions& options,
                                   const OnText& on_text, const CancelToken* cancel) try {
  return std::move(generate({&prompt, 1}, options, on_text, cancel)[0]);
} catch (...) {
  rethrow_typed();
}

std::vector<Generation> TextGenerator::generate(std::span<const ImagePrompt> prompts, const GenerationOptions& options,
                                                const OnText& on_text, const CancelToken* cancel) try {
  return impl_->generate(prompts, options, on_text, cancel);
} catch (...) {
  rethrow_typed();
}

Generation TextGenerator::generate(const ImagePrompt& prompt, const GenerationOptions& options, const OnText& on_text,
                                   const CancelToken* cancel) try {
  return std::move(generate({&prompt, 1}, options, on_text, cancel)[0]);
} catch (...) {
  rethrow_typed();
}

const GenerationStats& TextGenerator::stats() const { return impl_->loop.stats; }
Decoder& TextGenerator::decoder() { return impl_->loop.public_decoder(); }

}  // namespace graft
