#include "text/pre_tokenizer.h"

#include "base/check.h"
#include "text/byte_level.h"
#include "text/json.h"
#include "text/pattern.h"
#include "text/pattern_json.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

constexpr const char* kGpt2Expression = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void append_cuts(Words& out, Normalized&& word, const Cuts& cuts) {
  if (cuts.size() == 1 && cuts[0].begin == 0 && cuts[0].end == word.text.size()) {
    out.push_back(std::move(word));
    return;
  }
  for (const Cut& cut : cuts)
    out.push_back({word.text.substr(cut.begin, cut.end - cut.begin), word.at_start && cut.begin == 0});
}

// A step that splits each word independently: `cut(Normalized&)` may rewrite the word first.
template <typename Cutter>
class Cutting : public PreTokenizer {
 public:
  explicit Cutting(Cutter cut) : cut_(std::move(cut)) {}
  void apply(Words& words) const override {
    Words out;
    out.reserve(words.size());
    for (Normalized& word : words) {
      const Cuts cuts = cut_(word);
      append_cuts(out, std::move(word), cuts);
    }
    words = std::move(out);
  }

 private:
  Cutter cut_;
};

template <typename Cutter>
std::unique_ptr<const PreTokenizer> cutting(Cutter cut) {
  return std::make_unique<Cutting<Cutter>>(std::move(cut));
}

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(Words& words) const override {
    for (const auto& part : parts_) part->apply(words);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(bool add_prefix_space) : add_prefix_space_(add_prefix_space) {}
  void apply(Words& words) const override {
    for (Normalized& word : words) {
      if (add_prefix_space_ && !word.text.starts_with(' ')) word.text.insert(0, 1, ' ');
      word.text = to_byte_level(word.text);
    }
  }

 private:
  bool add_prefix_space_;
};

Cuts whole(const std::string& text) { return text.empty() ? Cuts{} : Cuts{{0, text.size(), false}}; }

Cuts inverted(Cuts cuts) {
  for (Cut& cut : cuts) cut.match = !cut.match;
  return cuts;
}

SplitBehavior behavior_at(const Json& description, const std::string& where) {
  const std::string name = string_at(description, "behavior", where);
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  throw Unsupported(str("the tokenizer splits with the unknown behavior '", name, "'"));
}

char32_t char_at(const Json& description, const std::string& name, const std::string& where) {
  const std::string text = string_at(description, name, where);
  GRAFT_CHECK(InvalidProgram, !text.empty() && char_length(text[0]) == text.size(), where, ".", name,
              " should be one character, found '", text, "'");
  std::size_t at = 0;
  return next_char(text, at);
}

enum class Prepend { never, first, always };

Prepend prepend_at(const Json& description) {
  const Json& scheme = member(description, "prepend_scheme");
  Prepend out = Prepend::always;
  if (!scheme.is_null()) {
    const std::string name = text_of(scheme, "Metaspace.prepend_scheme");
    if (name == "never")
      out = Prepend::never;
    else if (name == "first")
      out = Prepend::first;
    else if (name != "always")
      throw Unsupported(str("the tokenizer's Metaspace has the unknown prepend_scheme '", name, "'"));
  }
  // The form of older files.
  if (!bool_at(description, "add_prefix_space", true, "Metaspace")) {
    GRAFT_CHECK(InvalidProgram, scheme.is_null() || out == Prepend::never,
                "Metaspace has add_prefix_space false and prepend_scheme '", scheme.get<std::string>(), "'");
    out = Prepend::never;
  }
  return out;
}

std::unique_ptr<const PreTokenizer> make_metaspace(const Json& description) {
  const char32_t replacement = char_at(description, "replacement", "Metaspace");
  std::string sign;
  append_char(sign, replacement);
  return cutting([sign, replacement, prepend = prepend_at(description),
                  splits = bool_at(description, "split", true, "Metaspace"),
                  space = Pattern::literal(" ")](Normalized& word) {
    word.text = space.replace(word.text, sign);
    const bool wanted = prepend == Prepend::always || (prepend == Prepend::first && word.at_start);
    if (wanted && !word.text.empty() && !word.text.starts_with(sign)) word.text.insert(0, sign);
    if (!splits) return whole(word.text);
    return split(cut_at_chars(word.text, [&](char32_t c) { return c == replacement; }),
                 SplitBehavior::merged_with_next);
  });
}

// \w+|[^\w\s]+: runs of word characters, of spaces, and of the rest.
Cuts cut_words(const std::string& text) {
  Cuts out;
  int before = -1;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_char(text, at);
    const int kind = is_word_char(c) ? 0 : is_white_space(c) ? 1 : 2;
    if (kind == before)
      out.back().end = at;
    else
      out.push_back({begin, at, kind == 1});
    before = kind;
  }
  return out;
}

