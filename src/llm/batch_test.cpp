#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "exec/test_allocations.h"
#include "llm/test_model.h"

// Continuous batching: a request's text does not depend on what runs beside it.
namespace graft {
namespace {

using test::SmallLanguageModel;
using test::some_ids;
using Ids = std::vector<std::int64_t>;
using Id = BatchGenerator::Id;

Ids alone(const SmallLanguageModel& small, const Ids& prompt, const GenerationOptions& options) {
  TextGenerator generator(small.model);
  return generator.generate(prompt, options).tokens;
}

struct Case {
  Ids prompt;
  GenerationOptions options;
  int joins = 0;  // before this step
};

// Prompts of many lengths, around the widths of runs and longer than a chunk; greedy, sampled, with drafts.
std::vector<Case> some_cases(bool drafts) {
  std::vector<Case> cases;
  const std::size_t lengths[] = {1, 5, 16, 17, 33, 40, 8, 31, 2, 50, 3};
  for (std::size_t i = 0; i < std::size(lengths); ++i) {
    Case c{some_ids(lengths[i], static_cast<unsigned>(i) + 7), {}, static_cast<int>(i * 5 / 2)};
    c.options.max_new_tokens = 3 + static_cast<std::int64_t>(i * 7 % 30);
    c.options.temperature = i % 3 == 2 ? 0.7 : 0;
    c.options.repetition_penalty = i % 4 == 3 ? 1.2 : 1;
    c.options.seed = i;
    c.options.prompt_lookup_num_tokens = drafts ? static_cast<std::int64_t>(i % 4) : 0;
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(BatchGenerator, EveryTextIsTheOneItHasAlone) {
  const SmallLanguageModel small;
  for (const bool drafts : {false, true}) {
    const std::vector<Case> cases = some_cases(drafts);
    for (const std::int64_t rows : {1, 3, 4, 7}) {
      BatchGenerator batch(small.model, {.threads = 2, .rows = rows, .prefill_chunk_size = 24});
      std::vector<Id> ids;
      std::size_t next = 0, most = 0;
      for (int step = 0; next < cases.size() || batch.waiting() + batch.running() > 0; ++step) {
        ASSERT_LT(step, 1000);
        for (; next < cases.size() && cases[next].joins <= step; ++next)
          ids.push_back(batch.submit(cases[next].prompt, cases[next].options));
        batch.step();
        most = std::max(most, batch.running());
      }
      EXPECT_GE(most, static_cast<std::size_t>(std::min<std::int64_t>(rows, 6))) << "rows were idle";
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::optional<Generation> result = batch.take(ids[i]);
        ASSERT_TRUE(result);
        EXPECT_EQ(result->tokens, alone(small, cases[i].prompt, cases[i].options)) << "request " << i;
        EXPECT_EQ(result->reason, FinishReason::length);
      }
      if (drafts) {
        EXPECT_GT(batch.stats().accepted_tokens, 0);
      }
    }
  }
}

TEST(BatchGenerator, NoPlanAfterPrepareWhateverJoinsAndLeaves) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.threads = 2, .rows = 6, .prefill_chunk_size = 24});
  batch.prepare(3);
  const auto plans = batch.decoder().session().counters().graphs_built;
  EXPECT_EQ(plans, 2u + 2 * 4);  // prompts 12 and 24 wide; 1, 2, 4 and 6 rows, with drafts and without
  for (const Case& c : some_cases(true)) batch.submit(c.prompt, c.options);
  while (batch.step()) {
  }
  EXPECT_EQ(batch.decoder().session().counters().graphs_built, plans);
}

TEST(BatchGenerator, AStepAllocatesNothingOfOurs) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "a sanitizer owns malloc";
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.threads = 2, .rows = 4, .prefill_chunk_size = 16});
  batch.prepare(2);
  for (unsigned i = 0; i < 3; ++i)
    batch.submit(some_ids(5 + i, i), {.max_new_tokens = 60, .temperature = 0.5, .prompt_lookup_num_tokens = 2});
  for (int i = 0; i < 10; ++i) batch.step();
  batch.submit(some_ids(60, 9), {.max_new_tokens = 9});  // prefilled meanwhile
  batch.step();
  batch.step();
  test::begin_counting_allocations();
  for (int i = 0; i < 6; ++i) batch.step();
  // ggml makes two small allocations in the run of a step; graft makes none.
  EXPECT_LE(test::end_counting_allocations(), 6 * 2);
  EXPECT_EQ(batch.running(), 4u);
}

