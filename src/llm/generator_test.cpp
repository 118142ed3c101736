#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/test_model.h"

namespace graft {
namespace {

using test::SmallLanguageModel;
using ::testing::ElementsAre;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kContext = SmallLanguageModel::kContext;

// Greedy, one token at a time, from the beginning each time.
Ids expected_tokens(const SmallLanguageModel& small, Ids ids, int count) {
  Ids out;
  for (int i = 0; i < count; ++i) {
    Decoder decoder(small.model);
    const Decoder::Tokens all(ids);
    const std::span<float> logits = decoder.prefill({&all, 1});
    out.push_back(std::ranges::max_element(logits) - logits.begin());
    ids.push_back(out.back());
  }
  return out;
}

TEST(TextGenerator, GreedyIsTheLargestLogit) {
  const SmallLanguageModel small;
  const Ids prompt = {3, 1, 4, 1, 5};
  TextGenerator generator(small.model);
  const Generation result = generator.generate(prompt, {.max_new_tokens = 20});
  EXPECT_EQ(result.tokens, expected_tokens(small, prompt, 20));
  EXPECT_EQ(result.reason, FinishReason::length);
  EXPECT_EQ(generator.decoder().session().counters().graphs_built, 2u);
}

TEST(TextGenerator, ABatchGivesWhatItsPromptsGive) {
  const SmallLanguageModel small;
  const std::vector<Ids> prompts = {{3, 1, 4, 1, 5}, {9}, {2, 6, 5, 3, 5, 8, 9, 7, 9, 3}};
  for (const double temperature : {0.0, 2.0}) {
    GenerationOptions options;
    options.max_new_tokens = 20;
    options.temperature = temperature;
    TextGenerator together(small.model, {.rows = 3, .prefill_chunk_size = 4});
    const std::vector<Generation> results = together.generate(prompts, options);
    for (std::size_t r = 0; r < prompts.size(); ++r) {
      TextGenerator alone(small.model);
      options.seed = r;  // row r draws from seed + r
      EXPECT_EQ(results[r].tokens, alone.generate(prompts[r], options).tokens);
    }
    options.seed = 0;
  }
}

TEST(TextGenerator, DraftsDoNotChangeTheTokens) {
  std::int64_t accepted = 0, rejected = 0;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    const SmallLanguageModel small({}, 0.5, seed);
    for (const std::int64_t drafts : {1, 3, 8}) {
      for (const bool sample : {false, true}) {
        GenerationOptions options;
        options.max_new_tokens = 50;
        options.temperature = sample ? 0.2 : 0;
        options.repetition_penalty = sample ? 1.1 : 1;
        const std::vector<Ids> prompts = {{3, 1, 4, 1, 5, 9, 3, 1}, {2, 7, 2, 7, 2}};
        TextGenerator plain(small.model, {.rows = 2});
        const std::vector<Generation> expected = plain.generate(prompts, options);
        options.prompt_lookup_num_tokens = drafts;
        TextGenerator guessing(small.model, {.rows = 2});
        const std::vector<Generation> results = guessing.generate(prompts, options);
        for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(results[r].tokens, expected[r].tokens) << drafts << " " << r;
        EXPECT_LE(guessing.decoder().session().counters().graphs_built, 3u);
        accepted += guessing.stats().accepted_tokens;
        rejected += guessing.stats().drafted_tokens - guessing.stats().accepted_tokens;
        // Every run gives each row one token plus the accepted drafts.
        EXPECT_LT(guessing.stats().decode_runs, 50);
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 50);
}

TEST(TextGenerator, WhatIsInTheCacheIsNotComputedAgain) {
  const SmallLanguageModel small;
  TextGenerator generator(small.model, {.rows = 1});
  const Ids first = {3, 1, 4, 1, 5};
  const Generation answer = generator.generate(first, {.max_new_tokens = 6});
  Ids second = first;
  second.insert(second.end(), answer.tokens.begin(), answer.tokens.end());
  second.insert(second.end(), {7, 7});
  const Generation next = generator.generate(second, {.max_new_tokens = 6});
  EXPECT_EQ(generator.stats().reused_tokens, 10);  // the last of the answer was never an input
  EXPECT_EQ(next.tokens, expected_tokens(small, second, 6));
  // A prompt with another prefix, then the same prompt again.
  const Generation other = generator.generate(Ids{3, 1, 9}, {.max_new_tokens = 4});
  EXPECT_EQ(generator.stats().reused_tokens, 2);
  EXPECT_EQ(other.tokens, expected_tokens(small, {3, 1, 9}, 4));
  EXPECT_EQ(generator.generate(Ids{3, 1, 9}, {.max_new_tokens = 4}).tokens, other.tokens);
  EXPECT_EQ(generator.stats().reused_tokens, 2);
  // One that parts from what is held before its end.
  const Ids parted = {3, 1, 8, 2, 6};
  EXPECT_EQ(generator.generate(parted, {.max_new_tokens = 4}).tokens, expected_tokens(small, parted, 4));
  EXPECT_EQ(generator.stats().reused_tokens, 2);
}

TEST(TextGenerator, WhatOthersPutIntoTheCacheIsNotReused) {
  const SmallLanguageModel small;
  TextGenerator generator(small.model);
  const Ids prompt = {3, 1, 4, 1, 5};
  const Ids expected = generator.generate(prompt, {.max_new_tokens = 6}).tokens;
  const Ids other = {9, 9, 9};
  const Decoder::Tokens more(other);
  for (const std::int64_t kept : {0, 2, 10}) {
    generator.decoder().truncate(0, kept);
    generator.decoder().run({&more, 1}, 3, 1);
    EXPECT_EQ(generator.generate(prompt, {.max_new_tokens = 6}).tokens, expected) << kept;
    EXPECT_EQ(generator.stats().reused_tokens, 0);
  }
}

TEST(TextGenerator, EndsAtEosUnlessToldOtherwise) {
  const SmallLanguageModel endless;
  const Ids prompt = {3, 1, 4};
  const Ids tokens = expected_tokens(endless, prompt, 12);
  const auto at = static_cast<std::size_t>(std::ranges::find(tokens, tokens[5]) - tokens.begin());
  const Ids until(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  const SmallLanguageModel small({tokens[5]});
  TextGenerator generator(small.model);
  const Generation result = generator.generate(prompt, {.max_new_tokens = 12});
  EXPECT_EQ(result.tokens, until);
  EXPECT_EQ(result.reason, FinishReason::eos);
  EXPECT_EQ(generator.generate(prompt, {.max_new_tokens = 12, .ignore_eos = true}).tokens, tokens);
  TextGenerator other(endless.model);
  EXPECT_EQ(other.generate(prompt, {.max_new_tokens = 12, .eos_token_ids = {tokens[5]}}).tokens, until);
}

TEST(TextGenerator, EndsWhereTheContextEnds) {
  const SmallLanguageModel small;
  TextGenerator generator(small.model, {.length = 10});
  for (const std::int64_t drafts : {0, 4}) {
    const Generation result =
        generator.generate(Ids{1, 2, 1, 2, 1, 2}, {.max_new_tokens = 50, .prompt_lookup_num_tokens = drafts});
    EXPECT_EQ(result.reason, FinishReason::context);
    EXPECT_EQ(result.tokens, expected_tokens(small, {1, 2, 1, 2, 1, 2}, 5));  // the last token needs no cache slot
  }
  EXPECT_EQ(generator.generate(Ids(10, 3), {.max_new_tokens = 5}).tokens.size(), 1u);
  try {
    generator.generate(Ids(11, 3), {});
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "the prompt has 11 tokens, the context has room for 10");
  }
}

TEST(TextGenerator, CancelKeepsWhatThereIs) {
  const SmallLanguageModel small;
  TextGenerator generator(small.model);
  CancelToken cancel;
  cancel.cancel();
  const Generation none = generator.generate(Ids{1, 2, 3}, {.max_new_tokens = 50}, {}, &cancel);
  EXPECT_EQ(none.reason, FinishReason::cancelled);
  EXPECT_TRUE(none.tokens.empty());
  cancel.reset();
  EXPECT_EQ(generator.generate(Ids{1, 2, 3}, {.max_new_tokens = 9}, {}, &cancel).tokens,
            expected_tokens(small, {1, 2, 3}, 9));
}

TEST(TextGenerator, BadPromptsAndOptions) {
  const SmallLanguageModel small;
  TextGenerator generator(small.model);
  EXPECT_THROW(generator.generate(Ids{}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1, 99}), InvalidArgument);
  EXPECT_THROW(generator.generate(std::vector<Ids>{{1}, {2}}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.max_new_tokens = 0}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.temperature = -1}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.top_p = 1.5}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.repetition_penalty = 0}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.stop_strings = {""}}), InvalidArgument);
  EXPECT_THROW(generator.generate(Ids{1}, {.prompt_lookup_num_tokens = kContext}), InvalidArgument);
  EXPECT_THROW(small.model->tokenizer(), NotFound);
  EXPECT_THROW(small.model->encode("a"), NotFound);
  EXPECT_THROW(small.model->encode("\xff"), InvalidArgument);
  EXPECT_THROW(small.model->encode(""), InvalidArgument);  // it has no BOS
}

