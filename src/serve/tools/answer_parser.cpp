#include "serve/tools/answer_parser.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "serve/json_fields.h"
#include "serve/tools/tag.h"

namespace graft::serve {
namespace {

constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>", kMistral = "[TOOL_CALLS]",
                           kDeepSeek = "<｜tool▁calls▁begin｜>", kDeepSeekEnd = "<｜tool▁calls▁end｜>",
                           kDeepSeekCall = "<｜tool▁call▁begin｜>", kDeepSeekCallEnd = "<｜tool▁call▁end｜>",
                           kGemma = "<|tool_call>", kGemmaEnd = "<tool_call|>",
                           kFunctionGemma = "<start_function_call>", kFunctionGemmaEnd = "<end_function_call>",
                           kFence = "```";

bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::size_t blanks(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find_if_not(text, blank) - text.begin());
}

struct CallTags {
  std::string_view before;  // empty: there is none, or not only one
  std::string_view after;   // of the call's text, but no part of anything
};

CallTags call_tags(ToolFamily family) {
  switch (family) {
    case ToolFamily::hermes:
    case ToolFamily::qwen_xml:
      return {kCall, kCallEnd};
    case ToolFamily::mistral_args:
      return {kMistral, {}};
    case ToolFamily::deepseek:
      return {kDeepSeek, {}};
    case ToolFamily::gemma:
      return {kGemma, kGemmaEnd};
    case ToolFamily::function_gemma:
      return {kFunctionGemma, kFunctionGemmaEnd};
    default:
      return {};
  }
}

}  // namespace

// --- a call ---

std::size_t CallScanner::add(std::string_view text, std::vector<AnswerPart>& parts) {
  std::size_t i = 0;
  for (; i < text.size() && !ended_ && !failed_; ++i) take(text[i], parts);
  if (in_arguments_ && named_ && !failed_ && text_.size() > arguments_sent_) {
    parts.push_back({AnswerPart::Kind::arguments, text_.substr(arguments_sent_)});
    arguments_sent_ = text_.size();
  }
  return i;
}

void CallScanner::take(char c, std::vector<AnswerPart>& parts) {
  text_ += c;
  if (in_string_) {
    if (!escaped_ && c == '"') {
      in_string_ = false;
      if (depth_ == 1 && is_key_) key_ = string_;
      if (depth_ == 1 && !is_key_ && key_ == "name" && !named_) {
        const Json name = read_json<Json>('"' + string_ + '"', false);
        failed_ = !name.is_string() || name.get_ref<const std::string&>().empty();
        if (!failed_) {
          named_ = true;
          parts.push_back({AnswerPart::Kind::call, name.get<std::string>()});
        }
      }
      return;
    }
    escaped_ = !escaped_ && c == '\\';
    if (depth_ == 1) string_ += c;
    return;
  }
  if (blank(c)) return;
  if (depth_ == 0) {
    failed_ = c != '{';
    depth_ = 1;
    is_key_ = true;
    return;
  }
  const bool value_begins = depth_ == 1 && after_colon_ && c != ':';
  if (value_begins) {
    after_colon_ = false;
    // Arguments that come before the name, or are no object, are read when the call is complete.
    if ((key_ == "arguments" || key_ == "parameters") && named_ && c == '{' && !arguments_done_) {
      in_arguments_ = true;
      arguments_sent_ = text_.size() - 1;
    }
  }
  switch (c) {
    case '"':
      in_string_ = true;
      escaped_ = false;
      string_.clear();
      return;
    case '{':
    case '[':
      ++depth_;
      return;
    case '}':
    case ']':
      --depth_;
      if (depth_ == 1 && in_arguments_) {
        parts.push_back({AnswerPart::Kind::arguments, text_.substr(arguments_sent_)});
        in_arguments_ = false;
        arguments_done_ = true;
      }
      if (depth_ == 0) end(parts);
      return;
    case ':':
      if (depth_ == 1) {
        after_colon_ = true;
        is_key_ = false;
      }
      return;
    case ',':
      if (depth_ == 1) is_key_ = true;
      return;
    default:
      return;
  }
}

void CallScanner::end(std::vector<AnswerPart>& parts) {
  ended_ = true;
  if (named_ && arguments_done_) return;
  const Json call = read_json<Json>(text_, false);
  const auto name = call.is_object() ? call.find("name") : call.end();
  if (!call.is_object() || name == call.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    failed_ = true;
    return;
  }
  std::string arguments = "{}";
  for (const char* key : {"arguments", "parameters"})
    if (const auto found = call.find(key); found != call.end() && !found->is_null())
      arguments = found->is_string() ? found->get<std::string>() : found->dump();
  if (!named_) parts.push_back({AnswerPart::Kind::call, name->get<std::string>()});
  named_ = true;
  parts.push_back({AnswerPart::Kind::arguments, std::move(arguments)});
}

// --- an answer ---

