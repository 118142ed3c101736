#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "graft/llm.h"
#include "load/test_graph.h"

// Test only: a language model of one layer. Its next token depends on all tokens before.
namespace graft::test {

struct SmallLanguageModel {
  static constexpr std::int64_t kVocabulary = 24, kSize = 16, kContext = 96;
  GraphBuilder graph{"step"};
  std::shared_ptr<const LanguageModel> model;

  // `sharpness`: how much attention prefers some tokens.
  explicit SmallLanguageModel(std::vector<std::int64_t> eos = {}, double sharpness = 0.5, unsigned seed = 1,
                              std::int64_t context = kContext, std::int64_t adapter_rank = 0) {
    LoadOptions load;
    load.max_adapter_rank = adapter_rank;
    decode(graph, seed, sharpness, context);
    LanguageModelInfo info;
    info.architecture = "Small";
    info.vocab_size = kVocabulary;
    info.context_length = context;
    info.eos_token_ids = std::move(eos);
    model = std::make_shared<const LanguageModel>(graph.build(load), info, nullptr);
  }

  // `with_features`: step_with_images or step_with_audio instead of step; `with_blocks`: it has blocks of tokens;
  // `with_ranges`: step_with_images of a model that attends to pictures.
  static void decode(GraphBuilder& graph, unsigned seed, double sharpness, std::int64_t context,
                     bool with_features = false, bool with_blocks = false, bool with_ranges = false) {
    const ir::Dim b = dynamic(1, 8, "b"), t = dynamic(1, context, "t"), k = dynamic(1, context, "k");
    const ir::Dim c = fixed(kSize), one = fixed(1), v = fixed(kVocabulary);
    const auto ids = graph.input("input_ids", DType::i64, {b, t});
    const auto positions = graph.input("position_ids", DType::i64, {b, t});
    const auto cache_position = graph.input("cache_position", DType::i64, {b, t});
    const auto keep = graph.input("logits_to_keep", DType::i64, {k});
    const auto of = [](ir::ValueId id) { return ir::Arg::of_value(id); };
    const auto embed = [&](ir::ValueId table, ir::ValueId index) {
      return graph.node("aten.embedding.default",
                        {{"weight", of(table)},
                         {"indices", of(index)},
                         {"padding_idx", of_int(-1)},
                         {"scale_grad_by_freq", ir::Arg{ir::Arg::Kind::boolean, 0, 0, {}, {}}},
                         {"sparse", ir::Arg{ir::Arg::Kind::boolean, 0, 0, {}, {}}}},
                        DType::f32, {b, t, c});
    };
    const std::int64_t words_read = kVocabulary + 1;  // one has no logit
    const auto tokens = graph.weight("tokens", numbers(words_read * kSize, seed), {words_read, kSize});
    const auto places = graph.weight("places", numbers(context * kSize, seed + 1), {context, kSize});
    ir::ValueId words = embed(tokens, ids);
    if (with_features) {
      const auto features = graph.input("features", DType::f32, {b, t, c});
      const auto mask = graph.input("mask", DType::b8, {b, t});
      const auto wide =
          graph.node("aten.unsqueeze.default", {{"self", of(mask)}, {"dim", of_int(2)}}, DType::b8, {b, t, one});
      words = graph.node("aten.where.self", {{"condition", of(wide)}, {"self", of(features)}, {"other", of(words)}},
                         DType::f32, {b, t, c});
    }
    const auto x = graph.node("aten.add.Tensor",
                              {{"self", of(words)}, {"other", of(embed(places, positions))}, {"alpha", of_int(1)}},
                              DType::f32, {b, t, c});
    const auto heads =
        graph.node("aten.unsqueeze.default", {{"self", of(x)}, {"dim", of_int(1)}}, DType::f32, {b, one, t, c});
    std::vector<std::pair<std::string, ir::Arg>> arguments = {
        {"query", of(heads)},  {"key", of(heads)},   {"value", of(heads)},   {"cache_position", of(cache_position)},
        {"sinks", of_none()},  {"bias", of_none()},  {"layer", of_int(0)},   {"scale", of_real(sharpness)},
        {"window", of_int(0)}, {"chunk", of_int(0)}, {"softcap", of_real(0)}};
    if (with_blocks) arguments.emplace_back("blocks", of(graph.input("blocks", DType::i64, {b, t, fixed(2)})));
    auto attended = graph.node("graft.attention.default", std::move(arguments), DType::f32, {b, t, one, c});
    if (with_ranges) {
      const auto ranges = graph.input("ranges", DType::i64, {b, t, fixed(2)});
      const auto mask = graph.input("mask", DType::b8, {b, t});
      const auto source = graph.node("graft.source_attention.default",
                                     {{"query", of(heads)},
                                      {"ranges", of(ranges)},
                                      {"layer", of_int(1)},
                                      {"kv_heads", of_int(1)},
                                      {"scale", of_real(sharpness)}},
                                     DType::f32, {b, t, one, c});
      const auto plain = attended;
      attended = graph.node("aten.add.Tensor", {{"self", of(source)}, {"other", of(plain)}, {"alpha", of_int(1)}},
                            DType::f32, {b, t, one, c});
      // As a feed-forward part: what a token counts double that sees a picture.
      const auto wide =
          graph.node("aten.unsqueeze.default", {{"self", of(mask)}, {"dim", of_int(2)}}, DType::b8, {b, t, one});
      const auto wider =
          graph.node("aten.unsqueeze.default", {{"self", of(wide)}, {"dim", of_int(3)}}, DType::b8, {b, t, one, one});
      const auto twice =
          graph.node("aten.add.Tensor", {{"self", of(attended)}, {"other", of(plain)}, {"alpha", of_int(1)}},
                     DType::f32, {b, t, one, c});
      attended = graph.node("aten.where.self", {{"condition", of(wider)}, {"self", of(twice)}, {"other", of(attended)}},
                            DType::f32, {b, t, one, c});
    }
    const auto merged =
        graph.node("aten.squeeze.dim", {{"self", of(attended)}, {"dim", of_int(2)}}, DType::f32, {b, t, c});
    const auto kept =
        graph.node("aten.index_select.default", {{"self", of(merged)}, {"dim", of_int(1)}, {"index", of(keep)}},
                   DType::f32, {b, k, c});
    const auto head = graph.weight("head", numbers(kVocabulary * kSize, seed + 2), {kVocabulary, kSize});
    graph.output(graph.node("aten.linear.default", {{"input", of(kept)}, {"weight", of(head)}, {"bias", of_none()}},
                            DType::f32, {b, k, v}));
  }

