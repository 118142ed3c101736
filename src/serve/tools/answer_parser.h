#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/tools/family.h"

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

// What is said of the parts of an answer before it begins.
struct AnswerStyle {
  ToolFamily family = ToolFamily::none;  // none: calls are not looked for
  bool reasoning = false;
  bool begins_in_reasoning = false;  // the prompt ends with <think>
  std::string begun = {};            // of the answer, at the end of the prompt
};

// The JSON object of one call, as its text comes.
class CallScanner {
 public:
  // Takes text and adds the parts that it makes known. Returns how many characters belong to the object: fewer than
  // all when it has ended.
  std::size_t add(std::string_view text, std::vector<AnswerPart>& parts);
  bool ended() const { return ended_; }
  // Whether what has come can be no call: it is content.
  bool failed() const { return failed_; }
  bool named() const { return named_; }
  const std::string& text() const { return text_; }

 private:
  void take(char c, std::vector<AnswerPart>& parts);
  void end(std::vector<AnswerPart>& parts);

  std::string text_;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false, ended_ = false, failed_ = false, named_ = false;
  bool is_key_ = false, after_colon_ = false;
  std::string string_, key_;
  std::size_t value_begin_ = 0, arguments_sent_ = 0;
  bool in_arguments_ = false, arguments_done_ = false;
};

// Takes the text of an answer apart, while it comes: reasoning, content and calls. What looks like a call and is none
// is content.
class AnswerParser {
 public:
  explicit AnswerParser(const AnswerStyle& style);
  // The text that follows; `last`: all of it is there. Parts of a tag that is not complete wait.
  std::vector<AnswerPart> add(std::string_view text, bool last);

 private:
  enum class State { start, reasoning, content, call, after_call };
  bool step(bool last, std::vector<AnswerPart>& parts);
  bool start(bool last);
  bool in_reasoning(bool last, std::vector<AnswerPart>& parts);
  bool in_content(bool last, std::vector<AnswerPart>& parts);
  bool in_call(bool last, std::vector<AnswerPart>& parts);
  bool after_call(bool last, std::vector<AnswerPart>& parts);
  void give_up_call(std::vector<AnswerPart>& parts);
  void emit(AnswerPart::Kind kind, std::string_view text, std::vector<AnswerPart>& parts);

  AnswerStyle style_;
  State state_;
  std::string left_;  // text that is not taken yet
  std::string tag_;   // that began the call
  bool any_content_ = false;
  bool drop_blanks_ = false;  // those before the next content: they belong to a tag
  CallScanner scanner_;
};

}  // namespace graft::serve
