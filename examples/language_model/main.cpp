// A conversation with a language model: one line in, one streamed answer out. usage: talk MODEL.pte < lines
// Models without a chat template continue each line instead.
#include <graft/llm.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: talk MODEL.pte\n";
    return 2;
  }
  const auto model = graft::LanguageModel::load(argv[1]);
  const bool chats = model->has_tokenizer() && !model->tokenizer()->chat_template().empty();
  graft::TextGenerator generator(model);
  std::vector<graft::ChatMessage> messages;
  for (std::string line; std::getline(std::cin, line);) {
    messages.push_back({"user", line});
    // The prefix that the prompt shares with the last one is still in the cache and is not computed again.
    const std::string prompt = chats ? graft::chat_prompt(*model, messages) : line;
    const graft::Generation answer =
        generator.generate(model->encode(prompt, !chats), {.max_new_tokens = 128},
                           [](std::size_t, std::string_view text) { std::cout << text << std::flush; });
    messages.push_back({"assistant", answer.text});
    std::cout << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