TEST(Perplexity, OfAModelAgainstItselfAndAnother) {
  const SmallLanguageModel small, other({}, 0.5, 9);
  Ids tokens;
  for (std::int64_t i = 0; i < 70; ++i) tokens.push_back(i * i % SmallLanguageModel::kVocabulary);
  const Perplexity same = perplexity(small.model, tokens, {.window = 16}, small.model);
  EXPECT_EQ(same.windows, 4);
  EXPECT_EQ(same.scored, 64);
  EXPECT_EQ(same.perplexity, same.reference_perplexity);
  EXPECT_NEAR(same.mean_kl, 0, 1e-9);
  EXPECT_EQ(same.top1_agreement, 1);
  // By hand.
  double loss = 0;
  for (std::size_t w = 0; w < 4; ++w) {
    for (std::size_t i = 0; i < 16; ++i) {
      Decoder decoder(small.model);
      const Decoder::Tokens piece = Decoder::Tokens(tokens).subspan(w * 16, i + 1);
      const std::span<float> logits = decoder.prefill({&piece, 1});
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      loss += std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(tokens[w * 16 + i + 1])]);
    }
  }
  EXPECT_NEAR(same.perplexity, std::exp(loss / 64), 1e-4);
  const Perplexity differ = perplexity(small.model, tokens, {.window = 16}, other.model);
  EXPECT_GT(differ.mean_kl, 0.01);
  EXPECT_LT(differ.top1_agreement, 1);
  EXPECT_THROW(perplexity(small.model, std::span(tokens).first(16), {.window = 16}), InvalidArgument);
}

}  // namespace
}  // namespace graft
