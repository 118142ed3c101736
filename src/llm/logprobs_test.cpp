#include "llm/logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace graft::llm {
namespace {

using ::testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int64_t> ids_of(std::span<const TokenLogprob> entries) {
  std::vector<std::int64_t> ids;
  for (const TokenLogprob& entry : entries) ids.push_back(entry.id);
  return ids;
}

TEST(Logprobs, AreThoseOfSoftmaxWithTheMostLikelyFirst) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(500);
  for (float& logit : logits) logit = normal(rng);
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  Logprobs logprobs(7, 2);
  logprobs.add(logits, 123);
  logprobs.add(logits, 4);
  ASSERT_EQ(logprobs.of_tokens().size(), 2u);
  EXPECT_NEAR(logprobs.of_tokens()[0], static_cast<double>(logits[123]) - static_cast<double>(std::log(sum)), 1e-5);
  std::vector<std::int64_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::ranges::sort(order, std::greater<>{}, [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; });
  order.resize(7);
  ASSERT_EQ(logprobs.of_top().size(), 14u);
  EXPECT_EQ(ids_of(logprobs.of_top().first(7)), order);
  EXPECT_EQ(ids_of(logprobs.of_top().last(7)), order);
}

TEST(Logprobs, EqualOnesComeInTheOrderOfTheirIds) {
  const std::vector<float> logits = {1, 2, 2, 1, 2, 0};
  Logprobs logprobs(4, 1);
  logprobs.add(logits, 0);
  EXPECT_THAT(ids_of(logprobs.of_top()), ElementsAre(1, 2, 4, 0));
}

TEST(Logprobs, WhatCannotComeHasMinusInfinity) {
  const std::vector<float> logits = {-kInfinity, 0, kNaN, 0};
  Logprobs logprobs(4, 2);
  logprobs.add(logits, 2);
  logprobs.add(logits, 3);
  EXPECT_EQ(logprobs.of_tokens()[0], -kInfinity);
  EXPECT_NEAR(logprobs.of_tokens()[1], std::log(0.5), 1e-6);
  EXPECT_THAT(ids_of(logprobs.of_top().first(4)), ElementsAre(1, 3, 0, 2));
  EXPECT_EQ(logprobs.of_top()[3].logprob, -kInfinity);
}

TEST(Logprobs, OfTokensAlone) {
  Logprobs none(0, 1);
  EXPECT_TRUE(none.wanted());
  none.add(std::vector<float>{0, 0}, 1);
  EXPECT_TRUE(none.of_top().empty());
  EXPECT_NEAR(none.of_tokens()[0], std::log(0.5), 1e-6);
  EXPECT_FALSE(Logprobs().wanted());
}

}  // namespace
}  // namespace graft::llm
