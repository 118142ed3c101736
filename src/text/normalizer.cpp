#include "text/normalizer.h"

#include <optional>
#include <vector>

#include "base/base64.h"
#include "base/check.h"
#include "text/byte_level.h"
#include "text/charsmap.h"
#include "text/json.h"
#include "text/pattern.h"
#include "text/pattern_json.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

// A step that is a function of the text and keeps its beginning.
template <typename Function>
class Mapping : public Normalizer {
 public:
  explicit Mapping(Function function) : function_(std::move(function)) {}
  void apply(Normalized& text) const override { text.text = function_(text.text); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<const Normalizer> mapping(Function function) {
  return std::make_unique<Mapping<Function>>(std::move(function));
}

// Replaces characters by `map(char32_t, std::string& out)`, which may append nothing.
template <typename Map>
void map_chars(Normalized& text, Map&& map) {
  std::string out;
  out.reserve(text.text.size());
  for (std::size_t at = 0; at < text.text.size();) {
    const bool first = at == 0;
    map(next_char(text.text, at), out);
    if (first && out.empty()) text.at_start = false;
  }
  text.text = std::move(out);
}

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(Normalized& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(Normalized& text) const override {
    const std::string_view whole = text.text;
    std::size_t begin = 0;
    std::size_t end = whole.size();
    while (left_ && begin < end) {
      std::size_t after = begin;
      if (!is_white_space(next_char(whole, after))) break;
      begin = after;
    }
    while (right_ && begin < end) {
      std::size_t last = end - 1;
      while (continues_char(whole[last])) --last;
      std::size_t after = last;
      if (!is_white_space(next_char(whole, after))) break;
      end = last;
    }
    if (begin > 0) text.at_start = false;
    text.text = text.text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents : public Normalizer {
 public:
  void apply(Normalized& text) const override {
    map_chars(text, [](char32_t c, std::string& out) {
      if (!is_combining_mark(c)) append_char(out, c);
    });
  }
};

// NMT's cleaning of control characters and rare spaces.
class Nmt : public Normalizer {
 public:
  void apply(Normalized& text) const override {
    map_chars(text, [](char32_t c, std::string& out) {
      const bool dropped =
          (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      if (dropped) return;
      const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      append_char(out, space ? U' ' : c);
    });
  }
};

class Bert : public Normalizer {
 public:
  explicit Bert(const Json& description)
      : clean_text_(bool_at(description, "clean_text", true, "BertNormalizer")),
        split_chinese_(bool_at(description, "handle_chinese_chars", true, "BertNormalizer")),
        lowercase_(bool_at(description, "lowercase", true, "BertNormalizer")),
        strip_accents_(bool_at(description, "strip_accents", lowercase_, "BertNormalizer")) {}

  void apply(Normalized& text) const override {
    if (clean_text_)
      map_chars(text, [](char32_t c, std::string& out) {
        if (c == 0 || c == 0xFFFD || is_control(c)) return;
        append_char(out, is_white_space(c) ? U' ' : c);
      });
    if (split_chinese_)
      map_chars(text, [](char32_t c, std::string& out) {
        const bool chinese = is_chinese(c);
        if (chinese) out += ' ';
        append_char(out, c);
        if (chinese) out += ' ';
      });
    if (strip_accents_) {
      text.text = normalized(text.text, NormalForm::nfd);
      map_chars(text, [](char32_t c, std::string& out) {
        if (!is_accent(c)) append_char(out, c);
      });
    }
    if (lowercase_) text.text = text::lowercase(text.text);
  }

 private:
  bool clean_text_;
  bool split_chinese_;
  bool lowercase_;
  bool strip_accents_;
};

std::optional<NormalForm> form_of(const std::string& type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const Json& description) {
  if (description.is_null()) return nullptr;
  const std::string type = string_at(description, "type", "normalizer");
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> parts;
    for (const Json& part : array_at(description, "normalizers", "normalizer")) {
      parts.push_back(make_normalizer(part));
      GRAFT_CHECK(InvalidProgram, parts.back(), "normalizer.normalizers has a null");
    }
    return std::make_unique<Sequence>(std::move(parts));
  }
  if (const auto form = form_of(type))
    return mapping([form = *form](const std::string& text) { return normalized(text, form); });
  if (type == "Lowercase") return mapping([](const std::string& text) { return lowercase(text); });
  if (type == "ByteLevel") return mapping([](const std::string& text) { return to_byte_level(text); });
  if (type == "Prepend")
    return mapping([prefix = string_at(description, "prepend", type)](const std::string& text) {
      return text.empty() ? text : prefix + text;
    });
  if (type == "Replace")
    return mapping([pattern = pattern_at(description, type), content = string_at(description, "content", type)](
                       const std::string& text) { return pattern.replace(text, content); });
  if (type == "Strip")
    return std::make_unique<Strip>(bool_at(description, "strip_left", true, type),
                                   bool_at(description, "strip_right", true, type));
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "BertNormalizer") return std::make_unique<Bert>(description);
  if (type == "Precompiled") {
    const Json& map = member(description, "precompiled_charsmap");
    if (map.is_null()) return mapping([](const std::string& text) { return text; });
    const auto bytes = from_base64(text_of(map, "precompiled_charsmap"));
    GRAFT_CHECK(InvalidProgram, bytes, "precompiled_charsmap is not base64");
    return mapping([charsmap = Charsmap(*bytes)](const std::string& text) { return charsmap.apply(text); });
  }
  throw Unsupported(str("the tokenizer has a normalizer of the unknown type '", type, "'"));
}

}  // namespace graft::text