  // The same with a tokenizer of the words "0t", "1t", ...
  std::shared_ptr<const LanguageModel> with_words() const {
    std::string vocabulary;
    for (std::int64_t i = 0; i < kVocabulary; ++i)
      vocabulary += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "t\": " + std::to_string(i);
    const auto words =
        Tokenizer::from_json(R"({"model": {"type": "WordLevel", "unk_token": "0t", "vocab": {)" + vocabulary + "}}}");
    return std::make_shared<const LanguageModel>(model->program(), model->info(), words);
  }

 protected:
  // A tokenizer of the words "0t", ... and, as the last token, a placeholder, which stands for parts of this type in
  // the chat template.
  static std::shared_ptr<const Tokenizer> words_and(const std::string& placeholder, const std::string& type,
                                                    std::int64_t id = kVocabulary - 1) {
    const std::string last = std::to_string(id);
    std::string words;
    for (std::int64_t i = 0; i < id; ++i) words += "\"" + std::to_string(i) + "t\": " + std::to_string(i) + ", ";
    return Tokenizer::from_json(
        R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [{"id": )" + last + R"(, "content": ")" +
            placeholder + R"(", "special": true, "normalized": false}], "model": {"type": "WordLevel",
           "unk_token": "0t", "vocab": {)" +
            words + "\"" + placeholder + "\": " + last + "}}}",
        R"({"chat_template": "{% for m in messages %}{% for c in m.content %}{% if c.type == ')" + type + "' %} " +
            placeholder + R"( {% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %} 9t"})");
  }

 private:
  static std::vector<float> numbers(std::int64_t count, unsigned seed) {
    std::mt19937 rng(seed);
    std::vector<float> out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(rng() % 2001) / 1000.f - 1.f);
    return out;
  }
};

// The same as a model of speech, whose encoder does nothing that the decoder sees: ids from 10 on are time stamps.
struct SmallSpeechModel : SmallLanguageModel {
  std::shared_ptr<const LanguageModel> speech;

