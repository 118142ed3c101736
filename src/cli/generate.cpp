#include <algorithm>
#include <iostream>

#include "base/clock.h"
#include "base/json.h"
#include "cli/llm_commands.h"
#include "cli/npy.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

std::vector<ChatMessage> read_messages(const std::string& path) {
  try {
    std::vector<ChatMessage> messages;
    for (const Json& message : read_json<Json>(read_text(path))) {
      ChatMessage& one = messages.emplace_back(ChatMessage{message.at("role").get<std::string>(), {}});
      const Json& content = message.at("content");
      if (!content.is_array()) {
        one.content = content.get<std::string>();
        continue;
      }
      for (const Json& part : content) {
        const Json& type = part.at("type");
        const bool image = is_text(type, "image"), audio = is_text(type, "audio");
        if (!image && !audio && !is_text(type, "text"))
          fail("expected parts of type text, image or audio in '", path, "', found ", type.dump());
        one.parts.push_back({image || audio ? "" : part.at("text").get<std::string>(), image, audio});
      }
    }
    return messages;
  } catch (const Json::exception& error) {
    fail(R"(expected [{"role": "...", "content": "..."}, ...] in ')", path, "': ", error.what());
  }
}

std::vector<ImagePrompt> encode_prompts(const GenerateArgs& args, const LanguageModel& model) {
  const int kinds = !args.prompts.empty() + !args.prompt_file.empty() + !args.messages_file.empty();
  if (kinds != 1) fail("expected one of --prompt, --prompt-file and --messages, found ", kinds);
  if (model.info().encoder && model.info().encoder->takes_features)
    fail("the model's encoder reads features: give --features FILE.npy");
  if (!args.images.empty() && !model.info().images)
    fail("--image: ", model.info().architecture, " takes no pictures: the package is of text alone");
  if (!args.audio.empty() && !model.info().audio)
    fail("--audio: ", model.info().architecture, " takes no sound: the package is of other input");
  if (!args.images.empty() && !args.audio.empty()) fail("expected --image or --audio, found both");
  const bool with_sound = !args.audio.empty() || !model.info().images;
  std::vector<Image> images;
  for (const std::string& path : args.images) images.push_back(load_image(path));
  std::vector<Audio> audio;
  for (const std::string& path : args.audio) audio.push_back(load_audio(path));
  const std::string chat_template = args.chat_template.empty() ? "" : read_text(args.chat_template);
  if (!args.messages_file.empty()) {
    const std::string prompt = chat_prompt(model, read_messages(args.messages_file), chat_template);
    return {with_sound ? model.encode_with_audio(prompt, audio, false)
                       : model.encode_with_images(prompt, images, false)};
  }
  std::vector<std::string> prompts = args.prompts;
  if (!args.prompt_file.empty()) prompts = {read_text(args.prompt_file)};
  if (!images.empty() && prompts.size() > 1)
    fail("--image: expected one prompt, found ", prompts.size(), ": pictures are of one alone");
  if (!audio.empty() && prompts.size() > 1)
    fail("--audio: expected one prompt, found ", prompts.size(), ": sounds are of one alone");
  std::vector<ImagePrompt> encoded;
  for (const std::string& prompt : prompts)
    encoded.push_back(with_sound ? audio_prompt(model, prompt, audio, chat_template)
                                 : image_prompt(model, prompt, images, chat_template));
  return encoded;
}

// [batch, mels, frames]; a single input may leave the batch out.
Array read_features(const std::string& path) {
  Array features = read_npy(path);
  Shape& shape = features.tensor.shape;
  if (shape.rank() == 2) shape = Shape{1, shape[0], shape[1]};
  if (shape.rank() != 3 || shape[0] < 1 || features.tensor.dtype != DType::f32)
    fail("expected f32 features [mels, frames] or [batch, mels, frames] in '", path, "', found ",
         TensorDesc(features.tensor.dtype, features.tensor.shape).str());
  return features;
}

