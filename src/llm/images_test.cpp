#include "llm/images.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "base/test_errors.h"
#include "llm/test_model.h"

namespace graft {
namespace {

using test::expect_error;
using test::logits_of;
using test::SmallPictureModel;
using test::tokens_of;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kImage = SmallPictureModel::kImage;

TEST(Images, PlaceholdersStandForRowsOfFeatures) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1), SmallPictureModel::picture(7, 9, 2)};
  const ImagePrompt prompt = small.pictures->encode_with_images("1t <image> 2t <image>", images);
  EXPECT_EQ(prompt.tokens, (Ids{1, kImage, kImage, kImage, 2, kImage, kImage, kImage}));
  EXPECT_EQ(prompt.images->feature_of, (Ids{-1, 0, 1, 2, -1, 3, 4, 5}));
  EXPECT_EQ(prompt.images->begin, 1);
  EXPECT_EQ(prompt.images->end, 8);
  // Without a place, they come first.
  EXPECT_EQ(small.pictures->encode_with_images(" 1t", std::span(images).first(1)).tokens,
            (Ids{kImage, kImage, kImage, 1}));
  const ImagePrompt asked = image_prompt(*small.pictures, "1t", std::span(images).first(1));
  EXPECT_EQ(asked.tokens, (Ids{kImage, kImage, kImage, 1, 9}));
}

TEST(Images, SizesInPatches) {
  PatchProcessing processing;
  processing.patch_size = 4;
  processing.temporal_patch_size = 1;
  processing.max_patches = 48;
  const auto size_of = [&](std::int64_t height, std::int64_t width) {
    const image::Patches found = image::patches_of(processing, SmallPictureModel::picture(height, width, 1));
    return std::pair(found.rows, found.columns);
  };
  EXPECT_EQ(size_of(100, 100), std::pair(6L, 6L));
  EXPECT_EQ(size_of(1, 1), std::pair(6L, 6L));
  EXPECT_EQ(size_of(10, 1000), std::pair(2L, 24L));  // as long as there may be patches
  EXPECT_EQ(size_of(1000, 10), std::pair(24L, 2L));
  processing.max_patches = 3;
  expect_error<InvalidArgument>([&] { size_of(20, 20); },
                                "a picture of 20 x 20 pixels does not become one of 3 patches of 4 x 4 pixels");
}

TEST(Images, CropsCoverAPicture) {
  CropProcessing processing;
  processing.crop = 16;
  processing.patch_size = 4;
  processing.max_crops = 4;
  const auto crops_of = [&](std::int64_t height, std::int64_t width) {
    return image::crops_of(processing, SmallPictureModel::picture(height, width, 1));
  };
  const image::Crops one = crops_of(16, 16);
  EXPECT_EQ(std::pair(one.rows, one.columns), std::pair(1L, 1L));
  EXPECT_EQ(one.pixels.size(), 2U * 3 * 16 * 16);
  // Two rows of two pairs of patches and their ends, of the crop; what stands between; the same of the whole.
  EXPECT_EQ(one.order, (Ids{6, 7, 4, 8, 9, 4, 5, 0, 1, 4, 2, 3, 4}));
  const auto check = [&](std::int64_t height, std::int64_t width, std::int64_t rows, std::int64_t columns,
                         std::int64_t behind, std::size_t features) {
    const image::Crops found = crops_of(height, width);
    EXPECT_EQ(std::pair(found.rows, found.columns), std::pair(rows, columns));
    EXPECT_EQ(std::ssize(found.pixels), (1 + rows * columns) * 3 * 16 * 16);
    EXPECT_EQ(std::ranges::count(found.valid, 0), behind);
    EXPECT_EQ(found.order.size(), features);
  };
  check(16, 40, 1, 3, 8, 2 * 6 + 7);  // keeps its size: two columns of patches have no pixel of it
  check(17, 10, 2, 1, 4, 4 * 3 + 7);  // becomes 27 x 16
  check(48, 80, 1, 2, 4, 2 * 5 + 7);  // 3 x 5 are too many: becomes 16 x 26
  expect_error<InvalidArgument>(
      [&] { crops_of(9, 16); },
      "a picture of 9 x 16 pixels is too long: of its 1 x 1 crops of 16 pixels it fills 9 x 16");
}