  SmallSpeechModel() : SmallLanguageModel({1}) {
    SpeechInfo info;
    info.sampling_rate = 100;
    info.n_fft = 8;
    info.hop_length = 4;
    info.mels = 2;
    info.frames = 20;
    info.no_timestamps_id = 9;
    info.previous_text_id = 2;
    info.languages = {{"en", 3}, {"de", 4}};
    info.tasks = {{"transcribe", 5}, {"translate", 6}};
    GraphBuilder encoder("encode");
    const std::vector<ir::Dim> sizes{dynamic(1, 8, "b"), fixed(info.mels), fixed(info.frames)};
    const auto features = encoder.input("input_features", DType::f32, sizes);
    encoder.output(encoder.node("aten.abs.default", {{"self", ir::Arg::of_value(features)}}, DType::f32, sizes));
    LanguageModelInfo model_info = model->info();
    model_info.encoder = EncoderInfo{true, info.frames / 2, {7}, info};
    speech = std::make_shared<const LanguageModel>(graph.build_with({&encoder}), model_info, with_words()->tokenizer());
  }
};

// The same as a model of pictures and text. A picture of 4 x 4 pixels is kRows tokens, whose features are its pixels.
struct SmallPictureModel : SmallLanguageModel {
  static constexpr std::int64_t kSide = 4, kRows = 3, kImage = kVocabulary - 1;
  std::shared_ptr<const LanguageModel> pictures;

  explicit SmallPictureModel(const std::function<void(ImagesInfo&)>& change = {}) {
    GraphBuilder step("step_with_images"), tower("encode_image");
    const auto pixels = tower.input("pixel_values", DType::f32, {fixed(1), fixed(3), fixed(kSide), fixed(kSide)});
    tower.output(tower.node("aten.view.default",
                            {{"self", ir::Arg::of_value(pixels)}, {"size", of_ints({kRows, kSize})}}, DType::f32,
                            {fixed(kRows), fixed(kSize)}));
    ImagesInfo images;
    ImageProcessing processing;
    processing.size = ImageProcessing::Size{kSide, kSide};
    processing.rescale_factor = 1.0 / 128;
    images.processing = processing;
    images.token = images.place = "<image>";
    images.token_id = kImage;
    images.rows = kRows;
    images.width = kSize;
    if (change) change(images);
    decode(step, 1, 0.5, kContext, true, images.blocks != ImagesInfo::Blocks::none);
    LanguageModelInfo info = model->info();
    info.images = images;
    pictures =
        std::make_shared<const LanguageModel>(graph.build_with({&step, &tower}), info, words_and("<image>", "image"));
  }

  static Image picture(std::int64_t height, std::int64_t width, unsigned seed) {
    std::mt19937 rng(seed);
    Image out{height, width, {}};
    for (std::int64_t i = 0; i < height * width * 3; ++i) out.pixels.push_back(static_cast<std::uint8_t>(rng() % 256));
    return out;
  }
};

// The same as a model whose layer attends to pictures. A picture of 4 x 4 or 4 x 8 pixels is one or two tiles of kRows
// rows, whose features are its pixels. Its token has no logit.
struct SmallAttendedModel : SmallLanguageModel {
  static constexpr std::int64_t kSide = 4, kRows = 3, kTiles = 2, kImage = kVocabulary;
  std::shared_ptr<const LanguageModel> pictures;

  explicit SmallAttendedModel(const std::function<void(ImagesInfo&)>& change = {}) {
    GraphBuilder step("step_with_images"), tower("encode_image"), store("store_image");
    const auto of = [](ir::ValueId id) { return ir::Arg::of_value(id); };
    const auto pixels =
        tower.input("pixel_values", DType::f32, {fixed(1), fixed(kTiles), fixed(3), fixed(kSide), fixed(kSide)});
    tower.input("shape", DType::i64, {fixed(1), fixed(1)});
    tower.input("valid", DType::i64, {fixed(1), fixed(kTiles)});
    tower.output(tower.node("aten.view.default", {{"self", of(pixels)}, {"size", of_ints({kTiles * kRows, kSize})}},
                            DType::f32, {fixed(kTiles * kRows), fixed(kSize)}));
    const auto features = store.input("features", DType::f32, {fixed(1), fixed(kRows), fixed(kSize)});
    const auto position = store.input("position", DType::i64, {fixed(1), fixed(kRows)});
    const auto heads = store.node("aten.unsqueeze.default", {{"self", of(features)}, {"dim", of_int(1)}}, DType::f32,
                                  {fixed(1), fixed(1), fixed(kRows), fixed(kSize)});
    store.output(store.node("graft.store_source.default",
                            {{"key", of(heads)},
                             {"value", of(heads)},
                             {"position", of(position)},
                             {"layer", of_int(1)},
                             {"append", ir::Arg{ir::Arg::Kind::boolean, 1, 0, {}, {}}}},
                            DType::i64, {fixed(1), fixed(kRows)}));
    decode(step, 1, 0.5, kContext, false, false, true);
    ImagesInfo images;
    CanvasProcessing processing{kSide, kTiles, {}};
    processing.each.rescale_factor = 1.0 / 128;
    images.processing = processing;
    images.token = images.place = "<image>";
    images.token_id = kImage;
    images.rows = kRows;
    images.width = kSize;
    images.attended = true;
    images.bos = "0t";
    if (change) change(images);
    LanguageModelInfo info = model->info();
    info.images = images;
    pictures = std::make_shared<const LanguageModel>(graph.build_with({&step, &tower, &store}), info,
                                                     words_and("<image>", "image", kImage));
  }
};

