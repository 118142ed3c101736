#include <gtest/gtest.h>

#include "base/test_errors.h"
#include "exec/test_allocations.h"
#include "llm/sampler.h"
#include "llm/test_model.h"

// Logits do not depend on how tokens are divided into runs and padded.
namespace graft {
namespace {

using test::expect_error;
using test::SmallLanguageModel;
using test::some_ids;
using Ids = std::vector<std::int64_t>;
using Tokens = Decoder::Tokens;

constexpr std::int64_t kVocabulary = SmallLanguageModel::kVocabulary;

std::vector<float> prefill(Decoder& decoder, const std::vector<Ids>& rows) {
  const std::vector<Tokens> spans(rows.begin(), rows.end());
  const std::span<float> logits = decoder.prefill(spans);
  return {logits.begin(), logits.end()};
}

void expect_near(std::span<const float> a, std::span<const float> b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5f) << "at " << i;
}

TEST(Decoder, ChunksAndStepsGiveWhatTheWholeGives) {
  const SmallLanguageModel small;
  const Ids ids = some_ids(40, 1);
  Decoder whole(small.model);
  const std::vector<float> expected = prefill(whole, {ids});
  Decoder chunks(small.model, {.threads = 2, .length = 64, .prefill_chunk_size = 7});
  expect_near(prefill(chunks, {ids}), expected);
  EXPECT_EQ(chunks.length(0), 40);
  std::vector<float> all;
  Decoder scored(small.model, {.prefill_chunk_size = 9});
  scored.score(ids, [&](std::span<float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
  ASSERT_EQ(all.size(), 40u * kVocabulary);
  expect_near(std::span(all).last(kVocabulary), expected);
}

// So a prompt gives the same numbers whether its beginning was in the cache or not. Runs of up to 8 tokens, which
// generators do not make of prompts, have kernels of their own.
TEST(Decoder, RunsOfNineTokensAndMoreHaveTheBitsOfTheWhole) {
  constexpr std::int64_t kTokens = 150;
  const SmallLanguageModel small({}, 0.5, 1, kTokens);
  const Ids ids = some_ids(kTokens, 1);
  int compared = 0;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    const auto logits = [&](std::int64_t chunk) {
      Decoder decoder(small.model, {.threads = 1, .kv_type = type, .prefill_chunk_size = chunk});
      std::vector<float> all;
      decoder.score(ids, [&](std::span<float> some) { all.insert(all.end(), some.begin(), some.end()); });
      return all;
    };
    const std::vector<float> whole = logits(kTokens);
    ASSERT_EQ(whole.size(), static_cast<std::size_t>(kTokens * kVocabulary));
    for (std::int64_t chunk = 9; chunk < kTokens; ++chunk) {
      if (const std::int64_t last = kTokens % chunk; last > 0 && last < 9) continue;
      ASSERT_EQ(logits(chunk), whole) << name(type) << ", runs of " << chunk;
      ++compared;
    }
  }
  EXPECT_GT(compared, 300);
}

TEST(Decoder, PromptsOfAllLengthsShareThePlansOfTheirBuckets) {
  const SmallLanguageModel small;
  const DecoderOptions options{.threads = 2, .rows = 2, .length = 64, .prefill_chunk_size = 32, .buckets = {8, 16, 32}};
  Decoder padded(small.model, options), scored(small.model, options), exact(small.model, {.rows = 2, .length = 64});
  for (std::size_t count = 1; count <= 44; ++count) {
    const Ids ids = some_ids(count, static_cast<unsigned>(count));
    for (Decoder* decoder : {&padded, &scored, &exact}) decoder->truncate(0, 0);
    const std::vector<float> expected = prefill(exact, {ids});
    expect_near(prefill(padded, {ids}), expected);
    std::vector<float> all;
    scored.score(ids, [&](std::span<float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
    ASSERT_EQ(all.size(), count * kVocabulary);
    expect_near(std::span(all).last(kVocabulary), expected);
    EXPECT_EQ(padded.length(0), static_cast<std::int64_t>(count));
  }
  EXPECT_EQ(padded.session().counters().graphs_built, 3u);
  for (Decoder* decoder : {&padded, &exact}) decoder->truncate(0, 0);
  const std::vector<Ids> rows = {some_ids(3, 1), some_ids(21, 2)};
  expect_near(prefill(padded, rows), prefill(exact, rows));
}

TEST(Decoder, BucketsThatMakeNoSenseAreRefused) {
  const SmallLanguageModel small;
  for (const std::vector<std::int64_t>& buckets : std::vector<std::vector<std::int64_t>>{{0}, {8, 8}, {16, 8}, {8, 33}})
    expect_error<InvalidArgument>([&] { Decoder(small.model, {.prefill_chunk_size = 32, .buckets = buckets}); },
                                  "buckets must ascend from 1");
}

TEST(Decoder, StepsGiveWhatTheWholeGives) {
  const SmallLanguageModel small;
  const Ids ids = some_ids(40, 1);
  Decoder whole(small.model), steps(small.model);
  const std::vector<float> expected = prefill(whole, {ids});
  std::span<float> logits;
  for (const std::int64_t id : ids) {
    const Tokens one(&id, 1);
    logits = steps.run({&one, 1}, 1, 1);
  }
  expect_near(logits, expected);
  EXPECT_EQ(steps.session().counters().graphs_built, 1u);
}

TEST(Decoder, RowsOfABatchAreWhatTheyAreAlone) {
  const SmallLanguageModel small;
  const std::vector<Ids> rows = {some_ids(3, 1), some_ids(20, 2), some_ids(11, 3)};
  Decoder batch(small.model, {.rows = 3, .prefill_chunk_size = 6});
  const std::vector<float> together = prefill(batch, rows);
  // One row continues with two tokens, one with none, one with one.
  const Ids two = {4, 5}, one = {6};
  const std::vector<Tokens> next = {two, {}, one};
  const std::span<float> later = batch.run(next, 3, 2);
  EXPECT_EQ(batch.length(1), 20);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Decoder alone(small.model);
    expect_near(std::span(together).subspan(r * kVocabulary, kVocabulary), prefill(alone, {rows[r]}));
    if (next[r].empty()) continue;
    const std::vector<float> expected = prefill(alone, {Ids(next[r].begin(), next[r].end())});
    expect_near(later.subspan((r * 2 + 1) * kVocabulary, kVocabulary), expected);
  }
}

TEST(Decoder, TruncatedSequencesGoOn) {
  const SmallLanguageModel small;
  const Ids ids = some_ids(30, 5);
  Decoder decoder(small.model, {.rows = 2});
  const std::vector<float> expected = prefill(decoder, {ids, ids});
  decoder.truncate(0, 10);
  decoder.truncate(1, 25);
  expect_near(prefill(decoder, {Ids(ids.begin() + 10, ids.end()), Ids(ids.begin() + 25, ids.end())}), expected);
  EXPECT_THROW(decoder.truncate(0, 31), InvalidArgument);
}

TEST(Decoder, ErrorsChangeNothing) {
  const SmallLanguageModel small;
  Decoder decoder(small.model, {.length = 20, .prefill_chunk_size = 4});
  const Ids ids = some_ids(20, 5);
  Decoder fresh(small.model, {.length = 20});
  const std::vector<float> expected = prefill(fresh, {ids});
  prefill(decoder, {Ids(ids.begin(), ids.begin() + 12)});
  expect_error<InvalidArgument>([&] { prefill(decoder, {some_ids(9, 1)}); },
                                "would have 21 tokens, the context has room for 20");
  expect_error<InvalidArgument>([&] { prefill(decoder, {{1, 24}}); }, "token 24 is not in the vocabulary of 24");
  expect_error<InvalidArgument>([&] { prefill(decoder, {{-1}}); }, "token -1");
  expect_error<InvalidArgument>([&] { prefill(decoder, {{1}, {2}}); }, "a batch of 2 sequences: the cache has 1 rows");
  CancelToken cancel;
  cancel.cancel();
  RunOptions options;
  options.cancel = &cancel;
  const Tokens more(ids.data(), 8);
  EXPECT_THROW(decoder.prefill({&more, 1}, options), Cancelled);
  EXPECT_EQ(decoder.length(0), 12);
  expect_near(prefill(decoder, {Ids(ids.begin() + 12, ids.end())}), expected);
  EXPECT_THROW(Decoder(small.model, {.length = 97}), InvalidArgument);
  EXPECT_THROW(Decoder(small.model, {.rows = 0}), InvalidArgument);
  EXPECT_THROW(Decoder(small.model, {.prefill_chunk_size = 0}), InvalidArgument);
}

TEST(Decoder, AFailureTakesBackTheChunksBeforeIt) {
  const SmallLanguageModel small;
  Decoder decoder(small.model, {.prefill_chunk_size = 4}), fresh(small.model);
  const Ids ids = some_ids(12, 7);
  int chunks = 0;
  const auto fail_at_the_second = [&](std::span<float>) {
    if (++chunks == 2) throw std::runtime_error("enough");
  };
  EXPECT_THROW(decoder.score(ids, fail_at_the_second), std::runtime_error);
  EXPECT_EQ(decoder.length(0), 0);
  expect_near(prefill(decoder, {ids}), prefill(fresh, {ids}));
}

TEST(Decoder, AHundredTokensAndThreeHundredStepsMakeTwoPlans) {
  const SmallLanguageModel small({}, 0.5, 1, 512);
  Decoder decoder(small.model);
  const Ids prompt = some_ids(100, 1);
  const Tokens tokens(prompt);
  std::span<float> logits = decoder.prefill({&tokens, 1});
  for (int i = 0; i < 300; ++i) {
    const std::int64_t next = std::ranges::max_element(logits) - logits.begin();
    const Tokens one(&next, 1);
    logits = decoder.run({&one, 1}, 1, 1);
  }
  EXPECT_EQ(decoder.length(0), 400);
  EXPECT_EQ(decoder.session().counters().plan_misses, 2u);  // the prompt's and the step's
  EXPECT_EQ(decoder.session().counters().graphs_built, 2u);
}

TEST(Decoder, AContextOf32768TokensIsDecodedWithOnePlanAndNoMemoryOfOurs) {
  constexpr std::int64_t kLong = 32768, kChunk = 512, kSteps = 4;
  const SmallLanguageModel small({}, 0.5, 1, kLong);
  Decoder decoder(small.model);
  ASSERT_EQ(decoder.capacity(), kLong);
  const Ids ids = some_ids(kLong, 1);
  const auto run_chunk = [&](std::int64_t width) {
    const Tokens tokens(ids.data() + decoder.length(0), static_cast<std::size_t>(width));
    decoder.run({&tokens, 1}, width, 1);
  };
  const Counters& counters = decoder.session().counters();
  run_chunk(kChunk);
  run_chunk(1);
  EXPECT_EQ(counters.plan_misses, 2u);
  // Steps every 512 tokens up to the full context, its last tokens included.
  long allocations = 0;
  std::int64_t steps = 1;
  while (decoder.length(0) + kChunk <= kLong) {
    run_chunk(std::min(kChunk, kLong - kSteps - decoder.length(0)));
    test::begin_counting_allocations();
    for (std::int64_t i = 0; i < kSteps && decoder.length(0) < kLong; ++i, ++steps) run_chunk(1);
    allocations += test::end_counting_allocations();
  }
  while (decoder.length(0) < kLong) run_chunk(1);
  EXPECT_LE(counters.plan_misses, 3u) << "the last chunk may be a shorter one";
  if (test::kCountsAllocations) {
    EXPECT_LE(allocations, 2 * steps);  // ggml's two in each compute
  }
  EXPECT_EQ(counters.state_bytes, kLong * SmallLanguageModel::kSize * 4 * 2 + 8u);
  const Tokens more(ids.data(), 1);
  expect_error<InvalidArgument>(
      [&] {
        decoder.run({&more, 1}, 1, 1);
      },
      "would have 32769 tokens, the context has room for 32768");
}

TEST(Decoder, StepsAllocateNothingOfOurs) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  const SmallLanguageModel small;
  Decoder decoder(small.model);
  GenerationOptions options;
  options.temperature = 0.7;
  options.top_k = 12;
  options.top_p = 0.9;
  options.min_p = 0.01;
  options.repetition_penalty = 1.1;
  llm::Sampler sampler(options, kVocabulary, 1);
  Ids sequence = some_ids(10, 1);
  sequence.reserve(SmallLanguageModel::kContext);
  prefill(decoder, {sequence});
  const auto step = [&] {
    const Tokens last(&sequence.back(), 1);
    sequence.push_back(sampler.next(decoder.run({&last, 1}, 1, 1)));
    sampler.see({&sequence.back(), 1});
  };
  step();
  constexpr int kSteps = 60;
  test::begin_counting_allocations();
  for (int i = 0; i < kSteps; ++i) step();
  // ggml makes two small allocations in each compute; graft makes none.
  EXPECT_LE(test::end_counting_allocations(), 2 * kSteps);
  const Counters& counters = decoder.session().counters();
  EXPECT_EQ(counters.graphs_built, 2u);
  EXPECT_EQ(counters.io_copies, 0u);
}

}  // namespace
}  // namespace graft