TEST(Images, KeysDifferByPictureAndToken) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1), SmallPictureModel::picture(4, 4, 2),
                                  SmallPictureModel::picture(4, 4, 1)};
  const ImagePrompt prompt = small.pictures->encode_with_images("<image> <image> <image>", images);
  const Ids& keys = prompt.images->keys;
  ASSERT_EQ(keys.size(), 9U);
  const auto of = [&](std::size_t image) { return Ids(keys.begin() + image * 3, keys.begin() + image * 3 + 3); };
  EXPECT_EQ(of(0), of(2));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_LT(keys[i], 0);
    EXPECT_LT(static_cast<std::int32_t>(keys[i]), 0);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(keys[i], keys[j]);
      EXPECT_NE(static_cast<std::int32_t>(keys[i]), static_cast<std::int32_t>(keys[j]));
    }
  }
  // Equal bytes of another shape are another picture.
  const std::vector<Image> wide{{2, 8, images[0].pixels}};
  EXPECT_NE(small.pictures->encode_with_images("<image>", wide).images->keys, of(0));
}

TEST(Images, FeaturesStandInTheirPlaces) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1)};
  const ImagePrompt prompt = small.pictures->encode_with_images("1t 5t <image> 2t", images);
  Decoder decoder(small.pictures, {.threads = 1});
  const std::vector<float> found = logits_of(decoder, prompt);
  // The model itself, with the features put in by hand.
  SessionOptions options;
  options.threads = 1;
  options.kv = {1, SmallPictureModel::kContext};
  Session session(small.pictures->program(), options);
  Ids ids = prompt.tokens, positions{0, 1, 2, 3, 4, 5}, keep = positions;
  std::vector<float> features(6 * 16, 0.F);
  for (std::size_t i = 0; i < 48; ++i) {
    const std::size_t channel = i / 16, pixel = i % 16;
    features[32 + i] = static_cast<float>(images[0].pixels[pixel * 3 + channel]) / 128;
  }
  std::vector<std::uint8_t> mask{0, 0, 1, 1, 1, 0};
  const std::vector<Value> inputs{Value::of(TensorView{ids.data(), DType::i64, Shape{1, 6}}),
                                  Value::of(TensorView{positions.data(), DType::i64, Shape{1, 6}}),
                                  Value::of(TensorView{positions.data(), DType::i64, Shape{1, 6}}),
                                  Value::of(TensorView{keep.data(), DType::i64, Shape{6}}),
                                  Value::of(TensorView{features.data(), DType::f32, Shape{1, 6, 16}}),
                                  Value::of(TensorView{mask.data(), DType::b8, Shape{1, 6}})};
  const std::vector<Value> expected = session.run("step_with_images", inputs);
  EXPECT_EQ(found, test::floats(expected[0]));
}

TEST(Images, RunsOfAnySizeGiveTheSame) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1), SmallPictureModel::picture(5, 3, 2)};
  const ImagePrompt prompt = small.pictures->encode_with_images("1t <image> 5t 6t 7t <image> 2t 3t 4t 8t", images);
  Decoder whole(small.pictures, {.threads = 1});
  const std::vector<float> expected = logits_of(whole, prompt);
  for (std::int64_t chunk = 1; chunk < 9; ++chunk) {
    Decoder decoder(small.pictures, {.threads = 1, .prefill_chunk_size = chunk});
    const std::vector<float> found = logits_of(decoder, prompt);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << chunk << " at " << i;
  }
}

SmallPictureModel with_blocks(ImagesInfo::Blocks blocks) {
  return SmallPictureModel([&](ImagesInfo& info) {
    info.blocks = blocks;
    info.before = " 19t ";
  });
}

TEST(Images, BlocksAreThoseOfPicturesOrPrompts) {
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1), SmallPictureModel::picture(5, 3, 2)};
  const SmallPictureModel each = with_blocks(ImagesInfo::Blocks::picture),
                          all = with_blocks(ImagesInfo::Blocks::prompt);
  const ImagePrompt of_each = each.pictures->encode_with_images("1t <image> <image> 2t", images);
  EXPECT_EQ(of_each.images->feature_of, (Ids{-1, -1, 0, 1, 2, -1, 3, 4, 5, -1}));
  EXPECT_EQ(of_each.images->blocks, (Ids{0, 0, 1, 1, 2, 4, 2, 4, 2, 4, 5, 5, 6, 8, 6, 8, 6, 8, 9, 9}));
  const ImagePrompt of_all = all.pictures->encode_with_images("1t <image> 2t", std::span(images).first(1));
  EXPECT_EQ(of_all.images->blocks, (Ids{0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5}));
  // Every token of the prompt depends on all, so none is that of another prompt.
  const ImagePrompt other = all.pictures->encode_with_images("1t <image> 3t", std::span(images).first(1));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NE(of_all.images->keys[i], other.images->keys[i]);
    EXPECT_LT(of_all.images->keys[i], 0);
  }
}

