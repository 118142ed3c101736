#include "serve/tools/named_call.h"

#include <algorithm>
#include <utility>

#include "base/trim.h"
#include "serve/json_fields.h"

namespace graft::serve {
namespace {

constexpr std::string_view kSeparator = "<｜tool▁sep｜>", kArgs = "[ARGS]", kCallId = "[CALL_ID]",
                           kCallWord = "call:", kFunction = "<function=", kFunctionEnd = "</function>",
                           kParameter = "<parameter=", kParameterEnd = "</parameter>", kJsonFence = "```json";
constexpr std::size_t kLongestName = 512;  // with what stands around it
constexpr int kDeepest = 64;

std::string_view gemma_quote(ToolFamily family) { return family == ToolFamily::gemma ? "<|\"|>" : "<escape>"; }

// A value as Gemma writes it, and what is left of the text. False: there is none.
class GemmaValue {
 public:
  GemmaValue(std::string_view text, std::string_view quote) : left_(text), quote_(quote) {}

  bool value(std::string& out, int depth) {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"), left_.size()));
    if (left_.empty() || depth > kDeepest) return false;
    if (left_[0] == '{') return list(out, '}', depth);
    if (left_[0] == '[') return list(out, ']', depth);
    if (left_.starts_with(quote_) || left_[0] == '"') return string(out);
    const std::string_view bare = trimmed(left_.substr(0, std::min(left_.find_first_of(",}]"), left_.size())));
    if (bare.empty()) return false;
    left_.remove_prefix(static_cast<std::size_t>(bare.data() - left_.data()) + bare.size());
    const Json read = read_json<Json>(bare, false);
    out += read.is_discarded() ? Json(std::string(bare)).dump() : std::string(bare);
    return true;
  }
  bool at_end() const { return trimmed(left_).empty(); }

 private:
  bool string(std::string& out) {
    if (left_.starts_with(quote_)) {
      const std::size_t end = left_.find(quote_, quote_.size());
      if (end == left_.npos) return false;
      out += Json(std::string(left_.substr(quote_.size(), end - quote_.size()))).dump();
      left_.remove_prefix(end + quote_.size());
      return true;
    }
    std::size_t end = 1;
    while (end < left_.size() && left_[end] != '"') end += left_[end] == '\\' ? 2 : 1;
    if (end >= left_.size()) return false;
    const std::string_view whole = left_.substr(0, end + 1);
    if (read_json<Json>(whole, false).is_discarded()) return false;
    out += whole;
    left_.remove_prefix(end + 1);
    return true;
  }

  bool key(std::string& out) {
    if (left_.starts_with(quote_) || left_.starts_with('"')) return string(out);
    const std::size_t end = left_.find(':');
    if (end == left_.npos) return false;
    out += Json(std::string(trimmed(left_.substr(0, end)))).dump();
    left_.remove_prefix(end);
    return true;
  }

  // Objects and arrays.
  bool list(std::string& out, char close, int depth) {
    out += left_[0];
    left_.remove_prefix(1);
    for (bool first = true;; first = false) {
      skip_blanks();
      if (left_.empty()) return false;
      if (left_[0] == close) break;
      if (!first) {
        if (left_[0] != ',') return false;
        left_.remove_prefix(1);
        skip_blanks();
        out += ',';
      }
      if (close == '}') {
        if (!key(out)) return false;
        skip_blanks();
        if (!left_.starts_with(':')) return false;
        left_.remove_prefix(1);
        out += ':';
      }
      if (!value(out, depth + 1)) return false;
    }
    out += close;
    left_.remove_prefix(1);
    return true;
  }

