#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <span>

#include "audio/frame_mel.h"
#include "audio/log_mel.h"
#include "base/check.h"
#include "base/json.h"
#include "base/test_errors.h"
#include "llm/images.h"
#include "llm/test_model.h"

namespace graft {
namespace {

using test::expect_error;
using test::SmallAudioModel;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kAudio = SmallAudioModel::kAudio, kWindow = SmallAudioModel::kWindow;

TEST(FrameMel, FramesLieWithinTheSound) {
  const FrameMelOptions options{100, 8, 6, 4, 3, 0.5F, 40};
  FrameMel mel(options);
  EXPECT_EQ(mel.frames(5), 0);
  EXPECT_EQ(mel.frames(6), 1);
  EXPECT_EQ(mel.frames(9), 1);
  EXPECT_EQ(mel.frames(10), 2);
  const std::vector<float> samples = SmallAudioModel::sound(26, 1).samples;
  const std::vector<float> alone = mel(samples, 26);
  ASSERT_EQ(alone.size(), 6U * 3);
  // Its power, from the definition of the transform.
  const auto filters = MelFilters::of_kaldi(3, 8, 100, 40);
  for (std::size_t f = 0; f < 6; ++f) {
    std::vector<double> power;
    for (int k = 0; k < 5; ++k) {
      std::complex<double> sum;
      for (std::size_t n = 0; n < 6; ++n) {
        const double here = samples[4 * f + n], before = samples[4 * f + (n == 0 ? 0 : n - 1)];
        const double window = 0.54 - 0.46 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / 5);
        sum +=
            std::polar((here - 0.5 * before) * 32768 * window, -2 * std::numbers::pi * k * static_cast<double>(n) / 8);
      }
      power.push_back(std::norm(sum));
    }
    for (std::size_t m = 0; m < 3; ++m)
      EXPECT_NEAR(alone[3 * f + m], std::log(std::max(filters.apply(m, power), 1.)), 1e-4) << f << ", " << m;
  }
}

TEST(FrameMel, SilenceBehindASound) {
  FrameMel mel({100, 16, 10, 4, 3, 0.5F, 40});
  const auto silent = [&](std::size_t samples, std::size_t length) {
    const std::vector<float> found = mel(SmallAudioModel::sound(static_cast<std::int64_t>(samples), 1).samples, length);
    Ids out;
    for (std::size_t f = 0; f < found.size() / 3; ++f)
      if (std::ranges::all_of(std::span(found).subspan(3 * f, 3), [](float x) { return x == 0; }))
        out.push_back(static_cast<std::int64_t>(f));
    return out;
  };
  // Frames of 10 samples, 4 apart. Of 16 samples two are whole; 2 and 3 begin within, and the first of these is silent.
  // Of 18 samples three are whole, and 3 and 4 stay.
  EXPECT_EQ(silent(16, 38), (Ids{2, 4, 5, 6, 7}));
  EXPECT_EQ(silent(18, 38), (Ids{5, 6, 7}));
}

TEST(AudioPrompt, WindowsAreWhole) {
  const SmallAudioModel small;
  for (const std::int64_t samples : {std::int64_t{1}, kWindow - 1, kWindow, kWindow + 1, 3 * kWindow}) {
    const std::vector<Audio> sounds{SmallAudioModel::sound(samples, 1)};
    const ImagePrompt prompt = small.audio->encode_with_audio("1t <audio> 2t", sounds);
    const std::int64_t windows = (samples + kWindow - 1) / kWindow;
    EXPECT_EQ(std::ranges::count(prompt.tokens, kAudio), 2 * windows) << samples;
    const auto& one = prompt.images->images.at(0);
    EXPECT_EQ(one.rows, 2 * windows);
    std::vector<float> padded = sounds[0].samples;
    padded.resize(static_cast<std::size_t>(windows * kWindow));
    const std::vector<float> whole = LogMel({SmallAudioModel::kRate, 8, 4, SmallAudioModel::kMels})(padded);
    const std::int64_t frames = SmallAudioModel::kFrames, mels = SmallAudioModel::kMels;
    ASSERT_EQ(one.spectrograms.size(), whole.size());
    for (std::int64_t w = 0; w < windows; ++w)
      for (std::int64_t m = 0; m < mels; ++m)
        for (std::int64_t f = 0; f < frames; ++f)
          EXPECT_EQ(one.spectrograms[static_cast<std::size_t>((w * mels + m) * frames + f)],
                    whole[static_cast<std::size_t>((m * windows + w) * frames + f)]);
  }
}

TEST(AudioPrompt, FeaturesEndWithTheSound) {
  const SmallAudioModel small(true);
  // Frames of 4 samples, positions of 2 frames, rows of 2 whole positions.
  const std::pair<std::int64_t, std::pair<std::int64_t, std::int64_t>> cases[] = {
      {9, {2, 1}}, {16, {2, 1}}, {17, {3, 1}}, {24, {3, 1}}, {25, {4, 2}}, {32, {4, 2}}};
  for (const auto& [samples, expected] : cases) {
    const std::vector<Audio> sounds{SmallAudioModel::sound(samples, 1)};
    const auto prepared = small.audio->encode_with_audio("<audio>", sounds).images;
    EXPECT_EQ(prepared->images.at(0).heard, expected.first) << samples;
    EXPECT_EQ(prepared->rows, expected.second) << samples;
  }
  const auto refused = [&](std::int64_t samples, const char* message) {
    const std::vector<Audio> sounds{SmallAudioModel::sound(samples, 1)};
    expect_error<InvalidArgument>([&] { small.audio->encode_with_audio("<audio>", sounds); }, message);
  };
  refused(8, "a sound of 8 samples is shorter than one row of features");
  refused(33, "a sound of 0.33 seconds: the model takes 0.32");
}

TEST(AudioPrompt, KeysDifferBySoundAndRate) {
  const SmallAudioModel small;
  const std::vector<Audio> sounds{SmallAudioModel::sound(40, 1), SmallAudioModel::sound(40, 2),
                                  SmallAudioModel::sound(40, 1)};
  const Ids keys = small.audio->encode_with_audio("<audio> <audio> <audio>", sounds).images->keys;
  ASSERT_EQ(keys.size(), 12U);
  EXPECT_TRUE(std::equal(keys.begin(), keys.begin() + 4, keys.begin() + 8));
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]);
  const std::vector<Audio> slower{{sounds[0].samples, 99}};
  EXPECT_NE(small.audio->encode_with_audio("<audio>", slower).images->keys[0], keys[0]);
}

