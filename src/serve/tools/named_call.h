#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "serve/tools/answer_part.h"
#include "serve/tools/family.h"

namespace graft::serve {

// A call that is written as its tool's name and then its arguments, as its text comes: from the tag before the name to
// the end of the arguments. What a family writes in another notation becomes JSON. Arguments that are JSON already are
// passed on while they come.
class NamedCall {
 public:
  // `tools` ([{"function": {"name", "parameters"}}]) say which arguments are strings, where that is not written.
  NamedCall(ToolFamily family, const OrderedJson* tools) : family_(family), tools_(tools) {}

  // Takes text and adds the parts that it makes known. Returns how many characters belong to the call: fewer than all
  // when it has ended.
  std::size_t add(std::string_view text, std::vector<AnswerPart>& parts);
  bool ended() const { return state_ == State::ended; }
  // Whether what has come can be no call: it is content.
  bool failed() const { return state_ == State::failed; }
  bool named() const { return !name_.empty(); }
  const std::string& text() const { return text_; }
  // Of it what was not passed on, once there is a name.
  std::string_view rest() const { return std::string_view(text_).substr(at_); }

 private:
  enum class State { name, arguments, ended, failed };
  bool read_name(std::vector<AnswerPart>& parts);
  void set_name(std::string_view name, std::size_t end, std::vector<AnswerPart>& parts);
  bool read_arguments(std::vector<AnswerPart>& parts);
  bool read_json(std::vector<AnswerPart>& parts);
  bool read_gemma(std::vector<AnswerPart>& parts);
  bool read_xml(std::vector<AnswerPart>& parts);

  ToolFamily family_;
  const OrderedJson* tools_;
  State state_ = State::name;
  std::string text_;      // all of the call
  std::size_t at_ = 0;    // of text_: taken so far
  std::size_t sent_ = 0;  // of text_: arguments that were passed on
  std::string name_;
  int depth_ = 0;  // of brackets in the arguments
  bool in_string_ = false, escaped_ = false;
};

// Arguments as Gemma writes them, {a:1,b:[true,<|"|>text<|"|>]}, with `quote` around strings; JSON's strings are taken
// too. The JSON object; empty: `text` is none.
std::string json_of_gemma(std::string_view text, std::string_view quote);

}  // namespace graft::serve