  void skip_blanks() { left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"), left_.size())); }

  std::string_view left_, quote_;
};

// The schema of a tool's argument; null: unknown.
const Json* schema_of(const Json* tools, const std::string& tool, const std::string& argument) {
  if (!tools) return nullptr;
  for (const Json& entry : *tools) {
    const Json& function = entry["function"];
    if (function["name"] != Json(tool)) continue;
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) return nullptr;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) return nullptr;
    const auto found = properties->find(argument);
    return found == properties->end() ? nullptr : &*found;
  }
  return nullptr;
}

// Text of an argument that may be a string: it is one unless the schema says otherwise.
Json value_of(std::string_view text, const Json* schema) {
  Json value(std::string{text});
  if (!schema || !schema->is_object()) return value;
  const auto type = schema->find("type");
  if (type == schema->end() || *type == Json("string")) return value;
  Json read = read_json<Json>(text, false);
  return read.is_discarded() ? value : read;
}

}  // namespace

std::string json_of_gemma(std::string_view text, std::string_view quote) {
  std::string out;
  GemmaValue value(text, quote);
  return value.value(out, 0) && value.at_end() && out.starts_with('{') ? out : "";
}

std::size_t NamedCall::add(std::string_view text, std::vector<AnswerPart>& parts) {
  const std::size_t before = text_.size();
  text_ += text;
  while (state_ == State::name ? read_name(parts) : state_ == State::arguments && read_arguments(parts)) {
  }
  if (!ended()) return text.size();
  // What follows the call is not its own. (The end is in this text: what came before did not end it.)
  const std::size_t taken = at_ - before;
  text_.resize(at_);
  return taken;
}

void NamedCall::set_name(std::string_view name, std::size_t end, std::vector<AnswerPart>& parts) {
  name = trimmed(name);
  if (name.empty() || name.find_first_of("\n<>{}[]\"") != name.npos) {
    state_ = State::failed;
    return;
  }
  name_ = name;
  parts.push_back({AnswerPart::Kind::call, name_});
  at_ = end;
  state_ = State::arguments;
}

// Whether there may be more to read.
bool NamedCall::read_name(std::vector<AnswerPart>& parts) {
  const std::string_view text = text_;
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  // The prefix before a name, as far as it has come, and the text that ends the name.
  const auto between = [&](std::string_view prefix, std::string_view end) {
    const std::string_view rest = text.substr(begin);
    if (!rest.starts_with(prefix.substr(0, rest.size()))) return state_ = State::failed, false;
    if (rest.size() < prefix.size()) return false;
    const std::size_t from = begin + prefix.size(), to = text.find(end, from);
    if (to == text.npos) {
      if (text.size() - from > kLongestName) state_ = State::failed;
      return false;
    }
    std::string_view name = text.substr(from, to - from);
    if (family_ == ToolFamily::mistral_args) name = name.substr(0, name.find(kCallId));
    // The brace belongs to the arguments.
    set_name(name, to + (end == "{" ? 0 : end.size()), parts);
    return state_ == State::arguments;
  };
  switch (family_) {
    case ToolFamily::mistral_args:
      return between("", kArgs);
    case ToolFamily::gemma:
    case ToolFamily::function_gemma:
      return between(kCallWord, "{");
    case ToolFamily::qwen_xml:
      return between(kFunction, ">");
    default:
      break;
  }
  // DeepSeek: f SEP {...}, or function SEP f, a line end and ```json {...} ```.
  const std::size_t separator = text.find(kSeparator);
  if (separator == text.npos) {
    if (text.size() > kLongestName) state_ = State::failed;
    return false;
  }
  const std::size_t after = separator + kSeparator.size();
  const std::size_t value = text.find_first_not_of(" \t\r\n", after);
  if (value == text.npos) return false;
  if (text[value] == '{') {
    set_name(text.substr(0, separator), value, parts);
    return state_ == State::arguments;
  }
  const std::size_t line_end = text.find('\n', value);
  if (line_end == text.npos) {
    if (text.size() - value > kLongestName) state_ = State::failed;
    return false;
  }
  set_name(text.substr(value, line_end - value), line_end, parts);
  return state_ == State::arguments;
}