TEST(AudioPrompt, SequencesAreWhatTheyAreAlone) {
  const SmallAudioModel small(true);
  const std::vector<Audio> sounds{SmallAudioModel::sound(32, 1), SmallAudioModel::sound(20, 2)};
  const ImagePrompt with = small.audio->encode_with_audio("1t <audio> 2t <audio> 3t", sounds);
  TextGenerator alone(small.audio, {.threads = 1});
  const GenerationOptions options{.max_new_tokens = 8};
  const Ids expected = alone.generate(with, options).tokens;
  BatchGenerator batch(small.audio, {.threads = 1, .rows = 2, .prefill_chunk_size = 2});
  const auto id = batch.submit(with, options, RequestOptions());
  const auto other = batch.submit(Ids{1, 2, 3}, options);
  while (batch.step()) {
  }
  EXPECT_EQ(batch.take(id)->tokens, expected);
  EXPECT_EQ(batch.take(other)->tokens, alone.generate(Ids{1, 2, 3}, options).tokens);
}

TEST(AudioPrompt, WrongPrompts) {
  const SmallAudioModel small;
  const LanguageModel& model = *small.audio;
  const std::vector<Audio> sounds{SmallAudioModel::sound(32, 1)};
  expect_error<InvalidArgument>([&] { model.encode_with_audio("<audio> <audio>", sounds); },
                                "the prompt has 2 places of sounds ('<audio>'), and there are 1 sounds");
  expect_error<InvalidArgument>([&] { model.encode_with_audio("\xff", sounds); }, "not UTF-8");
  for (const auto& [broken, message] :
       {std::pair(Audio{{}, 100}, "a sound of 0 samples"), std::pair(Audio{{1}, 0}, "at 0 per second"),
        std::pair(Audio{{INFINITY}, 100}, "not finite"), std::pair(Audio{{1}, 800'000}, "rate")}) {
    const std::vector<Audio> wrong{broken};
    expect_error<InvalidArgument>([&] { model.encode_with_audio("<audio>", wrong); }, message);
  }
  expect_error<InvalidArgument>([&] { small.with_words()->encode_with_audio("1t", sounds); }, "Small takes no sound");
  const std::vector<Image> images{Image{1, 1, {1, 2, 3}}};
  expect_error<InvalidArgument>([&] { model.encode_with_images("1t", images); }, "Small takes no pictures");
  TextGenerator generator(small.audio, {.threads = 1});
  ImagePrompt prompt = model.encode_with_audio("<audio> 1t", sounds);
  expect_error<InvalidArgument>([&] { generator.generate(prompt.tokens); }, "has 2 tokens of sounds (23)");
  prompt.tokens.push_back(4);
  expect_error<InvalidArgument>([&] { generator.generate(prompt); }, "are not those that its sounds were prepared for");
  const ChatMessage message{"user", {}, {{{}, false, true}}};
  expect_error<InvalidArgument>([&] { chat_prompt(*small.with_words(), {&message, 1}, "x"); }, "takes no sound");
  EXPECT_EQ(audio_prompt(model, "1t", sounds).tokens, (Ids{kAudio, kAudio, 1, 9}));
}

TEST(AudioPrompt, WrongDescriptions) {
  expect_error<InvalidArgument>([&] { SmallAudioModel(false, [](AudioInfo& info) { info.width = 8; }); },
                                "'encode_audio' is not what 'graft.llm.json' says of sound");
  expect_error<InvalidArgument>([&] { SmallAudioModel(false, [](AudioInfo& info) { info.ends_with_sound = true; }); },
                                "'encode_audio' is not what");
  expect_error<InvalidArgument>([&] { SmallAudioModel(true, [](AudioInfo& info) { info.frames = 16; }); },
                                "'encode_audio' is not what");
  const auto parse = [](std::int64_t token, std::int64_t frames) {
    const std::string text = str(
        R"({"token": "x", "place": "x", "rows": 1, "width": 4, "sampling_rate": 16000, "n_fft": 400, "hop_length": )",
        R"(160, "mels": 80, "ends_with_sound": true, "token_id": )", token, R"(, "frames": )", frames, "}");
    return llm::parse_audio(read_json<Json>(text), 24);
  };
  EXPECT_EQ(parse(23, 2).frames, 2);
  expect_error<InvalidProgram>([&] { parse(24, 2); }, "'token_id' of 'audio' must be from 0 to 23, found 24");
  expect_error<InvalidProgram>([&] { parse(23, 0); }, "'frames' of 'audio' must be from 1 to");
  expect_error<InvalidProgram>([&] { parse(23, 1); }, "a window of 'audio' has 160 samples, and n_fft is 400");
}

}  // namespace
}  // namespace graft