TEST(Images, RunsCutNoBlock) {
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1), SmallPictureModel::picture(5, 3, 2)};
  const SmallPictureModel causal([](ImagesInfo& info) { info.before = " 19t "; });
  for (const auto blocks : {ImagesInfo::Blocks::picture, ImagesInfo::Blocks::prompt}) {
    const SmallPictureModel small = with_blocks(blocks);
    const ImagePrompt prompt = small.pictures->encode_with_images("1t <image> 5t 6t 7t <image> 2t 3t 4t 8t", images);
    Decoder whole(small.pictures, {.threads = 1}), one_way(causal.pictures, {.threads = 1});
    const std::vector<float> expected = logits_of(whole, prompt);
    EXPECT_NE(expected, logits_of(one_way, causal.pictures->encode_with_images(
                                               "1t <image> 5t 6t 7t <image> 2t 3t 4t 8t", images)));
    TextGenerator generator(small.pictures, {.threads = 1});
    const Ids tokens = tokens_of(generator, prompt);
    for (std::int64_t chunk = 1; chunk < 9; ++chunk) {
      Decoder decoder(small.pictures, {.threads = 1, .prefill_chunk_size = chunk});
      const std::vector<float> found = logits_of(decoder, prompt);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << chunk << " at " << i;
      // Rows of different lengths together, and one after the other in runs of a few widths.
      TextGenerator both(small.pictures, {.threads = 1, .rows = 2, .prefill_chunk_size = chunk});
      const std::vector<ImagePrompt> prompts{
          prompt, small.pictures->encode_with_images("3t <image>", std::span(images).first(1))};
      EXPECT_EQ(both.generate(prompts, {.max_new_tokens = 12})[0].tokens, tokens) << chunk;
      BatchGenerator batch(small.pictures, {.threads = 1, .rows = 2, .prefill_chunk_size = chunk});
      const auto id = batch.submit(prompt, {.max_new_tokens = 12}, RequestOptions());
      while (batch.step()) {
      }
      EXPECT_EQ(batch.take(id)->tokens, tokens) << chunk;
    }
  }
}

TEST(Images, WrongBlocks) {
  const SmallPictureModel small = with_blocks(ImagesInfo::Blocks::picture);
  SessionOptions options;
  options.threads = 1;
  options.kv = {1, SmallPictureModel::kContext};
  Session session(small.pictures->program(), options);
  Ids ids{1, 2, 3, 4}, positions{0, 1, 2, 3}, keep{3};
  std::vector<float> features(4 * 16, 0.F);
  std::vector<std::uint8_t> mask(4, 0);
  const auto run = [&](Ids blocks, std::int64_t sides = 2) {
    const std::vector<Value> inputs{
        Value::of(TensorView{ids.data(), DType::i64, Shape{1, 4}}),
        Value::of(TensorView{positions.data(), DType::i64, Shape{1, 4}}),
        Value::of(TensorView{positions.data(), DType::i64, Shape{1, 4}}),
        Value::of(TensorView{keep.data(), DType::i64, Shape{1}}),
        Value::of(TensorView{features.data(), DType::f32, Shape{1, 4, 16}}),
        Value::of(TensorView{mask.data(), DType::b8, Shape{1, 4}}),
        Value::of(TensorView{blocks.data(), DType::i64, Shape{1, 4, sides}}),
    };
    return test::floats(session.run("step_with_images", inputs)[0]);
  };
  const std::vector<float> expected = run({0, 0, 1, 2, 1, 2, 3, 3});
  const char* const around = "expected one around it, that begins at";
  expect_error<ExecutionError>([&] { run({0, 0, 2, 2, 2, 2, 3, 3}); }, around);
  expect_error<ExecutionError>([&] { run({0, 0, 1, 0, 1, 2, 3, 3}); }, around);
  expect_error<ExecutionError>(
      [&] {
        run({0, 2, 0, 1, 1, 2, 3, 3});
      },
      "token 1 at position 1 has a block of positions 0 to 1");
  expect_error<ExecutionError>([&] { run({0, 0, 1, 2, 0, 2, 3, 3}); }, around);
  expect_error<ExecutionError>([&] { run({-1, 0, 1, 1, 2, 2, 3, 3}); }, around);
  expect_error<ExecutionError>(
      [&] {
        run({0, 0, 1, 1, 2, 2, 3, 4});
      },
      "the block of positions 3 to 4 is cut: the run ends at 3");
  EXPECT_EQ(run({0, 0, 1, 2, 1, 2, 3, 3}), expected) << "after failed runs";
}

