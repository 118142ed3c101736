#include "llm/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "llm/lookup.h"
#include "llm/stop.h"

// The distributions are compared with transformers' in test/python/llm/sampling_test.py.
namespace graft::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ids = std::vector<std::int64_t>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Sampler, DrawsAsOftenAsTheProbabilitiesSay) {
  const std::vector<float> logits = {0, 1, -kInfinity, 2, 0.5f, kNaN};
  GenerationOptions options;
  options.temperature = 1;
  Sampler sampler(options, 6, 7);
  std::vector<float> copy = logits;
  const std::vector<float> probabilities = Sampler(options, 6, 0).probabilities(copy);
  std::map<std::int64_t, int> drawn;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    copy = logits;
    ++drawn[sampler.next(copy)];
  }
  for (std::int64_t id = 0; id < 6; ++id)
    EXPECT_NEAR(drawn[id], kDraws * probabilities[static_cast<std::size_t>(id)], 300) << id;
  EXPECT_EQ(drawn[2] + drawn[5], 0);
}

TEST(Sampler, SeedsGiveTheSameDraws) {
  GenerationOptions options;
  options.temperature = 1;
  const auto draws = [&](std::uint64_t seed) {
    Sampler sampler(options, 50, seed);
    Ids out;
    for (int i = 0; i < 30; ++i) {
      std::vector<float> flat(50, 0.f);
      out.push_back(sampler.next(flat));
    }
    return out;
  };
  EXPECT_EQ(draws(3), draws(3));
  EXPECT_NE(draws(3), draws(4));
}

TEST(Sampler, LogitsWithoutANumberAreAnError) {
  for (const double temperature : {0.0, 1.0}) {
    GenerationOptions options;
    options.temperature = temperature;
    Sampler sampler(options, 3, 0);
    std::vector<float> none = {kNaN, -kInfinity, kNaN};
    EXPECT_THROW(sampler.next(none), ExecutionError);
  }
}

TEST(Lookup, TheLatestPlaceOfTheLongestMatch) {
  Ids draft;
  const auto drafted = [&](const Ids& tokens, std::int64_t ngram, std::int64_t most) {
    lookup_draft(tokens, ngram, most, draft);
    return draft;
  };
  EXPECT_THAT(drafted({1, 2, 3, 4, 1, 2}, 2, 8), ElementsAre(3, 4, 1, 2, 3, 4, 1, 2));
  EXPECT_THAT(drafted({1, 2, 3, 4, 1, 2}, 2, 2), ElementsAre(3, 4));
  EXPECT_THAT(drafted({1, 2, 3, 9, 2, 5, 1, 2}, 2, 1), ElementsAre(3));
  EXPECT_THAT(drafted({1, 2, 3, 9, 2, 5, 1, 2}, 1, 1), ElementsAre(5));
  EXPECT_THAT(drafted({1, 2, 7, 1, 2, 8, 1, 2}, 2, 1), ElementsAre(8));
  EXPECT_THAT(drafted({1, 2, 3}, 2, 4), IsEmpty());
  EXPECT_THAT(drafted({1, 1, 1}, 3, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(drafted({5, 1, 2, 1, 2}, 2, 5), ElementsAre(1, 2, 1, 2, 1));
  EXPECT_THAT(drafted({1}, 2, 4), IsEmpty());
  EXPECT_THAT(drafted({1, 1}, 2, 0), IsEmpty());
}

TEST(StopStrings, HoldBackWhatMayBeTheirBeginning) {
  StopStrings stops({"###", "the end"});
  EXPECT_EQ(stops.add("a #"), "a ");
  EXPECT_EQ(stops.add("#b th"), "##b ");
  EXPECT_EQ(stops.add("e "), "");
  EXPECT_EQ(stops.add("evening"), "the evening");
  EXPECT_EQ(stops.add(" the e"), " ");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.add("nd of it"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.finish(), "");
  EXPECT_EQ(stops.add("more"), "");
  StopStrings first_of_two({"now", "later"});
  EXPECT_EQ(first_of_two.add("till now, later"), "till ");
  StopStrings open({"xyz"});
  EXPECT_EQ(open.add("abxy"), "ab");
  EXPECT_EQ(open.finish(), "xy");
}

TEST(Sampler, PenaltiesCountWhatWasGenerated) {
  RequestOptions request;
  request.frequency_penalty = 0.5;
  request.presence_penalty = 0.25;
  request.logit_bias = {{3, 2.f}, {0, -1.f}};
  Sampler sampler({}, 5, 0, request);
  EXPECT_TRUE(sampler.changes_logits());
  const std::vector<std::int64_t> prompt = {4, 4};  // is not counted
  sampler.see(prompt);
  for (const std::int64_t id : {1, 1, 2}) sampler.count_generated(id);
  std::vector<float> logits = {0, 0, 0, 0, 1.5f};
  EXPECT_EQ(sampler.next(logits), 3);
  EXPECT_THAT(logits, ElementsAre(-1, -1.25f, -0.75f, 2, 1.5f));
  EXPECT_FALSE(Sampler({}, 5, 0).changes_logits());
}

TEST(Sampler, RequestOptionsThatMakeNoSense) {
  const auto with = [](auto change) {
    RequestOptions request;
    change(request);
    Sampler({}, 5, 0, request);
  };
  EXPECT_NO_THROW(with([](RequestOptions& r) { r.logprobs = 5; }));
  EXPECT_THROW(with([](RequestOptions& r) { r.logprobs = 6; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.logprobs = -1; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.prompt_logprobs = true; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.frequency_penalty = kInfinity; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.presence_penalty = static_cast<double>(kNaN); }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.logit_bias = {{5, 1.f}}; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.logit_bias = {{-1, 1.f}}; }), InvalidArgument);
  EXPECT_THROW(with([](RequestOptions& r) { r.logit_bias = {{1, kNaN}}; }), InvalidArgument);
}

// Of a tokenizer that has an id behind the logits.
class MaskOfMore : public TokenMask {
 public:
  void allowed(std::span<std::uint32_t> words) override {
    ASSERT_GE(words.size(), 2u);
    std::ranges::fill(words, 0u);
    words[0] = 1u << 5;
  }
  void accept(std::int64_t) override {}
  bool done() const override { return false; }
};

TEST(Sampler, MasksOfVocabulariesWithMoreTokensThanLogits) {
  RequestOptions request;
  request.mask = std::make_shared<MaskOfMore>();
  Sampler sampler({.repetition_penalty = 2}, 32, 0, request);
  const std::vector<std::int64_t> seen{5, 32};
  sampler.see(seen);
  std::vector<float> logits(32, 1.F);
  EXPECT_EQ(sampler.next(logits), 5);
}

}  // namespace
}  // namespace graft::llm