// The same as a model of sound and text: windows of 8 frames, whose features are 2 rows of the spectrogram's numbers.
struct SmallAudioModel : SmallLanguageModel {
  static constexpr std::int64_t kAudio = kVocabulary - 1, kRate = 100, kWindow = 32, kMels = 4, kFrames = 8;
  std::shared_ptr<const LanguageModel> audio;

  explicit SmallAudioModel(bool ends_with_sound = false, const std::function<void(AudioInfo&)>& change = {}) {
    GraphBuilder step("step_with_audio"), tower("encode_audio");
    decode(step, 1, 0.5, kContext, true);
    const auto spectrogram = tower.input("input_features", DType::f32, {fixed(1), fixed(kMels), fixed(kFrames)});
    if (ends_with_sound) tower.input("heard", DType::b8, {fixed(1), fixed(kFrames / 2)});
    tower.output(tower.node("aten.view.default",
                            {{"self", ir::Arg::of_value(spectrogram)}, {"size", of_ints({2, kSize})}}, DType::f32,
                            {fixed(2), fixed(kSize)}));
    AudioInfo about{kRate, 8, 4, kMels, kFrames, 2, kSize, ends_with_sound, "<audio>", kAudio, "<audio>"};
    if (change) change(about);
    LanguageModelInfo info = model->info();
    info.audio = about;
    audio =
        std::make_shared<const LanguageModel>(graph.build_with({&step, &tower}), info, words_and("<audio>", "audio"));
  }

  static Audio sound(std::int64_t samples, unsigned seed, std::int64_t rate = kRate) {
    std::mt19937 rng(seed);
    Audio out{{}, rate};
    for (std::int64_t i = 0; i < samples; ++i) out.samples.push_back(static_cast<float>(rng() % 2001) / 1000.f - 1.f);
    return out;
  }
};

// Token ids of its vocabulary; others for each seed.
inline std::vector<std::int64_t> some_ids(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int64_t>(rng() % SmallLanguageModel::kVocabulary));
  return ids;
}

// Of all tokens of the prompt, one row after another.
inline std::vector<float> logits_of(Decoder& decoder, const ImagePrompt& prompt) {
  std::vector<float> all;
  decoder.score(prompt, [&](std::span<float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
  return all;
}

inline std::vector<std::int64_t> tokens_of(TextGenerator& generator, const ImagePrompt& prompt,
                                           std::int64_t count = 12) {
  return generator.generate(prompt, {.max_new_tokens = count}).tokens;
}

// Asks one batch with a prefix cache twice for this text with each of these pictures, beside another text: the answers
// are those of generators of their own. Returns how many tokens of each prompt were there already.
inline std::vector<std::int64_t> reused_in_batches(const std::shared_ptr<const LanguageModel>& model,
                                                   const std::string& text,
                                                   const std::vector<std::vector<Image>>& pictures) {
  constexpr std::int64_t kTokens = 12;
  const std::vector<std::int64_t> plain{1, 2, 3};
  const DecoderOptions options{.threads = 1, .rows = 2, .prefill_chunk_size = 32};
  BatchGenerator batch(model, options, {20 * PrefixCacheOptions::block_bytes(model, options), {}});
  std::vector<std::int64_t> reused;
  for (int round = 0; round < 2; ++round)
    for (const auto& images : pictures) {
      const ImagePrompt prompt = model->encode_with_images(text, images);
      TextGenerator fresh(model, {.threads = 1});
      const auto id = batch.submit(prompt, {.max_new_tokens = kTokens}, RequestOptions());
      const auto other = batch.submit(plain, {.max_new_tokens = kTokens});
      while (batch.step()) {
      }
      reused.push_back(batch.state(id).reused_tokens);
      EXPECT_EQ(batch.take(id)->tokens, tokens_of(fresh, prompt, kTokens));
      EXPECT_EQ(batch.take(other)->tokens, fresh.generate(plain, {.max_new_tokens = kTokens}).tokens);
    }
  EXPECT_GT(batch.prefix_cache().restored, 0U);
  return reused;
}

}  // namespace graft::test