TEST(Images, GeneratorsSeeThem) {
  const SmallPictureModel small;
  TextGenerator generator(small.pictures, {.threads = 1});
  for (unsigned seed = 0; seed < 8; ++seed) {
    const std::vector<Image> images{SmallPictureModel::picture(4, 4, seed)};
    const ImagePrompt prompt = small.pictures->encode_with_images("1t <image>", images);
    Decoder decoder(small.pictures, {.threads = 1});
    const std::vector<float> logits = logits_of(decoder, prompt);
    const auto last = logits.end() - SmallPictureModel::kVocabulary;
    EXPECT_EQ(tokens_of(generator, prompt, 1)[0], std::max_element(last, logits.end()) - last);
  }
}

TEST(Images, APictureIsNotTakenForAnother) {
  const SmallPictureModel small;
  TextGenerator generator(small.pictures, {.threads = 1});
  const std::vector<Image> one{SmallPictureModel::picture(4, 4, 1)}, two{SmallPictureModel::picture(4, 4, 2)};
  const auto ask = [&](const std::vector<Image>& images) {
    const ImagePrompt prompt = small.pictures->encode_with_images("1t <image> 2t", images);
    TextGenerator fresh(small.pictures, {.threads = 1});
    EXPECT_EQ(tokens_of(generator, prompt), tokens_of(fresh, prompt));
    return generator.stats().reused_tokens;
  };
  EXPECT_EQ(ask(one), 0);
  EXPECT_EQ(ask(two), 1);
  EXPECT_EQ(ask(two), 4);
  EXPECT_EQ(ask(one), 1);
  const Ids text{1, 2, 3};
  TextGenerator fresh(small.pictures, {.threads = 1});
  EXPECT_EQ(generator.generate(text, {.max_new_tokens = 9}).tokens, fresh.generate(text, {.max_new_tokens = 9}).tokens);
}

TEST(Images, BatchesAndTheirPrefixCache) {
  const SmallPictureModel small;
  std::string text;
  for (int i = 0; i < 62; ++i) text += std::to_string(i % 20) + "t ";
  text += "<image> 3t <image> 4t";  // a picture on both sides of the end of the cache's first block
  const Image one = SmallPictureModel::picture(4, 4, 1), two = SmallPictureModel::picture(4, 4, 2);
  const std::vector<std::vector<Image>> asked{{one, two}, {two, two}, {one, one}, {one, two}};
  const Ids reused = test::reused_in_batches(small.pictures, text, asked);
  EXPECT_EQ(reused[0], 0);
  EXPECT_LT(reused[1], 63);  // what stands before the first picture, at most
  EXPECT_GE(reused[3], 64);  // a block with the beginning of the first picture
}

TEST(Images, ASequenceIsNotCutWithinThem) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1)};
  Decoder decoder(small.pictures, {.threads = 1});
  logits_of(decoder, small.pictures->encode_with_images("1t <image> 2t 3t", images));
  expect_error<InvalidArgument>([&] { decoder.truncate(0, 3); },
                                "cannot go back to 3 tokens: there are pictures or sounds from 1 to 4");
  decoder.truncate(0, 5);
  decoder.truncate(0, 1);  // what follows is text
  const Ids rest{5, 6, 7, 8};
  Decoder other(small.pictures, {.threads = 1});
  const Ids whole{1, 5, 6, 7, 8};
  const Decoder::Tokens tokens = rest, all = whole;
  const std::span<float> found = decoder.prefill({&tokens, 1}), expected = other.prefill({&all, 1});
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5);
}

