#include "serve/tools/answer_parser.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "serve/json_fields.h"

namespace graft::serve {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>", kCallEnd = "</tool_call>",
                           kMistral = "[TOOL_CALLS]";

bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// How much of the end of the text may be the beginning of the tag.
std::size_t begun_at_end(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

std::size_t blanks(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find_if_not(text, blank) - text.begin());
}

}  // namespace

ToolFamily tool_family(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  if (!has("tools")) return ToolFamily::none;
  // Another way to write calls, which is not parsed: <function=name><parameter=...>, name[ARGS]{...}.
  if (has("<function=") || has("[ARGS]")) return ToolFamily::none;
  if (has("<tool_call>")) return ToolFamily::hermes;
  if (has("[TOOL_CALLS]")) return ToolFamily::mistral;
  if (has("<|python_tag|>") || (has("\"parameters\"") && has("ipython"))) return ToolFamily::llama3;
  return ToolFamily::none;
}

bool has_reasoning(std::string_view chat_template) { return chat_template.find("</think>") != chat_template.npos; }

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
    : style_(style), state_(style.begins_in_reasoning ? State::reasoning : State::start), left_(style.begun) {}

void AnswerParser::emit(AnswerPart::Kind kind, std::string_view text, std::vector<AnswerPart>& parts) {
  if (text.empty()) return;
  if (!parts.empty() && parts.back().kind == kind && kind != AnswerPart::Kind::call)
    parts.back().text += text;
  else
    parts.push_back({kind, std::string(text)});
}

std::vector<AnswerPart> AnswerParser::add(std::string_view text, bool last) {
  left_ += text;
  std::vector<AnswerPart> parts;
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
  if (style_.reasoning && text.starts_with(kThink)) {
    left_ = text.substr(kThink.size());
    state_ = State::reasoning;
    return true;
  }
  if (style_.reasoning && !last && kThink.starts_with(text)) return false;
  state_ = State::content;
  return true;
}

bool AnswerParser::in_reasoning(bool last, std::vector<AnswerPart>& parts) {
  const std::size_t end = left_.find(kThinkEnd);
  if (end != left_.npos) {
    std::string_view text = std::string_view(left_).substr(0, end);
    while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    emit(AnswerPart::Kind::reasoning, text.substr(any_content_ ? 0 : blanks(text)), parts);
    left_.erase(0, end + kThinkEnd.size());
    any_content_ = false;
    drop_blanks_ = true;
    state_ = State::content;
    return true;
  }
  // Blanks at the end wait: they are dropped before the tag.
  std::size_t keep = last ? 0 : begun_at_end(left_, kThinkEnd);
  while (keep < left_.size() && blank(left_[left_.size() - keep - 1])) ++keep;
  const std::string_view text = std::string_view(left_).substr(0, left_.size() - keep);
  const std::string_view shown = text.substr(any_content_ ? 0 : blanks(text));
  any_content_ |= !shown.empty();
  emit(AnswerPart::Kind::reasoning, shown, parts);
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
  const std::string_view text = std::string_view(left_).substr(lead);
  const auto begin_call = [&](std::size_t before, std::string_view tag) {
    std::string_view content = std::string_view(left_).substr(0, before);
    while (!content.empty() && blank(content.back())) content.remove_suffix(1);
    if (!any_content_) content.remove_prefix(std::min(content.size(), blanks(content)));
    emit(AnswerPart::Kind::content, content, parts);
    any_content_ |= !content.empty();
    left_.erase(0, before + tag.size());
    tag_ = tag;
    scanner_ = {};
    state_ = State::call;
    return true;
  };
  std::size_t keep = 0;
  switch (style_.family) {
    case ToolFamily::none:
      break;
    case ToolFamily::hermes:
      if (const std::size_t at = left_.find(kCall); at != left_.npos) return begin_call(at, kCall);
      keep = begun_at_end(left_, kCall);
      break;
    case ToolFamily::mistral:
      if (const std::size_t at = left_.find(kMistral); at != left_.npos) {
        const std::size_t open = at + kMistral.size() + blanks(std::string_view(left_).substr(at + kMistral.size()));
        if (open == left_.size() && !last) {
          keep = left_.size() - at;
          break;
        }
        if (open < left_.size() && left_[open] == '[')
          return begin_call(at, std::string(std::string_view(left_).substr(at, open + 1 - at)));
      }
      // Special tokens are no part of the text: the tag may be missing.
      if (!any_content_ && text.starts_with("[{")) return begin_call(lead, "[");
      keep = std::max(keep, begun_at_end(left_, kMistral));
      if (!any_content_ && std::string_view("[{").starts_with(text)) keep = left_.size();
      break;
    case ToolFamily::llama3:
      if (!any_content_ && text.starts_with("{")) return begin_call(lead, "");
      if (!any_content_ && text.empty()) keep = left_.size();
      break;
  }
  if (last) keep = 0;
  // Blanks before a tag belong to nothing.
  while (!last && style_.family != ToolFamily::none && keep < left_.size() && blank(left_[left_.size() - keep - 1]))
    ++keep;
  const std::string_view shown = std::string_view(left_).substr(0, left_.size() - keep);
  any_content_ |= blanks(shown) < shown.size();
  emit(AnswerPart::Kind::content, shown, parts);
  left_.erase(0, shown.size());
  return false;
}

void AnswerParser::give_up_call(std::vector<AnswerPart>& parts) {
  // A call that has been named is one, though it is not complete.
  if (!scanner_.named()) {
    emit(AnswerPart::Kind::content, tag_ + scanner_.text(), parts);
    any_content_ = true;
  }
  state_ = State::content;
}

bool AnswerParser::in_call(bool last, std::vector<AnswerPart>& parts) {
  const std::size_t taken = scanner_.add(left_, parts);
  left_.erase(0, taken);
  if (scanner_.failed()) {
    give_up_call(parts);
    return true;
  }
  if (scanner_.ended()) {
    state_ = State::after_call;
    return true;
  }
  if (last) {
    give_up_call(parts);
    return !left_.empty();
  }
  return false;
}

// To the end of the call's tag, or to the next call of a list.
bool AnswerParser::after_call(bool last, std::vector<AnswerPart>&) {
  left_.erase(0, blanks(left_));
  const auto next_call = [&] {
    scanner_ = {};
    tag_.clear();
    state_ = State::call;
    return true;
  };
  const auto to_content = [&] {
    any_content_ = false;
    drop_blanks_ = true;
    state_ = State::content;
    return true;
  };
  if (style_.family == ToolFamily::hermes) {
    if (left_.starts_with(kCallEnd)) {
      left_.erase(0, kCallEnd.size());
      left_.erase(0, blanks(left_));
      return to_content();
    }
    if (!last && kCallEnd.starts_with(left_)) return false;
    return to_content();
  }
  if (left_.empty() && !last) return false;
  if (left_.empty()) return to_content(), false;
  const char c = left_[0];
  if (style_.family == ToolFamily::mistral && c == ']') {
    left_.erase(0, 1);
    return to_content();
  }
  if (c == (style_.family == ToolFamily::mistral ? ',' : ';')) {
    left_.erase(0, 1);
    left_.erase(0, blanks(left_));
    return next_call();
  }
  return to_content();
}

}  // namespace graft::serve
