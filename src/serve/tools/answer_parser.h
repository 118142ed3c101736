#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "serve/tools/answer_part.h"
#include "serve/tools/family.h"
#include "serve/tools/harmony.h"
#include "serve/tools/named_call.h"

namespace graft::serve {

// What is said of the parts of an answer before it begins.
struct AnswerStyle {
  ToolFamily family = ToolFamily::none;  // none: calls are not looked for
  ReasoningTags reasoning = {};
  bool begins_in_reasoning = false;               // the prompt ends with the tag that begins it
  bool channels = false;                          // the answer is written in channels (harmony), with calls or without
  std::string begun = {};                         // of the answer, at the end of the prompt
  std::shared_ptr<const OrderedJson> tools = {};  // that may be called

  bool takes_apart() const { return family != ToolFamily::none || !reasoning.end.empty() || channels; }
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
  bool in_named_call(bool last, std::vector<AnswerPart>& parts);
  // A call of which `text` has come, and no more will: one that has been named is one, though it is not complete.
  void give_up_call(bool named, const std::string& text, std::vector<AnswerPart>& parts);
  bool begins_call(std::size_t lead, bool last, std::size_t& keep, std::vector<AnswerPart>& parts);
  void begin_call(std::size_t before, std::string_view tag, std::vector<AnswerPart>& parts);
  bool next_call();
  bool to_content();

  AnswerStyle style_;
  State state_;
  std::string left_;  // text that is not taken yet
  std::string tag_;   // that began the call
  bool any_content_ = false;
  bool drop_blanks_ = false;  // those before the next content: they belong to a tag
  CallScanner scanner_;
  std::optional<NamedCall> named_call_;    // instead, in families whose calls begin with a name
  std::optional<HarmonyParser> channels_;  // instead of all else
};

}  // namespace graft::serve