AnswerParser::AnswerParser(const AnswerStyle& style)
    : style_(style), state_(style.begins_in_reasoning ? State::reasoning : State::start), left_(style.begun) {
  if (style.channels) channels_.emplace(style.family == ToolFamily::harmony);
}

std::vector<AnswerPart> AnswerParser::add(std::string_view text, bool last) {
  left_ += text;
  std::vector<AnswerPart> parts;
  if (channels_) {
    channels_->add(std::exchange(left_, {}), last, parts);
    return parts;
  }
  while (step(last, parts)) {
  }
  return parts;
}

// Whether something was taken, so that there may be more.
bool AnswerParser::step(bool last, std::vector<AnswerPart>& parts) {
  switch (state_) {
    case State::start:
      return start(last);
    case State::reasoning:
      return in_reasoning(last, parts);
    case State::content:
      return in_content(last, parts);
    case State::call:
      return in_call(last, parts);
    case State::after_call:
      return after_call(last, parts);
  }
  return false;
}

bool AnswerParser::start(bool last) {
  const std::string_view text = std::string_view(left_).substr(blanks(left_));
  const auto [begin, end] = style_.reasoning;
  if (!end.empty() && text.starts_with(begin)) {
    left_ = text.substr(begin.size());
    state_ = State::reasoning;
    return true;
  }
  if (!end.empty() && !last && begin.starts_with(text)) return false;
  state_ = State::content;
  return true;
}

bool AnswerParser::in_reasoning(bool last, std::vector<AnswerPart>& parts) {
  const std::string_view tag = style_.reasoning.end;
  const std::size_t end = left_.find(tag);
  if (end != left_.npos) {
    std::string_view text = std::string_view(left_).substr(0, end);
    while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    append_part(AnswerPart::Kind::reasoning, text.substr(any_content_ ? 0 : blanks(text)), parts);
    left_.erase(0, end + tag.size());
    any_content_ = false;
    drop_blanks_ = true;
    state_ = State::content;
    return true;
  }
  // Blanks at the end wait: they are dropped before the tag.
  std::size_t keep = last ? 0 : begun_at_end(left_, tag);
  while (keep < left_.size() && blank(left_[left_.size() - keep - 1])) ++keep;
  const std::string_view text = std::string_view(left_).substr(0, left_.size() - keep);
  const std::string_view shown = text.substr(any_content_ ? 0 : blanks(text));
  any_content_ |= !shown.empty();
  append_part(AnswerPart::Kind::reasoning, shown, parts);
  left_.erase(0, text.size());
  return false;
}

bool AnswerParser::in_content(bool last, std::vector<AnswerPart>& parts) {
  if (drop_blanks_) {
    left_.erase(0, blanks(left_));
    if (left_.empty()) return false;
    drop_blanks_ = false;
  }
  // Blanks between the reasoning, or the beginning, and what follows are dropped where a call follows.
  const std::size_t lead = any_content_ ? 0 : blanks(left_);
  std::size_t keep = 0;
  if (begins_call(lead, last, keep, parts)) return true;
  if (last) keep = 0;
  // Blanks before a tag belong to nothing.
  while (!last && style_.family != ToolFamily::none && keep < left_.size() && blank(left_[left_.size() - keep - 1]))
    ++keep;
  const std::string_view shown = std::string_view(left_).substr(0, left_.size() - keep);
  any_content_ |= blanks(shown) < shown.size();
  append_part(AnswerPart::Kind::content, shown, parts);
  left_.erase(0, shown.size());
  return false;
}

// Otherwise sets how much of the end may be the beginning of a call.
bool AnswerParser::begins_call(std::size_t lead, bool last, std::size_t& keep, std::vector<AnswerPart>& parts) {
  const std::string_view text = std::string_view(left_).substr(lead);
  if (const std::string_view tag = call_tags(style_.family).before; !tag.empty()) {
    if (const std::size_t at = left_.find(tag); at != left_.npos) return begin_call(at, tag, parts), true;
    keep = begun_at_end(left_, tag);
  } else if (style_.family == ToolFamily::mistral) {
    if (const std::size_t at = left_.find(kMistral); at != left_.npos) {
      const std::size_t open = at + kMistral.size() + blanks(std::string_view(left_).substr(at + kMistral.size()));
      if (open == left_.size() && !last) {
        keep = left_.size() - at;
        return false;
      }
      if (open < left_.size() && left_[open] == '[')
        return begin_call(at, std::string(std::string_view(left_).substr(at, open + 1 - at)), parts), true;
    }
    // The tag may be missing.
    if (!any_content_ && text.starts_with("[{")) return begin_call(lead, "[", parts), true;
    keep = begun_at_end(left_, kMistral);
    if (!any_content_ && std::string_view("[{").starts_with(text)) keep = left_.size();
  } else if (style_.family == ToolFamily::llama3) {
    if (!any_content_ && text.starts_with("{")) return begin_call(lead, "", parts), true;
    if (!any_content_ && text.empty()) keep = left_.size();
  }
  return false;
}