TEST(BatchGenerator, PromptsAreReadBetweenTheStepsOfOthers) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2, .prefill_chunk_size = 16});
  const Id first = batch.submit({3, 1, 4}, {.max_new_tokens = 40});
  batch.step();
  EXPECT_EQ(batch.stats().new_tokens, 1) << "the first token is known with the prompt's last chunk";
  batch.submit(some_ids(60, 3), {.max_new_tokens = 4});  // four chunks
  const auto before = batch.stats().new_tokens;
  const auto after_step = [&] {
    batch.step();
    return batch.stats().new_tokens - before;
  };
  EXPECT_EQ(after_step(), 1) << "the step before has read a prompt";
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(after_step(), i) << "a chunk";
    EXPECT_EQ(after_step(), i + 1) << "the text beside a prompt goes on";
  }
  EXPECT_EQ(after_step(), 4 + 1) << "the last chunk gives a token";
  EXPECT_EQ(after_step(), 4 + 1 + 2) << "a token of each row";
  EXPECT_FALSE(batch.take(first));
}

TEST(BatchGenerator, RowsLeaveEarlyAndAreCancelled) {
  const SmallLanguageModel endless;
  const Ids prompts[] = {{3, 1, 4}, {2, 7, 1, 8}, {9, 9}, {1, 4, 1, 4}};
  const Ids first = alone(endless, prompts[0], {.max_new_tokens = 30});
  const SmallLanguageModel small({first[3]});  // EOS
  GenerationOptions options;
  options.max_new_tokens = 30;
  BatchGenerator batch(small.model, {.rows = 3});
  std::vector<Id> ids;
  GenerationOptions to_cut = options;
  to_cut.ignore_eos = true;
  for (std::size_t i = 0; i < 4; ++i) ids.push_back(batch.submit(prompts[i], i == 1 ? to_cut : options));
  for (int i = 0; i < 6; ++i) batch.step();
  EXPECT_TRUE(batch.cancel(ids[1]));
  EXPECT_FALSE(batch.cancel(ids[1]));
  const Generation cut = *batch.take(ids[1]);
  EXPECT_EQ(cut.reason, FinishReason::cancelled);
  const Ids whole = alone(small, prompts[1], to_cut);
  ASSERT_FALSE(cut.tokens.empty());
  EXPECT_LT(cut.tokens.size(), 30u);
  EXPECT_TRUE(std::ranges::equal(cut.tokens, std::span(whole).first(cut.tokens.size())));
  const Id late = batch.submit(prompts[0], options);
  EXPECT_TRUE(batch.cancel(late));  // it waits
  EXPECT_TRUE(batch.take(late)->tokens.empty());
  while (batch.step()) {
  }
  for (const std::size_t i : {0u, 2u, 3u}) {
    const Generation result = *batch.take(ids[i]);
    EXPECT_EQ(result.tokens, alone(small, prompts[i], options));
    EXPECT_EQ(result.reason, result.tokens.back() == first[3] ? FinishReason::eos : FinishReason::length);
  }
  EXPECT_THROW(batch.take(ids[0]), NotFound);
  EXPECT_THROW(batch.take(99), NotFound);
  EXPECT_FALSE(batch.step());
}

TEST(BatchGenerator, ACancelledRunChangesNothing) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2});
  const Ids prompts[] = {{3, 1, 4}, {2, 7, 1, 8}};
  std::vector<Id> ids;
  for (const Ids& prompt : prompts) ids.push_back(batch.submit(prompt, {.max_new_tokens = 12}));
  CancelToken cancel;
  RunOptions options;
  options.cancel = &cancel;
  for (int i = 0; i < 20; ++i) {
    cancel.cancel();
    if (batch.running() + batch.waiting() > 0) {
      EXPECT_THROW(batch.step(options), Cancelled);
    }
    cancel.reset();
    batch.step(options);
  }
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(batch.take(ids[i])->tokens, alone(small, prompts[i], {.max_new_tokens = 12}));
}

