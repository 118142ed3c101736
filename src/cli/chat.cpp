#include <iostream>

#include "cli/chat_server.h"
#include "cli/line_editor.h"
#include "cli/llm_commands.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// Reads messages and writes what `answer` says to each, until the input ends. `after` is called behind each answer.
// `images`: of all messages, to which "/image FILE" adds; null: the model takes none.
template <typename Answer, typename After>
void talk(const std::string& system, const Answer& answer, const After& after, std::vector<Image>* images = nullptr) {
  std::vector<ChatMessage> first;
  if (!system.empty()) first.push_back({"system", system});
  std::vector<ChatMessage> messages = first;
  std::vector<Image> next;  // of the next message
  LineEditor lines("> ");
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  while (const auto line = lines.read()) {
    cancel.reset();
    if (line->empty()) continue;
    if (*line == "/clear") {
      messages = first;
      next.clear();
      if (images) images->clear();
      continue;
    }
    if (constexpr std::string_view command = "/image "; images && line->starts_with(command)) {
      try {
        next.push_back(load_image(line->substr(command.size())));
      } catch (const Error& error) {
        std::cerr << "graft: " << printable(error.what()) << "\n";
      }
      continue;
    }
    ChatMessage message{"user", *line};
    const std::size_t before = images ? images->size() : 0;
    if (!next.empty()) {
      message.parts.assign(next.size(), {{}, true});
      message.parts.push_back({*line, false});
      images->insert(images->end(), next.begin(), next.end());
    }
    messages.push_back(std::move(message));
    const auto take_back = [&] {
      messages.pop_back();
      if (images) images->resize(before);
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
        next.clear();
      }
    } catch (const InvalidArgument& error) {
      // For example a message too long for the context: the conversation stays as before it.
      std::cerr << "graft: " << printable(error.what()) << "\n";
      take_back();
      next.clear();
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
    talk(args.system, answer, [] {});
    return 0;
  }
  const auto model = load_model(args.model, &args.decode);
  GenerationOptions options = settled(args.decode, model->info());
  options.adapters = load_adapters(args.decode, model, 1);
  const std::string chat_template = args.chat_template.empty() ? "" : read_text(args.chat_template);
  const std::int64_t context = args.decode.context > 0 ? args.decode.context : model->info().context_length;
  TextGenerator generator(model, decoder_options(args.model, args.decode, 1, context));
  std::vector<Image> images;
  const auto answer = [&](const std::vector<ChatMessage>& messages, const auto& on_text, const CancelToken& cancel) {
    return generator.generate(
        model->encode_with_images(chat_prompt(*model, messages, chat_template), images, false), options,
        [&](std::size_t, std::string_view text) { on_text(text); }, &cancel);
  };
  const auto after = [&] {
    if (args.decode.stats) print_stats(generator, {0, generator.stats().prefill_seconds});
  };
  talk(args.system, answer, after, model->info().images ? &images : nullptr);
  return 0;
}

}  // namespace graft::cli
