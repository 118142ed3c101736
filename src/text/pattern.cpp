#include "text/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace graft::text {
namespace {

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = info != nullptr ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return {reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(size)};
}

const OnigUChar* begin_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

// Once per process, before anything is compiled.
void initialize() {
  static const int code = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  GRAFT_CHECK(SystemError, code == ONIG_NORMAL, "Oniguruma cannot be initialized: ", message_of(code));
}

class Region {
 public:
  Region() : region_(onig_region_new()) {
    if (region_ == nullptr) throw std::bad_alloc();
  }
  ~Region() { onig_region_free(region_, 1); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  OnigRegion* get() { return region_; }

 private:
  OnigRegion* region_;
};

}  // namespace

class Pattern::Compiled {
 public:
  explicit Compiled(const std::string& expression) : expression_(expression) {
    initialize();
    OnigErrorInfo info{};
    const OnigUChar* begin = begin_of(expression_);
    const int code = onig_new(&regex_, begin, begin + expression_.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                              ONIG_SYNTAX_RUBY, &info);
    GRAFT_CHECK(InvalidProgram, code == ONIG_NORMAL, "the regular expression '", expression_,
                "' cannot be used: ", message_of(code, &info));
  }
  ~Compiled() { onig_free(regex_); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  Cuts find(std::string_view text) const {
    Cuts out;
    Region region;
    const OnigUChar* begin = begin_of(text);
    const OnigUChar* end = begin + text.size();
    std::size_t from = 0;
    std::size_t last = 0;  // the end of the last match
    bool any = false;
    while (from <= text.size()) {
      const int found = onig_search(regex_, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE);
      if (found == ONIG_MISMATCH) break;
      GRAFT_CHECK(ExecutionError, found >= 0, "searching '", expression_, "' in a text of ", text.size(),
                  " bytes failed: ", message_of(found));
      const auto match_begin = static_cast<std::size_t>(region.get()->beg[0]);
      const auto match_end = static_cast<std::size_t>(region.get()->end[0]);
      // No empty match directly after another match.
      if (match_begin == match_end && any && match_end == last) {
        if (from >= text.size()) break;
        from += char_length(text[from]);
        continue;
      }
      if (last < match_begin) out.push_back({last, match_begin, false});
      out.push_back({match_begin, match_end, true});
      any = true;
      from = last = match_end;
    }
    if (last < text.size()) out.push_back({last, text.size(), false});
    return out;
  }

 private:
  std::string expression_;
  OnigRegex regex_ = nullptr;
};

Pattern Pattern::literal(std::string text) {
  // The regex engine decides what an empty string matches.
  if (text.empty()) return regex("");
  Pattern out;
  out.literal_ = std::move(text);
  return out;
}

Pattern Pattern::regex(const std::string& expression) {
  Pattern out;
  out.regex_ = std::make_shared<const Compiled>(expression);
  return out;
}

Cuts Pattern::find(std::string_view text) const {
  if (text.empty()) return {};
  if (regex_) return regex_->find(text);
  Cuts out;
  std::size_t last = 0;
  for (std::size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, last)) {
    if (last < at) out.push_back({last, at, false});
    last = at + literal_.size();
    out.push_back({at, last, true});
  }
  if (last < text.size()) out.push_back({last, text.size(), false});
  return out;
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  out.reserve(text.size());
  for (const Cut& cut : find(text)) out += cut.match ? content : text.substr(cut.begin, cut.end - cut.begin);
  return out;
}

Cuts split(const Cuts& cuts, SplitBehavior behavior) {
  Cuts out;
  const auto extend_if = [&](bool merge, const Cut& cut) {
    if (merge && !out.empty())
      out.back().end = cut.end;
    else
      out.push_back(cut);
  };
  bool before = false;
  switch (behavior) {
    case SplitBehavior::removed:
      for (const Cut& cut : cuts)
        if (!cut.match) out.push_back(cut);
      break;
    case SplitBehavior::isolated:
      out = cuts;
      break;
    case SplitBehavior::contiguous:
      for (const Cut& cut : cuts) {
        extend_if(cut.match == before, cut);
        before = cut.match;
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (const Cut& cut : cuts) {
        extend_if(cut.match && !before, cut);
        before = cut.match;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        if (cut->match && !before && !out.empty())
          out.back().begin = cut->begin;
        else
          out.push_back(*cut);
        before = cut->match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  std::erase_if(out, [](const Cut& cut) { return cut.begin == cut.end; });
  return out;
}

}  // namespace graft::text