Cuts cut_every(const std::string& text, std::int64_t length) {
  Cuts out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    for (std::int64_t i = 0; i < length && at < text.size(); ++i) at += char_length(text[at]);
    out.push_back({begin, at, false});
  }
  return out;
}

std::unique_ptr<const PreTokenizer> make_sequence(const Json& description) {
  std::vector<std::unique_ptr<const PreTokenizer>> parts;
  for (const Json& part : array_at(description, "pretokenizers", "pre_tokenizer")) {
    parts.push_back(make_pre_tokenizer(part));
    GRAFT_CHECK(InvalidProgram, parts.back(), "pre_tokenizer.pretokenizers has a null");
  }
  return std::make_unique<Sequence>(std::move(parts));
}

std::unique_ptr<const PreTokenizer> make_byte_level(const Json& description) {
  const bool add_prefix_space = bool_at(description, "add_prefix_space", true, "ByteLevel");
  if (!bool_at(description, "use_regex", true, "ByteLevel")) return std::make_unique<ByteLevel>(add_prefix_space);
  std::vector<std::unique_ptr<const PreTokenizer>> parts;
  parts.push_back(cutting([add_prefix_space, words = Pattern::regex(kGpt2Expression)](Normalized& word) {
    if (add_prefix_space && !word.text.starts_with(' ')) word.text.insert(0, 1, ' ');
    return split(words.find(word.text), SplitBehavior::isolated);
  }));
  parts.push_back(std::make_unique<ByteLevel>(false));
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& description) {
  if (description.is_null()) return nullptr;
  const std::string type = string_at(description, "type", "pre_tokenizer");
  if (type == "Sequence") return make_sequence(description);
  if (type == "ByteLevel") return make_byte_level(description);
  if (type == "Metaspace") return make_metaspace(description);
  if (type == "Split")
    return cutting([pattern = pattern_at(description, type), behavior = behavior_at(description, type),
                    invert = bool_at(description, "invert", false, type)](const Normalized& word) {
      Cuts cuts = pattern.find(word.text);
      return split(invert ? inverted(std::move(cuts)) : cuts, behavior);
    });
  if (type == "Digits")
    return cutting([behavior = bool_at(description, "individual_digits", false, type) ? SplitBehavior::isolated
                                                                                      : SplitBehavior::contiguous](
                       const Normalized& word) { return split(cut_at_chars(word.text, is_number), behavior); });
  if (type == "Punctuation") {
    const bool given = !member(description, "behavior").is_null();
    return cutting([behavior = given ? behavior_at(description, type) : SplitBehavior::isolated](
                       const Normalized& word) { return split(cut_at_chars(word.text, is_punctuation), behavior); });
  }
  if (type == "Whitespace")
    return cutting([](const Normalized& word) { return split(cut_words(word.text), SplitBehavior::removed); });
  if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    auto spaces = cutting(
        [](const Normalized& word) { return split(cut_at_chars(word.text, is_white_space), SplitBehavior::removed); });
    if (type == "WhitespaceSplit") return spaces;
    std::vector<std::unique_ptr<const PreTokenizer>> parts;
    parts.push_back(std::move(spaces));
    parts.push_back(cutting([](const Normalized& word) {
      return split(cut_at_chars(word.text, is_punctuation), SplitBehavior::isolated);
    }));
    return std::make_unique<Sequence>(std::move(parts));
  }
  if (type == "CharDelimiterSplit")
    return cutting([delimiter = char_at(description, "delimiter", type)](const Normalized& word) {
      return split(cut_at_chars(word.text, [&](char32_t c) { return c == delimiter; }), SplitBehavior::removed);
    });
  if (type == "FixedLength") {
    const std::int64_t length = member(description, "length").is_null() ? 5 : integer_at(description, "length", type);
    GRAFT_CHECK(InvalidProgram, length > 0, "FixedLength.length should be above 0, found ", length);
    return cutting([length](const Normalized& word) { return cut_every(word.text, length); });
  }
  throw Unsupported(str("the tokenizer has a pre-tokenizer of the unknown type '", type, "'"));
}

std::unique_ptr<const PreTokenizer> make_byte_level_split(const std::vector<std::string>& expressions) {
  std::vector<std::unique_ptr<const PreTokenizer>> parts;
  for (const std::string& expression : expressions)
    parts.push_back(cutting([words = Pattern::regex(expression)](const Normalized& word) {
      return split(words.find(word.text), SplitBehavior::isolated);
    }));
  parts.push_back(std::make_unique<ByteLevel>(false));
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace graft::text