TEST(BatchGenerator, WhatARowHoldsIsNotComputedAgain) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 3});
  const Ids one = some_ids(20, 1), two = some_ids(20, 2);
  for (const Ids& prompt : {one, two}) batch.submit(prompt, {.max_new_tokens = 2});
  while (batch.step()) {
  }
  EXPECT_EQ(batch.stats().reused_tokens, 0);
  Ids longer = two;
  longer.resize(15);
  longer.insert(longer.end(), {(two[15] + 1) % SmallLanguageModel::kVocabulary, 2, 3});
  const Id id = batch.submit(longer, {.max_new_tokens = 8});
  while (batch.step()) {
  }
  EXPECT_EQ(batch.stats().reused_tokens, 15);
  EXPECT_EQ(batch.take(id)->tokens, alone(small, longer, {.max_new_tokens = 8}));
}

TEST(BatchGenerator, TheContextEndsAText) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2, .length = 10});
  const Id full = batch.submit({1, 2, 1, 2, 1, 2}, {.max_new_tokens = 50, .prompt_lookup_num_tokens = 4});
  const Id other = batch.submit({5}, {.max_new_tokens = 5});
  while (batch.step()) {
  }
  const Generation result = *batch.take(full);
  EXPECT_EQ(result.reason, FinishReason::context);
  EXPECT_EQ(result.tokens, alone(small, {1, 2, 1, 2, 1, 2}, {.max_new_tokens = 5}));
  EXPECT_EQ(batch.take(other)->tokens, alone(small, {5}, {.max_new_tokens = 5}));
}

TEST(BatchGenerator, BadRequestsAndCalls) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2, .length = 10});
  EXPECT_THROW(batch.submit({}), InvalidArgument);
  EXPECT_THROW(batch.submit({99}), InvalidArgument);
  EXPECT_THROW(batch.submit(Ids(11, 1)), InvalidArgument);
  EXPECT_THROW(batch.submit({1}, {.max_new_tokens = 0}), InvalidArgument);
  EXPECT_THROW(batch.submit({1}, {.prompt_lookup_num_tokens = 10}), InvalidArgument);
  EXPECT_THROW(batch.prepare(10), InvalidArgument);
  EXPECT_THROW(batch.prepare(-1), InvalidArgument);
  EXPECT_FALSE(batch.step());
  EXPECT_FALSE(batch.cancel(0));
  EXPECT_EQ(batch.waiting() + batch.running(), 0u);
  LanguageModelInfo info = small.model->info();
  info.encoder = EncoderInfo{};
  const auto encoding = std::make_shared<const LanguageModel>(small.model->program(), info, nullptr);
  EXPECT_THROW(BatchGenerator{encoding}, Unsupported);
}

// By hand: the logits after each of these tokens.
std::vector<std::vector<float>> logits_after(const SmallLanguageModel& small, const Ids& ids) {
  Decoder decoder(small.model);
  std::vector<std::vector<float>> all;
  decoder.score(ids, [&](std::span<float> logits) {
    for (std::size_t at = 0; at < logits.size(); at += SmallLanguageModel::kVocabulary)
      all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(at),
                       logits.begin() + static_cast<std::ptrdiff_t>(at + SmallLanguageModel::kVocabulary));
  });
  return all;
}

double logprob(const std::vector<float>& logits, std::int64_t id) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(sum);
}