TEST(Images, WrongPrompts) {
  const SmallPictureModel small;
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1)}, broken{{4, 4, {1, 2, 3}}};
  const LanguageModel& model = *small.pictures;
  expect_error<InvalidArgument>([&] { model.encode_with_images("<image> <image>", images); },
                                "the prompt has 2 places of pictures ('<image>'), and there are 1 pictures");
  expect_error<InvalidArgument>([&] { model.encode_with_images("<image>", {}); }, "1 places of pictures");
  expect_error<InvalidArgument>([&] { model.encode_with_images("\xff", images); }, "not UTF-8");
  expect_error<InvalidArgument>([&] { model.encode_with_images("<image>", broken); }, "has 3 bytes");
  expect_error<InvalidArgument>([&] { small.with_words()->encode_with_images("1t", images); },
                                "Small takes no pictures");
  TextGenerator generator(small.pictures, {.threads = 1}), of_text(small.with_words(), {.threads = 1});
  ImagePrompt prompt = model.encode_with_images("<image> 1t", images);
  expect_error<InvalidArgument>([&] { of_text.generate(prompt); }, "Small takes no pictures");
  expect_error<InvalidArgument>([&] { generator.generate(prompt.tokens); }, "has 3 tokens of pictures (23)");
  prompt.tokens.push_back(4);
  expect_error<InvalidArgument>([&] { generator.generate(prompt); },
                                "are not those that its pictures were prepared for");
  const ChatMessage message{"user", {}, {{{}, true}}};
  expect_error<InvalidArgument>([&] { chat_prompt(*small.with_words(), {&message, 1}, "x"); }, "takes no pictures");
}

TEST(Images, WrongDescriptions) {
  expect_error<InvalidArgument>([&] { SmallPictureModel([](ImagesInfo& info) { info.width = 8; }); },
                                "'encode_image' is not what 'graft.llm.json' says of pictures");
  expect_error<InvalidArgument>(
      [&] { SmallPictureModel([](ImagesInfo& info) { info.processing = PatchProcessing(); }); },
      "'encode_image' is not what");
  const SmallPictureModel wrong_rows([](ImagesInfo& info) { info.rows = 2; });
  TextGenerator generator(wrong_rows.pictures, {.threads = 1});
  const std::vector<Image> images{SmallPictureModel::picture(4, 4, 1)};
  expect_error<InvalidProgram>([&] { generator.generate(wrong_rows.pictures->encode_with_images("<image>", images)); },
                               "gave features [3, 16], [2, 16] were expected");
  const auto parse = [](const char* text) { return llm::parse_images(read_json<Json>(text), 24); };
  const std::string plain = R"("resample": 2, "rescale_factor": 1, "mean": [0, 0, 0], "std": [1, 1, 1]})";
  const auto of = [&](const std::string& processing, int rows) {
    return str(R"({"token": "x", "token_id": 3, "rows": )", rows, R"(, "width": 4, "text": {}, "processing": )",
               processing, plain, "}");
  };
  expect_error<InvalidProgram>([&] { parse(of(R"({"kind": "other", )", 1).c_str()); },
                               "no processing of pictures 'other'");
  expect_error<InvalidProgram>([&] { parse(of(R"({"kind": "fixed", )", 0).c_str()); }, "'rows' of 'images' is 0");
  expect_error<InvalidProgram>([&] { parse(R"({"token_id": 24})"); },
                               "'token_id' of 'images' must be from 0 to 23, found 24");
  expect_error<InvalidProgram>([&] { parse(of(R"({"kind": "tiles", "tile": 0, )", 1).c_str()); },
                               "'tile' must be from 1 to 8192, found 0");
  EXPECT_EQ(parse(of(R"({"kind": "fixed", )", 1).c_str()).rows, 1);
  const std::string fixed = of(R"({"kind": "fixed", )", 1);
  const auto with = [&](const char* kind) { return str(R"({"blocks": ")", kind, R"(", )", fixed.substr(1)); };
  expect_error<InvalidProgram>([&] { parse(with("word").c_str()); },
                               "expected 'blocks' of 'images' to be none, picture or prompt, found 'word'");
  expect_error<InvalidProgram>([&] { parse(with("picture").c_str()); }, "need text around them");
  EXPECT_EQ(parse(with("prompt").c_str()).blocks, ImagesInfo::Blocks::prompt);
  expect_error<InvalidArgument>(
      [&] {
        const SmallPictureModel without;
        LanguageModelInfo info = without.pictures->info();
        info.images->blocks = ImagesInfo::Blocks::prompt;
        LanguageModel(without.pictures->program(), info, nullptr);
      },
      "a mask [B, T] and blocks [B, T, 2]");
}

}  // namespace
}  // namespace graft
