#include "llm/speech_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace graft::llm {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kFirst = 100;  // "<|0.00|>"

struct Part {
  double start, end;
  Ids tokens;
};

void expect_window(const Ids& tokens, std::int64_t seek, std::int64_t frames, const std::vector<Part>& parts,
                   std::int64_t next) {
  const SpeechWindow window = split_window(tokens, kFirst, seek, frames);
  ASSERT_EQ(window.parts.size(), parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_DOUBLE_EQ(window.parts[i].start, parts[i].start) << i;
    EXPECT_DOUBLE_EQ(window.parts[i].end, parts[i].end) << i;
    EXPECT_EQ(Ids(window.parts[i].tokens.begin(), window.parts[i].tokens.end()), parts[i].tokens) << i;
  }
  EXPECT_EQ(window.frames, next);
}

TEST(SpeechRules, AWindowWithoutPairsIsOnePart) {
  expect_window({}, 0, 3000, {{0, 30, {}}}, 3000);
  expect_window({5, 6}, 100, 3000, {{1, 31, {5, 6}}}, 3000);
  expect_window({5, 6}, 0, 55, {{0, .54, {5, 6}}}, 55);  // a whole number of time stamps
  // The last time stamp says where the text ends, but for 0.00.
  expect_window({100, 5, 6}, 0, 3000, {{0, 30, {100, 5, 6}}}, 3000);
  expect_window({103, 5, 6}, 0, 3000, {{0, .06, {103, 5, 6}}}, 3000);
  expect_window({100, 5, 150}, 200, 3000, {{2, 3, {100, 5, 150}}}, 3000);
}

TEST(SpeechRules, APairEndsAPartAndTheRestIsHeardAgain) {
  expect_window({100, 5, 150, 150, 6}, 0, 3000, {{0, 1, {100, 5, 150, 150}}}, 100);
  expect_window({100, 5, 150, 150, 6, 200, 210, 7}, 50, 3000,
                {{.5, 1.5, {100, 5, 150}}, {1.5, 2.5, {150, 6, 200, 210}}}, 200);
}

TEST(SpeechRules, ASingleTimestampAtTheEndEndsTheWindow) {
  expect_window({100, 5, 150, 150, 6, 200}, 0, 3000, {{0, 1, {100, 5, 150}}, {1, 2, {150, 6, 200}}}, 3000);
}

class TimestampRules : public testing::Test {
 protected:
  // The ids that may come, of 110: text is below 90, 90 ends it, 99 is <|notimestamps|>.
  Ids allowed(const Ids& generated, std::vector<float> logits = std::vector<float>(110, 0), bool timestamps = true) {
    SpeechRules(info_, 90, timestamps).apply(logits, generated);
    Ids ids;
    for (std::size_t i = 0; i < logits.size(); ++i)
      if (logits[i] != -std::numeric_limits<float>::infinity()) ids.push_back(static_cast<std::int64_t>(i));
    return ids;
  }
  static Ids range(std::int64_t begin, std::int64_t end) {
    Ids ids;
    for (std::int64_t i = begin; i < end; ++i) ids.push_back(i);
    return ids;
  }
  // So high that text wins against the sum of all time stamps.
  static std::vector<float> text_first() {
    std::vector<float> logits(110, 0);
    for (std::size_t i = 0; i < 100; ++i) logits[i] = 10;
    return logits;
  }

  SpeechInfo info_ = [] {
    SpeechInfo info;
    info.no_timestamps_id = 99;
    info.max_initial_timestamp_index = 2;
    return info;
  }();
};

TEST_F(TimestampRules, TheFirstTokenIsAnEarlyTimestamp) { EXPECT_EQ(allowed({}, text_first()), range(100, 103)); }

TEST_F(TimestampRules, AfterTheFirstTimestampComesText) { EXPECT_EQ(allowed({102}, text_first()), range(0, 99)); }

TEST_F(TimestampRules, ATimestampAfterTextIsFollowedByAnotherOrTheEnd) {
  Ids expected = range(90, 99);
  for (const std::int64_t id : range(105, 110)) expected.push_back(id);
  EXPECT_EQ(allowed({102, 5, 105}, text_first()), expected);
}

TEST_F(TimestampRules, TimestampsGrow) {
  Ids expected = range(0, 99);
  for (const std::int64_t id : range(103, 110)) expected.push_back(id);
  EXPECT_EQ(allowed({102, 5}, text_first()), expected);
}

TEST_F(TimestampRules, ATimestampComesWhereAllTogetherAreMoreLikelyThanAnyOtherToken) {
  EXPECT_EQ(allowed({102, 5}), range(103, 110));  // 7 against 1
  std::vector<float> logits(110, 0);
  logits[7] = std::log(6.9f);
  EXPECT_EQ(allowed({102, 5}, logits), range(103, 110));
  logits[7] = std::log(7.1f);
  EXPECT_EQ(allowed({102, 5}, logits).size(), 99u + 7);
}

TEST_F(TimestampRules, SuppressedTokensNeverCome) {
  info_.suppressed_tokens = {3, 4};
  info_.suppressed_first_tokens = {90, 5};
  Ids expected = range(0, 110);
  std::erase_if(expected, [](std::int64_t id) { return id == 3 || id == 4; });
  EXPECT_EQ(allowed({8}, text_first(), false), expected);
  std::erase_if(expected, [](std::int64_t id) { return id == 5 || id == 90; });
  EXPECT_EQ(allowed({}, text_first(), false), expected);
}

TEST(SpeechRules, CompressionRatio) {
  // Python: len(b) / len(zlib.compress(b)) for b = bytes of 100 times the token 5, two bytes each.
  EXPECT_DOUBLE_EQ(compression_ratio(Ids(100, 5), 51865), 200. / 13);
  EXPECT_DOUBLE_EQ(compression_ratio(Ids{1, 2, 3}, 200), 3. / 11);
}

}  // namespace
}  // namespace graft::llm