TEST(BatchGenerator, LogprobsOfPromptAndText) {
  const SmallLanguageModel small;
  for (const std::size_t length : {1u, 5u, 24u, 60u}) {
    for (const bool drafts : {false, true}) {
      BatchGenerator batch(small.model, {.rows = 3, .prefill_chunk_size = 24});
      batch.prepare(drafts ? 2 : 0, true);
      const auto plans = batch.decoder().session().counters().graphs_built;
      const Ids prompt = some_ids(length, 5);
      const GenerationOptions options = {.max_new_tokens = 9,
                                         .temperature = 0.7,
                                         .repetition_penalty = 1.3,
                                         .seed = 4,
                                         .prompt_lookup_num_tokens = drafts ? 2 : 0};
      // The same prompt is in the cache, and others run beside it.
      batch.submit(prompt, options);
      while (batch.step()) {
      }
      batch.submit(some_ids(40, 8), {.max_new_tokens = 20});
      const Id id = batch.submit(prompt, options, {.logprobs = 3, .prompt_logprobs = true});
      batch.submit(some_ids(30, 9), {.max_new_tokens = 20});
      while (!batch.state(id).reason) batch.step();
      EXPECT_EQ(batch.decoder().session().counters().graphs_built, plans);
      const RequestState state = batch.state(id);
      EXPECT_EQ(state.reused_tokens, 0);
      EXPECT_EQ(Ids(state.tokens.begin(), state.tokens.end()), alone(small, prompt, options));
      ASSERT_EQ(state.prompt_logprobs.size(), length - 1);
      ASSERT_EQ(state.top_prompt_logprobs.size(), 3 * (length - 1));
      ASSERT_EQ(state.logprobs.size(), state.tokens.size());
      ASSERT_EQ(state.top_logprobs.size(), 3 * state.tokens.size());
      Ids all = prompt;
      all.insert(all.end(), state.tokens.begin(), state.tokens.end());
      const auto logits = logits_after(small, all);
      for (std::size_t i = 1; i < all.size(); ++i) {
        const bool of_prompt = i < length;
        const float found = of_prompt ? state.prompt_logprobs[i - 1] : state.logprobs[i - length];
        EXPECT_NEAR(found, logprob(logits[i - 1], all[i]), 2e-5) << i;
        const TokenLogprob first =
            of_prompt ? state.top_prompt_logprobs[3 * (i - 1)] : state.top_logprobs[3 * (i - length)];
        EXPECT_EQ(first.id, std::ranges::max_element(logits[i - 1]) - logits[i - 1].begin()) << i;
        EXPECT_NEAR(first.logprob, logprob(logits[i - 1], first.id), 2e-5) << i;
      }
      EXPECT_EQ(batch.take(id)->reason, FinishReason::length);
      EXPECT_THROW(batch.state(id), NotFound);
    }
  }
}

TEST(BatchGenerator, StateShowsTheTextAsItGrows) {
  const SmallLanguageModel small;
  const auto model = small.with_words();
  BatchGenerator batch(model, {.rows = 2});
  const Id id = batch.submit({3, 1, 4}, {.max_new_tokens = 6}), other = batch.submit({3}, {.max_new_tokens = 2});
  EXPECT_TRUE(batch.state(id).tokens.empty());
  std::size_t tokens = 0;
  std::string text;
  for (bool more = true; more;) {
    more = batch.step();
    const RequestState state = batch.state(id);
    EXPECT_GE(state.tokens.size(), tokens);
    EXPECT_TRUE(state.text.starts_with(text));
    tokens = state.tokens.size();
    text = state.text;
  }
  EXPECT_EQ(batch.state(id).reason, FinishReason::length);
  EXPECT_EQ(batch.state(other).tokens.size(), 2u);
  EXPECT_TRUE(batch.state(id).logprobs.empty());
  const Generation result = *batch.take(id);
  EXPECT_EQ(result.text, text);
  EXPECT_EQ(result.tokens.size(), 6u);
}

TEST(BatchGenerator, PenaltiesAndBiasesChangeTheText) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 4});
  const GenerationOptions options = {.max_new_tokens = 20};
  const Id plain = batch.submit({3, 1, 4}, options, RequestOptions{});
  const Id biased = batch.submit({3, 1, 4}, options, {.logit_bias = {{7, 100.f}}});
  const Id varied = batch.submit({3, 1, 4}, options, {.presence_penalty = 100});
  while (batch.step()) {
  }
  EXPECT_EQ(batch.take(plain)->tokens, alone(small, {3, 1, 4}, options));
  EXPECT_EQ(batch.take(biased)->tokens, Ids(20, 7));
  Ids tokens = batch.take(varied)->tokens;
  std::ranges::sort(tokens);
  EXPECT_EQ(std::ranges::adjacent_find(tokens), tokens.end()) << "a token came twice";
  EXPECT_THROW(batch.submit({3}, options, {.logprobs = 99}), InvalidArgument);
  EXPECT_EQ(batch.waiting(), 0u);
}

