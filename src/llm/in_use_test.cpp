#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <semaphore>
#include <thread>
#include <utility>

#include "base/test_errors.h"
#include "graft/error.h"
#include "llm/test_model.h"

// One call at a time: forbidden calls from callbacks and other threads are errors and do not harm the running call.
namespace graft {
namespace {

using test::SmallLanguageModel;
using Ids = std::vector<std::int64_t>;

const Ids kPrompt = {3, 1, 4, 1, 5};
const GenerationOptions kOptions = {.max_new_tokens = 12};

// Runs a generation in another thread whose callback waits while `meanwhile` runs here.
template <typename Generate, typename Meanwhile>
void while_inside(const Generate& generate, const Meanwhile& meanwhile) {
  std::binary_semaphore inside(0), go_on(0);
  std::thread thread([&] {
    bool first = true;
    generate([&] {
      if (!std::exchange(first, false)) return;
      inside.release();
      go_on.acquire();
    });
  });
  inside.acquire();
  meanwhile();
  go_on.release();
  thread.join();
}

TEST(InUse, ACallbackThatGeneratesAgain) {
  const SmallLanguageModel small;
  TextGenerator generator(small.with_words());
  const Ids expected = generator.generate(kPrompt, kOptions).tokens;
  int calls = 0;
  const auto generate_again = [&](std::size_t, std::string_view) {
    ++calls;
    test::expect_error<InvalidArgument>(
        [&] { generator.generate(kPrompt); },
        "generate() was called from a callback of another call on the same TextGenerator");
    const Decoder::Tokens more(kPrompt);
    test::expect_error<InvalidArgument>(
        [&] {
          generator.decoder().run({&more, 1}, 5, 1);
        },
        "run() was called from a callback");
    test::expect_error<InvalidArgument>([&] { generator.decoder().truncate(0, 0); },
                                        "truncate() was called from a callback");
    EXPECT_GE(generator.decoder().length(0), 5);
  };
  EXPECT_EQ(generator.generate(kPrompt, kOptions, generate_again).tokens, expected);
  EXPECT_EQ(calls, 12);
  // The callback's own error propagates, and the next call is unaffected.
  test::expect_error<InvalidArgument>(
      [&] {
        generator.generate(kPrompt, kOptions,
                           [&](std::size_t, std::string_view) { generator.generate(kPrompt, kOptions); });
      },
      "from a callback");
  EXPECT_EQ(generator.generate(kPrompt, kOptions).tokens, expected);
}

TEST(InUse, TwoThreadsOnATextGenerator) {
  const SmallLanguageModel small;
  TextGenerator generator(small.with_words());
  const Ids expected = generator.generate(kPrompt, kOptions).tokens;
  while_inside(
      [&](const auto& wait) {
        EXPECT_EQ(generator.generate(kPrompt, kOptions, [&](std::size_t, std::string_view) { wait(); }).tokens,
                  expected);
      },
      [&] {
        test::expect_error<Busy>(
            [&] {
              generator.generate({1, 2}, kOptions);
            },
            "generate(): the TextGenerator is in use by another thread");
        const Decoder::Tokens more(kPrompt);
        test::expect_error<Busy>(
            [&] {
              generator.decoder().prefill({&more, 1});
            },
            "the Decoder is in use by another thread");
      });
  EXPECT_EQ(generator.generate(kPrompt, kOptions).tokens, expected);
}

TEST(InUse, ACallbackOfADecoder) {
  const SmallLanguageModel small;
  Decoder decoder(small.model);
  int calls = 0;
  decoder.score(kPrompt, [&](std::span<float>) {
    ++calls;
    const Decoder::Tokens more(kPrompt);
    test::expect_error<InvalidArgument>([&] { decoder.run({&more, 1}, 5, 1); }, "run() was called from a callback");
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(decoder.length(0), 5);
}

TEST(InUse, WhatCallbacksOfABatchMayCall) {
  const SmallLanguageModel small;
  const auto model = small.with_words();
  const Ids expected = TextGenerator(model).generate(kPrompt, kOptions).tokens;
  BatchGenerator batch(model, {.rows = 2});
  BatchGenerator::Id second = 0;
  int calls = 0;
  const BatchGenerator::Id first = batch.submit(kPrompt, kOptions, [&](std::string_view) {
    test::expect_error<InvalidArgument>([&] { batch.step(); },
                                        "step() was called from a callback of another call on the same BatchGenerator");
    test::expect_error<InvalidArgument>([&] { batch.prepare(); }, "prepare() was called from a callback");
    if (calls++ == 0) second = batch.submit(kPrompt, kOptions);
  });
  while (batch.step()) {
  }
  EXPECT_EQ(calls, 12);
  EXPECT_EQ(batch.take(first)->tokens, expected);
  EXPECT_EQ(batch.take(second)->tokens, expected);
}

TEST(InUse, TwoThreadsOnABatch) {
  const SmallLanguageModel small;
  const auto model = small.with_words();
  const Ids expected = TextGenerator(model).generate(kPrompt, kOptions).tokens;
  BatchGenerator batch(model, {.rows = 2});
  BatchGenerator::Id id = 0;
  while_inside(
      [&](const auto& wait) {
        id = batch.submit(kPrompt, kOptions, [&](std::string_view) { wait(); });
        while (batch.step()) {
        }
      },
      [&] {
        test::expect_error<Busy>([&] { batch.step(); }, "step(): the BatchGenerator is in use by another thread");
        test::expect_error<Busy>([&] { batch.submit({1, 2}); }, "submit()");
        test::expect_error<Busy>([&] { batch.cancel(0); }, "cancel()");
        test::expect_error<Busy>([&] { batch.take(0); }, "take()");
        test::expect_error<Busy>([&] { batch.prepare(); }, "prepare()");
      });
  EXPECT_EQ(batch.take(id)->tokens, expected);
}

TEST(InUse, ATextThatCancelsAnotherAtItsEnd) {
  const SmallLanguageModel small;
  BatchGenerator batch(small.with_words(), {.rows = 3});
  // "t" may be the beginning of the stop string: it is shown when the text ends.
  GenerationOptions options = {.max_new_tokens = 50};
  options.stop_strings = {"tz"};
  std::vector<BatchGenerator::Id> ids(3);
  std::vector<std::string> texts(3);
  bool ending = false;
  for (std::size_t i = 0; i < 3; ++i)
    ids[i] = batch.submit(kPrompt, options, [&, i](std::string_view text) {
      texts[i] += text;
      if (ending) batch.cancel(ids[(i + 2) % 3]);
    });
  for (int step = 0; step < 6; ++step) batch.step();
  EXPECT_EQ(batch.running(), 3u);
  ending = true;
  EXPECT_TRUE(batch.cancel(ids[1]));  // cancels 0, which cancels 2
  EXPECT_EQ(batch.running(), 0u);
  for (std::size_t i = 0; i < 3; ++i) {
    const Generation result = *batch.take(ids[i]);
    EXPECT_EQ(result.reason, FinishReason::cancelled);
    EXPECT_EQ(result.text, texts[i]);
    EXPECT_TRUE(result.text.ends_with("t"));
  }
}

}  // namespace
}  // namespace graft
