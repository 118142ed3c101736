#pragma once

#include <string>

namespace graft::serve {

// A part of an answer, in the order of the text.
struct AnswerPart {
  enum class Kind {
    reasoning,
    content,
    call,       // `text` is the name of the tool that a new call names
    arguments,  // of the last call, as far as they are known: JSON
  };
  Kind kind = Kind::content;
  std::string text;
};

}  // namespace graft::serve