TEST(BatchGenerator, APrefixIsReusedWithTheSameSaltOnly) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 1});
  const Ids prompt = some_ids(20, 1);
  const auto reused = [&](std::uint64_t salt) {
    const Id id = batch.submit(prompt, {.max_new_tokens = 2}, {.cache_salt = salt});
    while (batch.step()) {
    }
    const std::int64_t tokens = batch.state(id).reused_tokens;
    EXPECT_EQ(batch.take(id)->tokens, alone(small, prompt, {.max_new_tokens = 2}));
    return tokens;
  };
  EXPECT_EQ(reused(1), 0);
  EXPECT_EQ(reused(1), 19);
  EXPECT_EQ(reused(2), 0);
  EXPECT_EQ(reused(2), 19);
  EXPECT_EQ(reused(0), 0);
}

// The order in which requests end, with one row.
std::vector<Id> ends(BatchGenerator& batch, std::vector<Id> ids) {
  std::vector<Id> order;
  for (bool more = true; more;) {
    more = batch.step();
    for (std::size_t i = 0; i < ids.size();) {
      if (!batch.take(ids[i])) {
        ++i;
        continue;
      }
      order.push_back(ids[i]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return order;
}

TEST(BatchGenerator, SmallerPrioritiesComeFirst) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 1});
  std::vector<Id> ids;
  for (const std::int64_t priority : std::vector<std::int64_t>{0, 3, -2, 0, 3, -2, INT64_MIN, INT64_MAX})
    ids.push_back(batch.submit(some_ids(9, 3), {.max_new_tokens = 3}, {.priority = priority}));
  EXPECT_THAT(ends(batch, ids), ::testing::ElementsAre(ids[6], ids[2], ids[5], ids[0], ids[3], ids[1], ids[4], ids[7]));
}

// One with many requests, one with few: they take turns by tokens.
TEST(BatchGenerator, CallersTakeTurns) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 1});
  std::vector<Id> ids;
  const auto submit = [&](std::uint64_t caller, std::int64_t tokens) {
    ids.push_back(
        batch.submit(some_ids(9, static_cast<int>(ids.size())), {.max_new_tokens = tokens}, {.caller = caller}));
    return ids.back();
  };
  std::vector<Id> many, few;
  for (int i = 0; i < 6; ++i) many.push_back(submit(1, 8));
  for (int i = 0; i < 6; ++i) few.push_back(submit(2, 1));
  // 9 + 2 x 8 - 1 = 24 tokens of the first caller's, then two of 10 of the other's, and so on.
  const std::vector<Id> expected = {many[0], few[0],  few[1], few[2],  many[1], few[3],
                                    few[4],  many[2], few[5], many[3], many[4], many[5]};
  EXPECT_EQ(ends(batch, ids), expected);
  // A pause is no credit.
  ids.clear();
  const Id a = submit(1, 8), b = submit(3, 1), c = submit(3, 1), d = submit(1, 8), e = submit(3, 1), f = submit(3, 1);
  EXPECT_EQ(ends(batch, ids), (std::vector<Id>{a, b, c, e, d, f}));
}

// The prompt of one is read between the chunks of another's.
TEST(BatchGenerator, PromptsOfCallersAreReadInTurns) {
  const SmallLanguageModel small;
  for (const bool same : {true, false}) {
    BatchGenerator batch(small.model, {.rows = 2, .prefill_chunk_size = 8});
    const Ids prompt_of_long = some_ids(48, 1), prompt_of_short = some_ids(9, 2);
    const Id longer = batch.submit(prompt_of_long, {.max_new_tokens = 2}, {.caller = 1});
    batch.step();
    const Id shorter = batch.submit(prompt_of_short, {.max_new_tokens = 2}, {.caller = same ? 1u : 2u});
    EXPECT_EQ(ends(batch, {longer, shorter}).front(), same ? longer : shorter);
    const Id again = batch.submit(prompt_of_long, {.max_new_tokens = 2}, {.caller = 2});
    while (batch.step()) {
    }
    EXPECT_EQ(batch.take(again)->tokens, alone(small, prompt_of_long, {.max_new_tokens = 2}));
  }
}

TEST(BatchGenerator, ManyCallersComeAndGo) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2});
  for (std::uint64_t caller = 0; caller < 10'500; ++caller) {
    const Id id = batch.submit(some_ids(2, 1), {.max_new_tokens = 1}, {.caller = caller});
    if (caller % 3 == 0) batch.cancel(id);
    while (batch.step()) {
    }
    EXPECT_TRUE(batch.take(id));
  }
}

