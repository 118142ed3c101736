#include <iostream>

#include "cli/chat_server.h"
#include "cli/line_editor.h"
#include "cli/llm_commands.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// Pictures or sounds of a conversation, and the command that adds one to the next message.
template <typename Medium>
struct Media {
  std::string_view command;  // "/image ", followed by a path
  Medium (*load)(const std::string& path);
  ChatPart part;  // of a message, for each
  std::vector<Medium> of_all, next;
};

// Reads messages and writes what `answer` says to each, until the input ends. `after` is called behind each answer.
// `media`: null: the model takes none.
template <typename Medium, typename Answer, typename After>
void talk(const std::string& system, const Answer& answer, const After& after, Media<Medium>* media) {
  std::vector<ChatMessage> first;
  if (!system.empty()) first.push_back({"system", system});
  std::vector<ChatMessage> messages = first;
  LineEditor lines("> ");
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  while (const auto line = lines.read()) {
    cancel.reset();
    if (line->empty()) continue;
    if (*line == "/clear") {
      messages = first;
      if (media) media->next.clear();
      if (media) media->of_all.clear();
      continue;
    }
    if (media && line->starts_with(media->command)) {
      try {
        media->next.push_back(media->load(line->substr(media->command.size())));
      } catch (const Error& error) {
        std::cerr << "graft: " << printable(error.what()) << "\n";
      }
      continue;
    }
    ChatMessage message{"user", *line};
    const std::size_t before = media ? media->of_all.size() : 0;
    if (media && !media->next.empty()) {
      message.parts.assign(media->next.size(), media->part);
      message.parts.push_back({*line});
      media->of_all.insert(media->of_all.end(), media->next.begin(), media->next.end());
    }
    messages.push_back(std::move(message));
    const auto take_back = [&] {
      messages.pop_back();
      if (media) media->of_all.resize(before);
    };
    const auto on_text = [](std::string_view text) { std::cout << text << std::flush; };
    try {
      const Generation said = answer(messages, on_text, cancel);
      std::cout << std::endl;
      if (said.reason == FinishReason::context) std::cerr << "graft: the context is full; /clear begins anew\n";
      if (said.text.empty() && said.reason == FinishReason::cancelled) {
        take_back();  // the question without an answer
      } else {
        messages.push_back({"assistant", said.text});
        if (media) media->next.clear();
      }
    } catch (const InvalidArgument& error) {
      // For example a message too long for the context: the conversation stays as before it.
      std::cerr << "graft: " << printable(error.what()) << "\n";
      take_back();
      if (media) media->next.clear();
      continue;
    }
    after();
  }
}

}  // namespace

int chat(const ChatArgs& args) {
  if (!args.server.empty()) {
    const ChatServer server(args);
    const auto answer = [&](const std::vector<ChatMessage>& messages, const auto& on_text, const CancelToken& cancel) {
      return server.answer(messages, on_text, cancel);
    };
    talk<Image>(
        args.system, answer, [] {}, nullptr);
    return 0;
  }
  const auto model = load_model(args.model, &args.decode);
  GenerationOptions options = settled(args.decode, model->info());
  options.adapters = load_adapters(args.decode, model, 1);
  const std::string chat_template = args.chat_template.empty() ? "" : read_text(args.chat_template);
  const std::int64_t context = args.decode.context > 0 ? args.decode.context : model->info().context_length;
  DecoderOptions decoder = decoder_options(args.model, args.decode, 1, context);
  decoder.pictures = args.pictures;
  TextGenerator generator(model, decoder);
  Media<Image> images{"/image ", load_image, {{}, true}, {}, {}};
  Media<Audio> audio{"/audio ", load_audio, {{}, false, true}, {}, {}};
  const bool hears = model->info().audio && !model->info().images;
  const auto answer = [&](const std::vector<ChatMessage>& messages, const auto& on_text, const CancelToken& cancel) {
    const std::string prompt = chat_prompt(*model, messages, chat_template);
    return generator.generate(
        hears ? model->encode_with_audio(prompt, audio.of_all, false)
              : model->encode_with_images(prompt, images.of_all, false),
        options, [&](std::size_t, std::string_view text) { on_text(text); }, &cancel);
  };
  const auto after = [&] {
    if (args.decode.stats) print_stats(generator, {0, generator.stats().prefill_seconds});
  };
  if (hears) {
    talk(args.system, answer, after, &audio);
  } else {
    talk(args.system, answer, after, model->info().images ? &images : nullptr);
  }
  return 0;
}

}  // namespace graft::cli