bool NamedCall::read_arguments(std::vector<AnswerPart>& parts) {
  if (family_ == ToolFamily::gemma || family_ == ToolFamily::function_gemma) return read_gemma(parts);
  if (family_ == ToolFamily::qwen_xml) return read_xml(parts);
  return read_json(parts);
}

bool NamedCall::read_json(std::vector<AnswerPart>& parts) {
  if (depth_ == 0) {
    std::string_view rest = std::string_view(text_).substr(at_);
    const std::size_t blank = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    rest.remove_prefix(blank);
    std::size_t skipped = blank;
    if (family_ == ToolFamily::deepseek && rest.starts_with('`')) {
      if (rest.size() < kJsonFence.size()) {
        if (!kJsonFence.starts_with(rest)) state_ = State::failed;
        return false;
      }
      if (!rest.starts_with(kJsonFence)) return state_ = State::failed, false;
      rest.remove_prefix(kJsonFence.size());
      const std::size_t more = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
      rest.remove_prefix(more);
      skipped += kJsonFence.size() + more;
    }
    if (rest.empty()) return false;
    if (rest[0] != '{') return state_ = State::failed, false;
    at_ += skipped;
    sent_ = at_;
  }
  bool whole = false;
  for (; at_ < text_.size() && !whole; ++at_) {
    const char c = text_[at_];
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      whole = --depth_ == 0;
    }
  }
  if (at_ > sent_) parts.push_back({AnswerPart::Kind::arguments, text_.substr(sent_, at_ - sent_)});
  sent_ = at_;
  if (whole) state_ = State::ended;
  return false;
}

bool NamedCall::read_gemma(std::vector<AnswerPart>& parts) {
  const std::string_view quote = gemma_quote(family_);
  // Up to the brace that closes the first one, outside strings of either kind.
  std::string_view rest = std::string_view(text_).substr(at_);
  int depth = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest.substr(i).starts_with(quote)) {
      const std::size_t end = rest.find(quote, i + quote.size());
      if (end == rest.npos) return false;
      i = end + quote.size() - 1;
    } else if (rest[i] == '"') {
      for (++i; i < rest.size() && rest[i] != '"'; ++i) i += rest[i] == '\\';
    } else if (rest[i] == '{' || rest[i] == '[') {
      ++depth;
    } else if ((rest[i] == '}' || rest[i] == ']') && --depth == 0) {
      std::string json = json_of_gemma(rest.substr(0, i + 1), quote);
      if (json.empty()) return state_ = State::failed, false;
      at_ += i + 1;
      parts.push_back({AnswerPart::Kind::arguments, std::move(json)});
      state_ = State::ended;
      return false;
    }
  }
  return false;
}

bool NamedCall::read_xml(std::vector<AnswerPart>& parts) {
  const std::size_t end = text_.find(kFunctionEnd, at_);
  if (end == text_.npos) return false;
  std::string_view rest = std::string_view(text_).substr(at_, end - at_);
  std::string json = "{";
  for (rest = trimmed(rest); !rest.empty(); rest = trimmed(rest)) {
    const std::size_t key_end = rest.find('>');
    if (!rest.starts_with(kParameter) || key_end == rest.npos) return state_ = State::failed, false;
    const std::string key(rest.substr(kParameter.size(), key_end - kParameter.size()));
    rest.remove_prefix(key_end + 1);
    const std::size_t value_end = std::min(rest.find(kParameterEnd), rest.find(kParameter));
    std::string_view value = rest.substr(0, std::min(value_end, rest.size()));
    rest.remove_prefix(value.size());
    if (rest.starts_with(kParameterEnd)) rest.remove_prefix(kParameterEnd.size());
    // A line end on either side belongs to the notation.
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    json +=
        (json.size() > 1 ? ", " : "") + Json(key).dump() + ": " + value_of(value, schema_of(tools_, name_, key)).dump();
  }
  at_ = end + kFunctionEnd.size();
  parts.push_back({AnswerPart::Kind::arguments, json + '}'});
  state_ = State::ended;
  return false;
}

}  // namespace graft::serve