// Allows the tokens of a fixed text alone, and ends with it.
class FixedText : public TokenMask {
 public:
  explicit FixedText(Ids ids) : ids_(std::move(ids)) {}
  void allowed(std::span<std::uint32_t> words) override {
    std::ranges::fill(words, 0u);
    const auto id = static_cast<std::size_t>(ids_[at_]);
    words[id / 32] = 1u << (id % 32);
  }
  void accept(std::int64_t id) override {
    if (id != ids_[at_]) throw InvalidArgument("another token");
    ++at_;
  }
  bool done() const override { return at_ == ids_.size(); }

 private:
  Ids ids_;
  std::size_t at_ = 0;
};

TEST(BatchGenerator, AMaskDecidesWhichTokensCome) {
  const SmallLanguageModel small;
  const Ids prompt = some_ids(9, 3);
  BatchGenerator batch(small.model, {.rows = 4});
  for (const double temperature : {0.0, 1.0}) {
    for (const std::int64_t drafts : {0, 3}) {
      GenerationOptions options{.max_new_tokens = 20, .temperature = temperature};
      options.prompt_lookup_num_tokens = drafts;
      const Ids wanted = {3, 7, 3, 7, 3, 7, 3, 7, 11};
      const Id masked = batch.submit(prompt, options, {.logprobs = 1, .mask = std::make_shared<FixedText>(wanted)});
      const Id plain = batch.submit(prompt, options);
      while (batch.step()) {
      }
      // Log-probabilities stay the model's.
      EXPECT_GE(batch.state(masked).top_logprobs[0].logprob, batch.state(masked).logprobs[0]);
      const auto result = batch.take(masked);
      EXPECT_EQ(result->tokens, wanted);
      EXPECT_EQ(result->reason, FinishReason::complete);
      EXPECT_EQ(batch.take(plain)->tokens, alone(small, prompt, options));
    }
  }
}

// A mask that allows nothing, or throws, ends its own request.
TEST(BatchGenerator, AMaskThatAllowsNothingEndsItsRequest) {
  struct Nothing : TokenMask {
    void allowed(std::span<std::uint32_t> words) override { std::ranges::fill(words, 0u); }
    void accept(std::int64_t) override {}
    bool done() const override { return false; }
  };
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2});
  const Ids prompt = some_ids(5, 4);
  const Id bad = batch.submit(prompt, {.max_new_tokens = 4}, {.mask = std::make_shared<Nothing>()});
  const Id good = batch.submit(prompt, {.max_new_tokens = 4});
  try {
    batch.step();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ExecutionError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the mask allows no token"));
  }
  while (batch.step()) {
  }
  EXPECT_EQ(batch.take(bad)->reason, FinishReason::cancelled);
  EXPECT_EQ(batch.take(good)->tokens, alone(small, prompt, {.max_new_tokens = 4}));
}

// What a mask throws keeps its type.
TEST(BatchGenerator, AMaskThatThrowsEndsItsRequest) {
  struct Throws : TokenMask {
    explicit Throws(int at) : method(at) {}
    void allowed(std::span<std::uint32_t> words) override {
      if (method == 0) throw 7;
      std::ranges::fill(words, 1u);
    }
    void accept(std::int64_t) override {
      if (method == 1) throw 7;
    }
    bool done() const override { return method == 2 ? throw 7 : false; }
    int method;
  };
  const SmallLanguageModel small;
  BatchGenerator batch(small.model, {.rows = 2});
  const Ids prompt = some_ids(5, 4);
  for (const int method : {0, 1, 2}) {
    const Id bad = batch.submit(prompt, {.max_new_tokens = 4}, {.mask = std::make_shared<Throws>(method)});
    const Id good = batch.submit(prompt, {.max_new_tokens = 4});
    EXPECT_THROW(while (batch.step()){}, int);
    while (batch.step()) {
    }
    EXPECT_EQ(batch.take(bad)->reason, FinishReason::cancelled);
    EXPECT_EQ(batch.take(good)->tokens, alone(small, prompt, {.max_new_tokens = 4}));
  }
}

}  // namespace
}  // namespace graft
