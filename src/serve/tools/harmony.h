#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/tools/answer_part.h"

namespace graft::serve {

// Takes an answer of gpt-oss apart: messages of the form
// <|start|>assistant<|channel|>CHANNEL to=functions.NAME <|constrain|>json<|message|>TEXT<|end|>, the first one from
// where the prompt has ended. Channel analysis is reasoning; a message to a function is a call, with TEXT as its
// arguments; all else is content. Source of the format: OpenAI's guide to Harmony.
class HarmonyParser {
 public:
  // `calls`: whether messages to functions are calls; otherwise they are content.
  explicit HarmonyParser(bool calls) : calls_(calls) {}
  void add(std::string_view text, bool last, std::vector<AnswerPart>& parts);

 private:
  enum class State { header, text };
  bool read_header(bool last, std::vector<AnswerPart>& parts);
  bool read_text(bool last, std::vector<AnswerPart>& parts);

  bool calls_;
  State state_ = State::header;
  AnswerPart::Kind kind_ = AnswerPart::Kind::content;
  std::string left_;  // text that is not taken yet
};

}  // namespace graft::serve
