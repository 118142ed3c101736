#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "mutate_json.h"

namespace graft::fuzz {
namespace {

// Parts of tokenizer.json, valid ones among them.
constexpr const char* kFragments[] = {
    R"({"type": "NFC"})",
    R"({"type": "NFKD"})",
    R"({"type": "Lowercase"})",
    R"({"type": "StripAccents"})",
    R"({"type": "Strip", "strip_left": true, "strip_right": true})",
    R"({"type": "Prepend", "prepend": "▁"})",
    R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})",
    R"({"type": "Replace", "pattern": {"Regex": "a+|(b)\\1"}, "content": ""})",
    R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true})",
    R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})",
    R"({"type": "Whitespace"})",
    R"({"type": "WhitespaceSplit"})",
    R"({"type": "BertPreTokenizer"})",
    R"({"type": "Digits", "individual_digits": true})",
    R"({"type": "Punctuation", "behavior": "Isolated"})",
    R"({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{L}+"}, "behavior": "MergedWithNext", "invert": true})",
    R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})",
    R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true})",
    R"({"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": []})",
    R"({"type": "ByteFallback"})",
    R"({"type": "Fuse"})",
    R"({"type": "WordPiece", "prefix": "##", "cleanup": true})",
    R"({"type": "BPEDecoder", "suffix": "</w>"})",
    R"({"type": "CTC", "pad_token": "a", "word_delimiter_token": "|"})",
    R"({"type": "Strip", "content": " ", "start": 1, "stop": 3})",
    R"({"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 0], "trim_offsets": true})",
    R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"a": {"id": "a", "ids": [1], "tokens": ["a"]}}})",
    R"({"id": 3, "content": "<x>", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true})",
    R"(["a", "b"])",
    R"(["a", -1.5])",
    R"({"max_length": 3})",
    R"(null)",
    R"([])",
    R"({})",
    R"("BPE")",
    R"("Unigram")",
    R"("WordPiece")",
    R"("WordLevel")",
    R"("")",
    R"("ﬁ")",
    R"("é")",
    R"(" ")"};
constexpr const char* kNames[] = {"type",          "vocab",      "merges",        "unk_token",  "unk_id",
                                  "byte_fallback", "normalizer", "pre_tokenizer", "decoder",    "post_processor",
                                  "added_tokens",  "truncation", "pattern",       "behavior",   "ignore_merges",
                                  "content",       "id",         "special",       "normalized", "max_length"};
constexpr JsonWords kTokenizerWords{kFragments, kNames};

constexpr std::array kWords = {"{{",
                               "}}",
                               "{%",
                               "%}",
                               "{%-",
                               "-%}",
                               "{#",
                               "#}",
                               "for",
                               "in",
                               "if",
                               "elif",
                               "else",
                               "endfor",
                               "endif",
                               "set",
                               "endset",
                               "macro",
                               "endmacro",
                               "call",
                               "endcall",
                               "filter",
                               "endfilter",
                               "generation",
                               "endgeneration",
                               "break",
                               "continue",
                               "recursive",
                               "not",
                               "and",
                               "or",
                               "is",
                               "loop",
                               "messages",
                               "namespace",
                               "range",
                               "raise_exception",
                               "strftime_now",
                               "joiner",
                               "cycler",
                               "dict",
                               "lipsum",
                               "true",
                               "false",
                               "none",
                               "(",
                               ")",
                               "[",
                               "]",
                               "{",
                               "}",
                               ",",
                               ":",
                               ".",
                               "|",
                               "~",
                               "+",
                               "-",
                               "*",
                               "/",
                               "//",
                               "%",
                               "**",
                               "==",
                               "!=",
                               "<",
                               ">=",
                               "=",
                               "0",
                               "1",
                               "-1",
                               "7",
                               "9223372036854775807",
                               "1.5",
                               "1e308",
                               "'a'",
                               "\"b\"",
                               "''",
                               "'{{'",
                               "x",
                               "loop.index",
                               "loop.last",
                               "loop.cycle",
                               "loop.changed",
                               "m.role",
                               "m['content']",
                               "length",
                               "upper",
                               "title",
                               "trim",
                               "join",
                               "map",
                               "select",
                               "selectattr",
                               "rejectattr",
                               "groupby",
                               "sort",
                               "unique",
                               "tojson",
                               "indent",
                               "replace",
                               "default",
                               "items",
                               "dictsort",
                               "first",
                               "last",
                               "batch",
                               "slice",
                               "sum",
                               "list",
                               "string",
                               "int",
                               "float",
                               "round",
                               "abs",
                               "safe",
                               "capitalize",
                               "wordcount",
                               "truncate",
                               "center",
                               "format",
                               "urlencode",
                               "min",
                               "max",
                               "reverse",
                               "split",
                               "strip",
                               "startswith",
                               "append",
                               "get",
                               "keys",
                               "values",
                               "pop",
                               "update",
                               "defined",
                               "undefined",
                               "string",
                               "mapping",
                               "iterable",
                               "number",
                               "odd",
                               "divisibleby",
                               "sameas",
                               "eq",
                               "[:2]",
                               "[::-1]",
                               "[-1:]"};
