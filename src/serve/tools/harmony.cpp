#include "serve/tools/harmony.h"

#include <algorithm>

#include "base/trim.h"
#include "serve/tools/tag.h"

namespace graft::serve {
namespace {

constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStart = "<|start|>", kEnd = "<|end|>",
                           kCallMark = "<|call|>", kReturn = "<|return|>", kTo = "to=functions.";
constexpr std::size_t kLongestHeader = 512;

}  // namespace

void HarmonyParser::add(std::string_view text, bool last, std::vector<AnswerPart>& parts) {
  left_ += text;
  while (state_ == State::header ? read_header(last, parts) : read_text(last, parts)) {
  }
}

// Whether there may be more to read.
bool HarmonyParser::read_header(bool last, std::vector<AnswerPart>& parts) {
  const std::string_view text = left_;
  const std::size_t end = text.find(kMessage);
  if (end == text.npos && !(last || text.size() > kLongestHeader)) return false;
  if (end == text.npos) {
    // No header: a model that does not know the format, or one that was cut off in it.
    const bool begun = text.empty() || text.find(kChannel) != text.npos || kChannel.starts_with(text) ||
                       text.starts_with(kStart) || kStart.starts_with(text);
    if (begun && last) {
      left_.clear();
      return false;
    }
    kind_ = AnswerPart::Kind::content;
    state_ = State::text;
    return true;
  }
  const std::string_view header = text.substr(0, end);
  const std::size_t to = header.find(kTo), channel = header.find(kChannel);
  kind_ = AnswerPart::Kind::content;
  if (to != header.npos && calls_) {
    std::string_view name = header.substr(to + kTo.size());
    name = name.substr(0, name.find_first_of(" <\t\n"));
    kind_ = AnswerPart::Kind::arguments;
    parts.push_back({AnswerPart::Kind::call, std::string(name)});
  } else if (channel != header.npos && trimmed(header.substr(channel + kChannel.size())).starts_with("analysis")) {
    kind_ = AnswerPart::Kind::reasoning;
  }
  left_.erase(0, end + kMessage.size());
  state_ = State::text;
  return true;
}

bool HarmonyParser::read_text(bool last, std::vector<AnswerPart>& parts) {
  std::size_t end = left_.npos, tag = 0, keep = 0;
  for (const std::string_view mark : {kEnd, kCallMark, kReturn, kStart}) {
    if (const std::size_t at = left_.find(mark); at < end) {
      end = at;
      tag = mark.size();
    }
    keep = std::max(keep, begun_at_end(left_, mark));
  }
  if (end == left_.npos) end = left_.size() - (last ? 0 : keep);
  if (end > 0) append_part(kind_, std::string_view(left_).substr(0, end), parts);
  left_.erase(0, end + tag);
  if (tag > 0) state_ = State::header;
  return tag > 0;
}

}  // namespace graft::serve