void AnswerParser::begin_call(std::size_t before, std::string_view tag, std::vector<AnswerPart>& parts) {
  std::string_view content = std::string_view(left_).substr(0, before);
  while (!content.empty() && blank(content.back())) content.remove_suffix(1);
  if (!any_content_) content.remove_prefix(std::min(content.size(), blanks(content)));
  append_part(AnswerPart::Kind::content, content, parts);
  any_content_ |= !content.empty();
  left_.erase(0, before + tag.size());
  tag_ = tag;
  next_call();
}

bool AnswerParser::next_call() {
  scanner_ = {};
  named_call_.reset();
  state_ = State::call;
  return true;
}

bool AnswerParser::to_content() {
  any_content_ = false;
  drop_blanks_ = true;
  state_ = State::content;
  return true;
}

void AnswerParser::give_up_call(bool named, const std::string& text, std::vector<AnswerPart>& parts) {
  if (!named) {
    append_part(AnswerPart::Kind::content, tag_ + text, parts);
    any_content_ = true;
  }
  state_ = State::content;
}

bool AnswerParser::in_call(bool last, std::vector<AnswerPart>& parts) {
  switch (style_.family) {
    case ToolFamily::mistral_args:
    case ToolFamily::gemma:
    case ToolFamily::function_gemma:
      return in_named_call(last, parts);
    case ToolFamily::deepseek: {
      if (named_call_) return in_named_call(last, parts);
      left_.erase(0, blanks(left_));
      if (!last && left_.size() < kDeepSeekCall.size() && kDeepSeekCall.starts_with(left_)) return false;
      if (left_.starts_with(kDeepSeekCall)) {
        left_.erase(0, kDeepSeekCall.size());
        tag_ += kDeepSeekCall;
      }
      return in_named_call(last, parts);
    }
    case ToolFamily::qwen_xml:
      if (named_call_) return in_named_call(last, parts);
      // An object is a call as Hermes writes it: those that must come are.
      if (blanks(left_) == left_.size() && !last) return false;
      if (left_[std::min(blanks(left_), left_.size())] != '{' && scanner_.text().empty())
        return in_named_call(last, parts);
      break;
    default:
      break;
  }
  const std::size_t taken = scanner_.add(left_, parts);
  left_.erase(0, taken);
  if (scanner_.ended() && !scanner_.failed()) {
    state_ = State::after_call;
    return true;
  }
  if (!scanner_.failed() && !last) return false;
  const bool more = scanner_.failed() || !left_.empty();
  give_up_call(scanner_.named(), scanner_.text(), parts);
  return more;
}

bool AnswerParser::in_named_call(bool last, std::vector<AnswerPart>& parts) {
  if (!named_call_) named_call_.emplace(style_.family, style_.tools.get());
  const std::size_t taken = named_call_->add(left_, parts);
  left_.erase(0, taken);
  if (named_call_->ended()) {
    state_ = State::after_call;
    return true;
  }
  if (!named_call_->failed() && !last) return false;
  // What a name was followed by is no call's, unless the answer was cut off there.
  if (named_call_->named())
    append_part(named_call_->failed() ? AnswerPart::Kind::content : AnswerPart::Kind::arguments, named_call_->rest(),
                parts);
  give_up_call(named_call_->named(), named_call_->text(), parts);
  return true;
}

// To the end of the call's tag, or to the next call of a list.
bool AnswerParser::after_call(bool last, std::vector<AnswerPart>&) {
  left_.erase(0, blanks(left_));
  const auto begins = [&](std::string_view tag) {
    return !last && left_.size() < tag.size() && tag.starts_with(left_);
  };
  if (const std::string_view tag = call_tags(style_.family).after; !tag.empty()) {
    if (begins(tag)) return false;
    if (left_.starts_with(tag)) {
      left_.erase(0, tag.size());
      left_.erase(0, blanks(left_));
    }
    return to_content();
  }
  if (left_.empty() && !last) return false;
  if (style_.family == ToolFamily::deepseek) {
    for (const std::string_view tag : {kFence, kDeepSeekCallEnd, kDeepSeekEnd}) {
      if (begins(tag)) return false;
      if (!left_.starts_with(tag)) continue;
      left_.erase(0, tag.size());
      return tag == kDeepSeekEnd ? to_content() : true;
    }
    if (begins(kDeepSeekCall)) return false;
    tag_.clear();
    return left_.starts_with(kDeepSeekCall) ? next_call() : to_content();
  }
  if (left_.empty()) return to_content(), false;
  const char c = left_[0];
  if (style_.family == ToolFamily::mistral && c == ']') {
    left_.erase(0, 1);
    return to_content();
  }
  if (style_.family != ToolFamily::mistral_args && c == (style_.family == ToolFamily::mistral ? ',' : ';')) {
    left_.erase(0, 1);
    left_.erase(0, blanks(left_));
    tag_.clear();
    return next_call();
  }
  return to_content();
}

}  // namespace graft::serve
