// Pictures that layers of a decoder attend to.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "base/test_errors.h"
#include "llm/images.h"
#include "llm/test_model.h"

namespace graft {
namespace {

using test::expect_error;
using test::logits_of;
using test::SmallAttendedModel;
using test::SmallPictureModel;
using test::tokens_of;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kImage = SmallAttendedModel::kImage;

Image picture(std::int64_t height, std::int64_t width, unsigned seed) {
  return SmallPictureModel::picture(height, width, seed);
}

TEST(Canvas, IsTheOneThatAPictureFitsBest) {
  const CanvasProcessing processing{8, 4, {}};
  const auto shape_of = [&](std::int64_t height, std::int64_t width) {
    const image::Canvas canvas = image::canvas_of(processing, picture(height, width, 1));
    EXPECT_EQ(std::ranges::count(canvas.valid, 1), canvas.rows * canvas.columns);
    EXPECT_EQ(canvas.pixels.size(), 4u * 3 * 64);
    return std::tuple(canvas.rows, canvas.columns, canvas.shape);
  };
  EXPECT_EQ(shape_of(8, 8), std::tuple(1, 1, 1));
  EXPECT_EQ(shape_of(1, 1), std::tuple(1, 1, 1));
  EXPECT_EQ(shape_of(8, 9), std::tuple(1, 2, 2));
  EXPECT_EQ(shape_of(5, 20), std::tuple(1, 3, 3));
  EXPECT_EQ(shape_of(2, 300), std::tuple(1, 4, 4));
  EXPECT_EQ(shape_of(16, 7), std::tuple(2, 1, 5));
  EXPECT_EQ(shape_of(100, 100), std::tuple(2, 2, 6));
  EXPECT_EQ(shape_of(24, 8), std::tuple(3, 1, 7));
  EXPECT_EQ(shape_of(90, 3), std::tuple(4, 1, 8));
}

TEST(Canvas, IsBlackBesideThePicture) {
  const CanvasProcessing processing{4, 2, {}};
  const Image image = picture(4, 6, 1);  // two tiles side by side, of the second one half
  const image::Canvas canvas = image::canvas_of(processing, image);
  ASSERT_EQ(canvas.shape, 2);
  for (std::size_t tile = 0; tile < 2; ++tile)
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t y = 0; y < 4; ++y)
        for (std::size_t x = 0; x < 4; ++x) {
          const std::size_t column = tile * 4 + x;
          const float expected = column < 6 ? image.pixels[(y * 6 + column) * 3 + c] : 0;
          EXPECT_EQ(canvas.pixels[((tile * 3 + c) * 4 + y) * 4 + x], expected);
        }
  expect_error<InvalidArgument>([&] { image::canvas_of(processing, Image()); }, "a picture has 0 x 0 pixels");
}

TEST(SourceImages, TokensSeeThePicturesNamedLast) {
  const SmallAttendedModel small;
  const std::vector<Image> images{picture(4, 4, 1), picture(4, 8, 2), picture(4, 4, 3)};  // 1, 2 and 1 tiles
  const ImagePrompt prompt = small.pictures->encode_with_images("0t 5t <image> 1t <image><image> 2t", images);
  EXPECT_EQ(prompt.tokens, (Ids{0, 5, kImage, 1, kImage, kImage, 2}));
  EXPECT_EQ(prompt.images->rows, 18);  // with those of the tiles that are not there
  // Rows of pictures: 0 to 2, 3 to 8, 9 to 11.
  EXPECT_EQ(prompt.images->ranges, (Ids{0, 17, 0, 17, 0, 2, 0, 2, 3, 8, 3, 11, 3, 11}));
  EXPECT_EQ(prompt.images->sees, (std::vector<std::uint8_t>{0, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(prompt.images->begin, 0);
}

TEST(SourceImages, ATextBeginsBehindPicturesThatComeFirst) {
  const SmallAttendedModel small;
  const std::vector<Image> images{picture(4, 4, 1), picture(4, 8, 2)};
  const auto tokens = [&](std::string_view text, std::size_t count) {
    return small.pictures->encode_with_images(text, std::span(images).first(count)).tokens;
  };
  EXPECT_EQ(tokens(" 5t <image> 6t", 1), (Ids{0, 5, kImage, 6}));
  EXPECT_EQ(tokens("<image> 6t", 1), (Ids{kImage, 0, 6}));
  EXPECT_EQ(tokens("<image><image> 6t", 2), (Ids{kImage, kImage, 0, 6}));
  EXPECT_EQ(tokens("<image>", 1), (Ids{kImage, 0}));
  EXPECT_EQ(tokens("0t <image> 6t", 1), (Ids{0, kImage, 6}));
  EXPECT_EQ(tokens("<image><image> 0t 6t", 2), (Ids{kImage, kImage, 0, 6}));
}

TEST(SourceImages, RunsOfAnySizeGiveTheSame) {
  const SmallAttendedModel small;
  const std::vector<Image> images{picture(4, 8, 1), picture(4, 4, 2)};
  const ImagePrompt prompt = small.pictures->encode_with_images("0t 1t <image> 5t 6t 7t <image> 2t 3t 4t 8t", images);
  Decoder whole(small.pictures, {.threads = 1});
  const std::vector<float> expected = logits_of(whole, prompt);
  for (std::int64_t chunk = 1; chunk < 9; ++chunk) {
    Decoder decoder(small.pictures, {.threads = 1, .prefill_chunk_size = chunk});
    const std::vector<float> found = logits_of(decoder, prompt);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << chunk << " at " << i;
  }
  // The pictures of a row make way for others, and for a text without any.
  const std::vector<Image> other{picture(4, 4, 5), picture(4, 4, 2)};
  const ImagePrompt another = small.pictures->encode_with_images("0t 1t <image> 5t 6t 7t <image> 2t 3t 4t 8t", other);
  Decoder fresh(small.pictures, {.threads = 1});
  const std::vector<float> of_another = logits_of(fresh, another);
  EXPECT_NE(of_another, expected);
  EXPECT_EQ(logits_of(whole, another), of_another);
  const ImagePrompt text{{1, 2, 3}, {}};
  EXPECT_EQ(logits_of(whole, text), logits_of(fresh, text));
  EXPECT_EQ(logits_of(whole, prompt), expected);
}

TEST(SourceImages, WhatThereIsOfThemIsUsedAgain) {
  const SmallAttendedModel small;
  TextGenerator generator(small.pictures, {.threads = 1});
  const std::vector<Image> one{picture(4, 4, 1)}, two{picture(4, 4, 2)};
  const auto ask = [&](const std::vector<Image>& images, const char* text) {
    const ImagePrompt prompt = small.pictures->encode_with_images(text, images);
    TextGenerator fresh(small.pictures, {.threads = 1});
    EXPECT_EQ(tokens_of(generator, prompt), tokens_of(fresh, prompt));
    return generator.stats().reused_tokens;
  };
  EXPECT_EQ(ask(one, "0t 1t <image> 2t"), 0);
  EXPECT_EQ(ask(one, "0t 1t <image> 2t"), 3);
  EXPECT_EQ(ask(one, "0t 1t <image> 2t 9t 8t"), 4);  // the next turn
  EXPECT_EQ(ask(two, "0t 1t <image> 2t"), 0);        // what stands before a picture has seen it
  EXPECT_EQ(ask(one, "0t 1t <image> 2t"), 0);
  const Ids text{0, 1, 2};
  TextGenerator fresh(small.pictures, {.threads = 1});
  EXPECT_EQ(generator.generate(text, {.max_new_tokens = 9}).tokens, fresh.generate(text, {.max_new_tokens = 9}).tokens);
}

TEST(SourceImages, BatchesAndTheirPrefixCache) {
  const SmallAttendedModel small;
  std::string text = "0t ";
  for (int i = 0; i < 60; ++i) text += std::to_string(i % 20) + "t ";
  text += "<image> 3t <image> 4t 5t 6t";
  const Image one = picture(4, 4, 1), two = picture(4, 8, 2);
  const std::vector<std::vector<Image>> asked{{one, two}, {two, two}, {one, one}, {one, two}};
  const Ids reused = test::reused_in_batches(small.pictures, text, asked);
  EXPECT_EQ((Ids{reused[0], reused[1], reused[2]}), (Ids{0, 0, 0}));
  EXPECT_GE(reused[3], 64);
}

TEST(SourceImages, NoRunIsPlannedAfterThoseOfAPicture) {
  const SmallAttendedModel small;
  BatchGenerator batch(small.pictures, {.threads = 1, .rows = 2, .prefill_chunk_size = 32});
  batch.prepare(0);
  const auto ask = [&](const std::vector<Image>& images, const char* text) {
    batch.submit(small.pictures->encode_with_images(text, images), {.max_new_tokens = 8}, RequestOptions());
    batch.submit({1, 2, 3}, {.max_new_tokens = 4});
    while (batch.step()) {
    }
    return batch.decoder().session().counters().graphs_built;
  };
  const auto built = ask({picture(4, 4, 1)}, "0t 1t <image> 2t");
  EXPECT_EQ(ask({picture(4, 8, 2), picture(4, 4, 3)}, "0t <image> 2t 5t 6t 7t <image> 8t 9t 10t 11t 12t 13t"), built);
}

TEST(SourceImages, TheirTokenHasNoLogit) {
  const SmallAttendedModel small;
  const std::vector<Image> images{picture(4, 4, 1)};
  const ImagePrompt prompt = small.pictures->encode_with_images("0t 1t <image> 2t", images);
  BatchGenerator batch(small.pictures, {.threads = 1});
  RequestOptions request;
  request.logprobs = 1;
  request.prompt_logprobs = true;
  expect_error<InvalidArgument>([&] { batch.submit(prompt, {}, request); }, "the token of these has no logit");
  request.prompt_logprobs = false;
  const auto id = batch.submit(prompt, {.max_new_tokens = 9, .repetition_penalty = 1.5}, request);
  while (batch.step()) {
  }
  EXPECT_EQ(batch.take(id)->tokens.size(), 9u);
  expect_error<InvalidArgument>([&] { batch.submit({1, kImage + 1}, {}); }, "is not in the vocabulary of 25 tokens");
}

TEST(SourceImages, RowsOfACallHaveTheirOwn) {
  const SmallAttendedModel small;
  const std::vector<Image> one{picture(4, 4, 1)}, two{picture(4, 8, 2), picture(4, 4, 3)};
  const std::vector<ImagePrompt> prompts{small.pictures->encode_with_images("0t 1t <image> 2t 3t", one),
                                         {{5, 6, 7}, {}},
                                         small.pictures->encode_with_images("0t <image> 4t <image>", two)};
  for (const std::int64_t chunk : {2, 512}) {
    TextGenerator all(small.pictures, {.threads = 1, .rows = 3, .prefill_chunk_size = chunk});
    const std::vector<Generation> found = all.generate(prompts, {.max_new_tokens = 12});
    for (std::size_t r = 0; r < prompts.size(); ++r) {
      TextGenerator fresh(small.pictures, {.threads = 1});
      EXPECT_EQ(found[r].tokens, tokens_of(fresh, prompts[r])) << r;
    }
  }
}

TEST(SourceImages, MoreThanThereIsRoomFor) {
  const SmallAttendedModel small;
  const auto prompt = [&](std::size_t count) {
    std::string text = "0t";
    for (std::size_t i = 0; i < count; ++i) text += " <image>";
    return small.pictures->encode_with_images(text, std::vector<Image>(count, picture(4, 4, 1)));
  };
  TextGenerator generator(small.pictures, {.threads = 1});
  const Ids expected = tokens_of(generator, prompt(4));
  const char* const message = "a sequence has 5 pictures, there is room for 4 (DecoderOptions::pictures)";
  expect_error<InvalidArgument>([&] { generator.generate(prompt(5)); }, message);
  EXPECT_EQ(tokens_of(generator, prompt(4)), expected);
  Decoder decoder(small.pictures, {.threads = 1});
  expect_error<InvalidArgument>([&] { logits_of(decoder, prompt(5)); }, message);
  TextGenerator larger(small.pictures, {.threads = 1, .pictures = 5});
  EXPECT_EQ(tokens_of(larger, prompt(5)).size(), 12u);
  expect_error<InvalidArgument>([&] { TextGenerator(small.pictures, {.threads = 1, .pictures = 0}); },
                                "pictures must be from 1 to 1024, got 0");
  EXPECT_EQ(tokens_of(larger, prompt(4)), expected);
}

TEST(SourceImages, ASequenceIsNotCutWithinThem) {
  const SmallAttendedModel small;
  const std::vector<Image> images{picture(4, 4, 1)};
  Decoder decoder(small.pictures, {.threads = 1});
  logits_of(decoder, small.pictures->encode_with_images("0t 1t <image> 2t 3t", images));
  // The tokens before the picture have seen it too.
  expect_error<InvalidArgument>([&] { decoder.truncate(0, 2); }, "cannot go back to 2 tokens: there are pictures");
  decoder.truncate(0, 4);
  decoder.truncate(0, 0);
}

struct Raw {
  SmallAttendedModel small;
  SessionOptions options;
  std::optional<Session> session;
  std::vector<float> features = std::vector<float>(3 * 16, 0.5F);

  Raw() {
    options.threads = 1;
    options.kv = {2, SmallAttendedModel::kContext};
    options.kv.encoder_length = 6;
    session.emplace(small.pictures->program(), options);
  }
  void store(Ids positions, std::int64_t row = 0) {
    const std::vector<Value> inputs{Value::of(TensorView{features.data(), DType::f32, Shape{1, 3, 16}}),
                                    Value::of(TensorView{positions.data(), DType::i64, Shape{1, 3}})};
    RunOptions run;
    run.kv_rows = {&row, 1};
    session->run("store_image", inputs, run);
  }
  std::vector<float> step(Ids ranges, std::int64_t first = 0, std::int64_t row = 0) {
    Ids ids{1, 2}, positions{first, first + 1}, keep{1};
    std::vector<std::uint8_t> mask(2, 1);
    const std::vector<Value> inputs{Value::of(TensorView{ids.data(), DType::i64, Shape{1, 2}}),
                                    Value::of(TensorView{positions.data(), DType::i64, Shape{1, 2}}),
                                    Value::of(TensorView{positions.data(), DType::i64, Shape{1, 2}}),
                                    Value::of(TensorView{keep.data(), DType::i64, Shape{1}}),
                                    Value::of(TensorView{ranges.data(), DType::i64, Shape{1, 2, 2}}),
                                    Value::of(TensorView{mask.data(), DType::b8, Shape{1, 2}})};
    RunOptions run;
    run.kv_rows = {&row, 1};
    return test::floats(session->run("step_with_images", inputs, run)[0]);
  }
};

TEST(SourceImages, WrongRanges) {
  Raw raw;
  expect_error<ExecutionError>(
      [&] {
        raw.step({0, 0, 0, 0});
      },
      "token 0 sees the positions 0 to 0 of the source, which has 0");
  const std::vector<float> none = raw.step({0, -1, 0, -1});
  raw.store({0, 1, 2});
  const std::vector<float> expected = raw.step({0, 2, 1, 2});
  EXPECT_EQ(raw.step({0, -1, 0, -1}), none);
  EXPECT_NE(expected, none);
  const char* const what = "expected ones of it, or 0 to -1 for none";
  expect_error<ExecutionError>(
      [&] {
        raw.step({0, 2, 0, 3});
      },
      "token 1 sees the positions 0 to 3 of the source, which has 3");
  expect_error<ExecutionError>([&] { raw.step({-1, 2, 0, 2}); }, what);
  expect_error<ExecutionError>([&] { raw.step({2, 1, 0, 2}); }, what);
  expect_error<ExecutionError>([&] { raw.step({1, -1, 0, 2}); }, what);
  expect_error<ExecutionError>([&] { raw.step({0, INT64_MAX, 0, 2}); }, what);
  expect_error<ExecutionError>([&] { raw.step({INT64_MIN, 0, 0, 2}); }, what);
  EXPECT_EQ(raw.step({0, 2, 1, 2}), expected) << "after failed runs";
}

TEST(SourceImages, AreAppendedBesideTheSequence) {
  Raw raw;
  raw.step({0, -1, 0, -1});
  EXPECT_EQ(raw.session->kv_lengths()[0], 2);
  raw.store({0, 1, 2});
  raw.store({3, 4, 5});
  EXPECT_EQ(raw.session->kv_lengths()[0], 2) << "the tokens stay";
  const std::vector<float> both = raw.step({0, 5, 0, 5}, 2);
  expect_error<ExecutionError>([&] { raw.store({6, 7, 8}); }, "the cache has room for 6 of an encoder");
  raw.store({3, 4, 5});
  expect_error<ExecutionError>([&] { raw.store({4, 5, 7}); }, "position 7 of token 2, expected 6");
  expect_error<ExecutionError>([&] { raw.store({7, 8, 9}); }, "position 7 of token 0, expected 6 or less");
  expect_error<ExecutionError>([&] { raw.store({1, 2, 3}, 1); }, "position 1 of token 0, expected 0");
  EXPECT_EQ(raw.step({0, 5, 0, 5}, 2), both) << "after failed runs";
  raw.store({3, 4, 5});
  // What is copied with a row.
  const Ids rows{0, 0};
  raw.session->kv_select(rows);
  EXPECT_EQ(raw.step({0, 5, 0, 5}, 2, 1), both);
}

TEST(SourceImages, WrongDescriptions) {
  expect_error<InvalidArgument>([&] { SmallAttendedModel([](ImagesInfo& info) { info.rows = 2; }); },
                                "method 'store_image' is not what 'graft.llm.json' says of pictures");
  expect_error<InvalidArgument>(
      [&] { SmallAttendedModel([](ImagesInfo& info) {
              info.processing = CanvasProcessing{4, 3, {}};
            }); },
      "'encode_image' is not what");
  expect_error<InvalidArgument>(
      [&] {
        const SmallPictureModel without;
        LanguageModelInfo info = without.pictures->info();
        info.images->attended = true;
        LanguageModel(without.pictures->program(), info, nullptr);
      },
      "is no decoder that attends to pictures");
  const auto parse = [](const std::string& attended, int token, const std::string& kind, const char* more = "") {
    return llm::parse_images(
        read_json<Json>(str(R"({"token": "x", "token_id": )", token,
                            R"(, "rows": 3, "width": 4, "text": {"bos": "<s>"}, )", more, R"("attended": )", attended,
                            R"(, "processing": {"kind": ")", kind,
                            R"(", "tile": 8, "max_tiles": 4, "resample": 2, "rescale_factor": 1, "mean": [0, 0, 0], )",
                            R"("std": [1, 1, 1]}})")),
        24);
  };
  const ImagesInfo info = parse("true", 24, "canvas");
  EXPECT_EQ(std::get<CanvasProcessing>(info.processing).max_tiles, 4);
  EXPECT_EQ(info.bos, "<s>");
  expect_error<InvalidProgram>([&] { parse("true", 32, "canvas"); }, "'token_id' of 'images' must be from 0 to 31");
  expect_error<InvalidProgram>([&] { parse("false", 24, "fixed"); }, "'token_id' of 'images' must be from 0 to 23");
  expect_error<InvalidProgram>([&] { parse("false", 2, "canvas"); }, "'attended' of 'images' is");
  expect_error<InvalidProgram>([&] { parse("true", 2, "fixed"); }, "'attended' of 'images' is");
  expect_error<InvalidProgram>([&] { parse("true", 2, "canvas", R"("blocks": "prompt", )"); },
                               "'attended' of 'images' is");
}

}  // namespace
}  // namespace graft
