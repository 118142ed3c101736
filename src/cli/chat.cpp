#include <iostream>

#include "cli/chat_server.h"
#include "cli/line_editor.h"
#include "cli/llm_commands.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// Reads messages and writes what `answer` says to each, until the input ends. `after` is called behind each answer.
template <typename Answer, typename After>
void talk(const std::string& system, const Answer& answer, const After& after) {
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
      continue;
    }
    messages.push_back({"user", *line});
    const auto on_text = [](std::string_view text) { std::cout << text << std::flush; };
    try {
      const Generation said = answer(messages, on_text, cancel);
      std::cout << std::endl;
      if (said.reason == FinishReason::context) std::cerr << "graft: the context is full; /clear begins anew\n";
      if (said.text.empty() && said.reason == FinishReason::cancelled) {
        messages.pop_back();  // drop the question without an answer
      } else {
        messages.push_back({"assistant", said.text});
      }
    } catch (const InvalidArgument& error) {
      // For example a message too long for the context: the conversation stays as before it.
      std::cerr << "graft: " << printable(error.what()) << "\n";
      messages.pop_back();
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
  const auto answer = [&](const std::vector<ChatMessage>& messages, const auto& on_text, const CancelToken& cancel) {
    return generator.generate(
        model->encode(chat_prompt(*model, messages, chat_template), false), options,
        [&](std::size_t, std::string_view text) { on_text(text); }, &cancel);
  };
  talk(args.system, answer, [&] {
    if (args.decode.stats) print_stats(generator, {0, generator.stats().prefill_seconds});
  });
  return 0;
}

}  // namespace graft::cli