constexpr std::array kBlocks = {"{% for x in messages %}{{ x.content }}{% endfor %}",
                                "{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% else %}none{% endfor %}",
                                "{% set ns = namespace(a=0) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}",
                                "{% macro f(a, b=2) %}{{ a }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}",
                                "{% if x is defined and x %}a{% elif y %}b{% else %}c{% endif %}",
                                "{{ messages | map(attribute='role') | join(', ') }}",
                                "{{ [3, 1, 2] | sort | list | tojson(indent=2) }}",
                                "{{ 'a b c'.split(' ')[::-1] | join }}",
                                "{% set x %}text{% endset %}{{ x | upper | replace('T', 'u') }}",
                                "{{ '%s %d' | format('a', 3) }}",
                                "{{ range(3) | map('string') | list }}",
                                "{{ ('a' * 5)[1:-1] }}",
                                "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
                                "{{ raise_exception('no') }}"};

// Words, numbers, strings and signs of a template, and the space between them.
std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    const auto word = [&](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    if (word(text[at])) {
      while (end < text.size() && word(text[end])) ++end;
    } else if (text[at] == '\'' || text[at] == '"') {
      const std::size_t close = text.find(text[at], end);
      if (close != std::string::npos && close - at < 60) end = close + 1;
    } else if (end < text.size() && (text[at] == '{' || text[at] == '%' || text[at] == '}')) {
      ++end;
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

std::string mutate_source(const std::string& text, Random& random) {
  if (random.one_in(25)) return mutate_bytes_of(text, random);
  std::vector<std::string> tokens = tokens_of(text);
  const auto here = [&] { return static_cast<std::ptrdiff_t>(random.below(tokens.size() + 1)); };
  for (std::size_t n = 1 + random.below(3); n > 0; --n) {
    const auto at = here();
    const auto count =
        std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(1 + random.below(random.one_in(3) ? 20 : 3)),
                                 static_cast<std::ptrdiff_t>(tokens.size()) - at);
    const std::vector<std::string> part(tokens.begin() + at, tokens.begin() + at + count);
    switch (random.below(8)) {
      case 0:
        tokens.erase(tokens.begin() + at, tokens.begin() + at + count);
        break;
      case 1:
        tokens.insert(tokens.begin() + here(), part.begin(), part.end());
        break;
      case 2:  // nests where it is a bracket or a block
        for (std::size_t times = random.below(random.one_in(10) ? 300 : 4); times > 0; --times)
          tokens.insert(tokens.begin() + at, part.begin(), part.end());
        break;
      case 3:
        if (!tokens.empty()) std::swap(random.of(tokens), random.of(tokens));
        break;
      case 4:
        tokens.insert(tokens.begin() + at, kBlocks[random.below(kBlocks.size())]);
        break;
      case 5:
        if (!tokens.empty()) random.of(tokens) = kWords[random.below(kWords.size())];
        break;
      case 6:
        if (!tokens.empty()) random.text(random.of(tokens));
        break;
      default:
        tokens.insert(tokens.begin() + at, std::string(" ") + kWords[random.below(kWords.size())] + " ");
    }
  }
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out.size() <= kMaxText ? out : text;
}

}  // namespace

std::vector<std::string> sections(std::span<const std::byte> input) {
  std::vector<std::string> out;
  std::string text = text_of(input);
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(kSection, at);
    out.push_back(text.substr(at, end - at));
    if (end == std::string::npos || out.size() == 8) return out;
    at = end + kSection.size();
  }
}

Blob joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (&text == texts.data() ? "" : std::string(kSection)) + text;
  return blob_of(out);
}

Blob mutate_tokenizer(std::span<const std::byte> input, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> parts = sections(input);
  parts.resize(3);
  const std::size_t which = random.below(10);
  if (which == 0)
    random.text(parts[2]);
  else if (which <= 2)
    parts[1] = mutate_json(parts[1].empty() ? "{}" : parts[1], random, kTokenizerWords);
  else
    parts[0] = mutate_json(parts[0], random, kTokenizerWords);
  return joined(parts);
}

Blob mutate_template(std::span<const std::byte> input, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> parts = sections(input);
  parts.resize(2);
  if (random.one_in(6))
    parts[1] = mutate_json(parts[1].empty() ? "{}" : parts[1], random, kTokenizerWords);
  else
    parts[0] = mutate_source(parts[0], random);
  return joined(parts);
}

}  // namespace graft::fuzz