void print_logits(TextGenerator& generator, std::span<const ImagePrompt> prompts, const CancelToken& cancel) {
  Decoder& decoder = generator.decoder();
  const std::int64_t vocabulary = decoder.model().info().vocab_size;
  RunOptions options;
  options.cancel = &cancel;
  for (const auto& prompt : prompts) {
    std::int64_t rows = 0;
    decoder.truncate(0, 0);
    decoder.score(
        prompt.tokens, [&](std::span<float> logits) { rows += std::ssize(logits) / vocabulary; }, options);
    std::cerr << "prefill logits: [1, " << rows << ", " << vocabulary << "]\n";
  }
  decoder.truncate(0, 0);
  std::cerr << "decode logits: [" << prompts.size() << ", 1, " << vocabulary << "]\n";
}

// The message on stderr about a text that did not end with EOS or a stop string.
std::string_view notice(FinishReason reason) {
  switch (reason) {
    case FinishReason::context:
      return "the context is full";
    case FinishReason::cancelled:
      return "interrupted";
    default:
      return "";
  }
}

}  // namespace

int generate(const GenerateArgs& args) {
  const auto start = Clock::now();
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  const auto model = load_model(args.model, &args.decode);
  Speeds speeds;
  speeds.load_seconds = seconds_since(start);
  GenerationOptions options = settled(args.decode, model->info());
  const auto& encoder = model->info().encoder;
  std::optional<Array> features;
  if (!args.features_file.empty()) {
    if (!encoder || !encoder->takes_features) fail("--features: the model has no encoder of features");
    features = read_features(args.features_file);
  }
  const auto prompts = features ? std::vector<ImagePrompt>(static_cast<std::size_t>(features->tensor.shape[0]),
                                                           {encoder->decoder_start_token_ids})
                                : encode_prompts(args, *model);
  options.adapters = load_adapters(args.decode, model, prompts.size());
  std::int64_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt.tokens));
  const std::int64_t encoder_length = encoder && !features ? longest : 0;
  if (encoder_length > 0) {
    if (encoder_length > encoder->context_length)
      fail("the prompt has ", encoder_length, " tokens, the model's encoder has room for ", encoder->context_length);
    longest = std::ssize(encoder->decoder_start_token_ids);
  }
  const std::int64_t most = model->info().context_length;
  if (args.decode.context > most) fail("--context is ", args.decode.context, ", the model's context ", most);
  const std::int64_t context = args.decode.context > 0 ? args.decode.context : most;
  // A cache no longer than needed; the generator checks the prompt's length.
  const std::int64_t wanted = std::max(options.max_new_tokens, options.prompt_lookup_num_tokens);
  const std::int64_t length = longest < context && wanted < context - longest ? longest + wanted + 1 : context;
  DecoderOptions decoder = decoder_options(args.model, args.decode, std::ssize(prompts), std::min(length, context));
  decoder.encoder_length = encoder_length;
  decoder.pictures = std::max<std::int64_t>(std::ssize(args.images), 1);
  TextGenerator generator(model, decoder);
  if (args.all_logits && (encoder || !args.images.empty() || !args.audio.empty()))
    fail("--all-logits: not of a model with an encoder, or with pictures or sound");
  if (args.all_logits) print_logits(generator, prompts, cancel);
  if (features) {
    std::vector<const Adapter*> adapters;
    for (const auto& adapter : options.adapters) adapters.push_back(adapter.get());
    RunOptions with_adapters;
    with_adapters.adapters = adapters;
    generator.decoder().encode(features->tensor, with_adapters);
  }
  const bool stream = prompts.size() == 1;
  const auto on_text = [&](std::size_t, std::string_view text) {
    if (stream) std::cout << text << std::flush;
  };
  const double before = seconds_since(start);
  const std::vector<Generation> results = generator.generate(prompts, options, on_text, &cancel);
  speeds.first_token_seconds = before + generator.stats().prefill_seconds;
  bool stopped = false;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!stream) std::cout << (r ? "\n" : "") << "==> prompt " << r << " <==\n" << results[r].text << "\n";
    const std::string_view said = notice(results[r].reason);
    stopped |= results[r].reason == FinishReason::cancelled;
    if (said.empty()) continue;
    std::cout << std::flush;
    std::cerr << (stream ? "\n" : "") << "graft: " << said << " after " << results[r].tokens.size() << " tokens";
    if (results[r].reason == FinishReason::context) std::cerr << ": it has room for " << generator.decoder().capacity();
    std::cerr << "\n";
  }
  std::cout << std::flush;
  if (args.decode.stats) print_stats(generator, speeds);
  return stopped ? kInterrupted : 0;
}

}  // namespace graft::cli
