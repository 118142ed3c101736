#include "graft/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/grammar/matcher.h"

namespace graft {
namespace {

using Texts = std::vector<std::string>;

// Tokens of one byte each, some of more, and an EOS of no bytes.
std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto made = [] {
    Texts tokens = {""};
    for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* more :
         {"true", "\": ", "\", \"", "{\"", "\"}", "12", "3.",       "],",       "aa",  "ab",    "é",      "\n",
          "  ",   "}}",   "null",   "e1",  "\\u", "00", "\xF0\x9F", "\x98\x80", "aaa", "\"a\"", "\": \"", "aa"})
      tokens.emplace_back(more);
    return GrammarVocabulary::of(tokens, std::vector<std::int64_t>{0});
  }();
  return made;
}

struct Case {
  std::string source;
  Texts right, wrong;
};

void expect(const Grammar& grammar, const Case& one) {
  for (const std::string& text : one.right) EXPECT_TRUE(grammar.matches(text)) << one.source << "\n" << text;
  for (const std::string& text : one.wrong) EXPECT_FALSE(grammar.matches(text)) << one.source << "\n" << text;
}

TEST(Grammar, RegularExpressions) {
  const Case cases[] = {
      {"", {""}, {"a"}},
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"a|b|", {"a", "b", ""}, {"ab"}},
      {"(ab)*c+", {"c", "ababcc"}, {"ab", "abac"}},
      {"a{2}b{1,3}c{2,}", {"aabcc", "aabbbcccc"}, {"abcc", "aabbbbcc", "aabc"}},
      {"a{,3}", {"a{,3}"}, {"aa"}},
      {"[a-c\\d_-]+", {"a-9_", "c"}, {"d", ""}},
      {"[^a-y\\n]", {"z", "é", "😀", "A"}, {"a", "\n", "zz"}},
      {"[]a]", {"]", "a"}, {"b"}},
      {".", {"x", "é", "€", "😀"}, {"\n", "", "\x80", "\xED\xA0\x80", "\xC0\xAF"}},
      {"\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"eA😀"}},
      {"^a$", {"a"}, {"ba", "ab"}},
      {"(?:a|(?P<name>b))\\.\\*", {"a.*", "b.*"}, {"c.*", "axx"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"[\\u0080-\\u{10FFFF}]", {"é", "€", "😀", "\xF4\x8F\xBF\xBF"}, {"a", "\xF4\x90\x80\x80"}},
  };
  for (const Case& one : cases) expect(*Grammar::regex(one.source, vocabulary()), one);
}

TEST(Grammar, WhatRegularExpressionsAreRefused) {
  const auto refuse = [](const char* source, const char* message, const auto& error) {
    static_cast<void>(error);
    try {
      Grammar::regex(source, vocabulary());
      ADD_FAILURE() << source;
    } catch (const std::remove_cvref_t<decltype(error)>& thrown) {
      EXPECT_THAT(thrown.what(), ::testing::HasSubstr(message)) << source;
    }
  };
  for (const char* wrong : {"(", ")", "a)", "[a", "*a", "a**", "a{3,1}", "\\", "[z-a]", "\\u12", "[a-\\d]", "\xFF"})
    refuse(wrong, "regular expression", InvalidArgument(""));
  refuse("(?=a)", "look-around", Unsupported(""));
  refuse("(?<!a)b", "look-around", Unsupported(""));
  refuse("(a)\\1", "back reference", Unsupported(""));
  refuse("\\bword", "word boundary", Unsupported(""));
  refuse("\\p{L}", "escape", Unsupported(""));
  refuse("a$b", "after '$'", Unsupported(""));
  refuse("b^a", "'^'", Unsupported(""));
  refuse("a{20000}", "count", Unsupported(""));
  refuse("((a{9999}){9999}){9999}", "too large", Unsupported(""));
  refuse("[^\\u{0}-\\u{10FFFF}]", "no text has the form", InvalidArgument(""));
}

TEST(Grammar, Rules) {
  const Case cases[] = {
      {"root ::= \"a\" b | \"c\" # comment\nb ::= [0-9]+\n", {"a1", "a42", "c"}, {"a", "c1"}},
      {"root ::= (\n  \"x\"\n  | \"y\"\n){2}\n\n", {"xy", "yy"}, {"x", "xyx"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", ")(", "())"}},
      {"root ::= item (\", \" item)*\nitem ::= [a-z]+ | root-2\nroot-2 ::= \"<\" root \">\"",
       {"a, <b, <c>>"},
       {"<a, >"}},
      {"root ::= [^\"\\\\]* \"\\\"\\n\"", {"ab\"\n", "\"\n"}, {"a\\\"\n", "\n"}},
      {"root ::= \"a\"{2,} .", {"aaé", "aaaa"}, {"aa"}},
      {"root ::= a\na ::= b b b\nb ::= \"x\"?", {"", "x", "xxx"}, {"xxxx"}},
  };
  for (const Case& one : cases) expect(*Grammar::ebnf(one.source, vocabulary()), one);
}

TEST(Grammar, WhatRulesAreRefused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "no rule 'root'"},
      {"start ::= \"a\"", "no rule 'root'"},
      {"root ::= a", "no rule 'a'"},
      {"root = \"a\"", "expected '::='"},
      {"root ::= \"a", "expected '\"'"},
      {"root ::= (\"a\"", "expected ')'"},
      {"root ::= [a", "expected ']'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "is there twice"},
      {"root ::= \"a\" \"b\n\"", "line 1"},
      {"root ::= root-2\nroot-2 ::= \"a\" root-2", "no text has the form"},
  };
  for (const auto& [source, message] : wrong) {
    try {
      Grammar::ebnf(source, vocabulary());
      ADD_FAILURE() << source;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message)) << source;
    }
  }
  for (const char* left : {"root ::= root \"a\" | \"b\"", "root ::= a \"x\" | \"y\"\na ::= b root\nb ::= \"z\"?"})
    EXPECT_THROW(Grammar::ebnf(left, vocabulary()), Unsupported) << left;
}

TEST(Grammar, Lark) {
  const Case cases[] = {
      {"start: \"a\" b | \"c\"i // comment\nb: DIGIT+\nDIGIT: \"0\"..\"9\"\n",
       {"a1", "a42", "c", "C"},
       {"a", "c1", "A1"}},
      // Left recursion, what is ignored, terminals of Lark's own.
      {"?start: sum\n?sum: product\n    | sum \"+\" product   -> add\n    | sum \"-\" product -> sub\n"
       "?product: atom | product \"*\" atom\n?atom: NUMBER | \"(\" sum \")\"\n%import common.NUMBER\n"
       "%import common.WS_INLINE\n%ignore WS_INLINE\n",
       {"1", "1+2*3", " ( 1.5e3 -2 )*3 ", "1e5", ".5"},
       {"", "1+", "(1", "1 2", "1\n"}},
      {"start: \"x\" ~ 2 [\"y\"] /[0-9]{2}/? (\",\" | \";\"\n  | \".\")",
       {"xxy12,", "xx;", "xx34."},
       {"x,", "xxyy,", "xx1,", "xx"}},
      {"start: a ~ 1..3\na.2: | \"b\"\n", {"", "b", "bbb"}, {"bbbb"}},
      {"%llguidance {}\nstart: QUOTED | N\n%import common (INT, CNAME)\n%import common.ESCAPED_STRING -> QUOTED\nN.-1: "
       "INT CNAME",
       {"\"a\\\"b\"", "12ab_c", "\"\""},
       {"\"a", "12", "\"a\"b\"", "ab"}},
      // Nothing is ignored within a terminal.
      {"start: A \"c\"\nA: \"a\" \"b\"\n%ignore \" \"", {"abc", " ab c "}, {"a bc"}},
      {"start: \"\\x41\\u00e9\\n\\\"\\\\\"", {"Aé\n\"\\"}, {"A"}},
      {"start: /a\\/b|\\$/ \"/\"", {"a/b/", "$/"}, {"a/b", "a\\/b/"}},
      {"start: start \"a\" | \"b\" | start", {"b", "baa"}, {"a", "ab", ""}},
      {"start: DIGIT\nDIGIT: \"one\"\n%import common.INT", {"one"}, {"1"}},
  };
  for (const Case& one : cases) expect(*Grammar::lark(one.source, vocabulary()), one);
}

TEST(Grammar, WhatLarkIsRefused) {
  const auto refuse = [](const char* source, const char* message, const auto& error) {
    try {
      Grammar::lark(source, vocabulary());
      ADD_FAILURE() << source;
    } catch (const std::remove_cvref_t<decltype(error)>& thrown) {
      EXPECT_THAT(thrown.what(), ::testing::HasSubstr(message)) << source;
    }
  };
  const std::pair<const char*, const char*> wrong[] = {
      {"", "no rule 'start'"},
      {"root: \"a\"", "no rule 'start'"},
      {"start: a", "no rule 'a'"},
      {"start: A", "no terminal 'A'"},
      {"start = \"a\"", "expected ':'"},
      {"start: \"a", "expected '\"'"},
      {"start: (\"a\"", "expected ')'"},
      {"start: [\"a\")", "expected ']'"},
      {"start: /a", "expected '/'"},
      {"start: /(a/", "regular expression"},
      {"start: \"\"", "an empty string"},
      {"start: \"b\"..\"a\"", "range"},
      {"start: \"a\"\nstart: \"b\"", "line 2: 'start' is there twice"},
      {"start: A\nA: b\nb: \"x\"", "the terminal 'A' has the rule 'b'"},
      {"start: A\nA: \"a\" B\nB: A | \"b\"", "part of itself"},
      {"start: Ab", "small and large"},
      {"start: \"a\" ~ 3..1", "wrong order"},
      {"start: start \"a\"", "no text has the form"},
      {"start: (\"a\" -> b)", "alias"},
      {"start: \xFF", "not UTF-8"},
      {"start: \"\\ud800\"", "no character"},
  };
  for (const auto& [source, message] : wrong) refuse(source, message, InvalidArgument(""));
  const std::pair<const char*, const char*> unsupported[] = {
      {"start: a{\"x\"}", "parameters"},
      {"a{x}: x", "parameters"},
      {"start[lazy]: \"a\"", "attributes"},
      {"start: /a/i", "flags"},
      {"start: /^a/", "'^' or '$'"},
      {"start: /a(?=b)/", "look-around"},
      {"start: \"é\"i", "either case"},
      {"start: \"\\d\"", "another escape"},
      {"start: <|im_end|>", "special token"},
      {"start: %json {}", "grammar within"},
      {"%declare A", "'%declare'"},
      {"%import common.PYTHON_COMMENT", "'common.PYTHON_COMMENT'"},
      {"%import python.NAME", "other grammars"},
      {"start: a \"x\" | \"y\"\na: start", "left recursion"},
  };
  for (const auto& [source, message] : unsupported) refuse(source, message, Unsupported(""));
}

TEST(Grammar, JsonSchemas) {
  const Case cases[] = {
      {"{}", {"1", "\"a\"", "{\"a\": [1, {}]}", "null", "-0.5e+3", "[]"}, {"", "01", "{a: 1}", "[1,]", "tru", "1."}},
      {R"({"type": "string"})", {"\"\"", "\"é\\n\\u00e9\\ud83d\\ude00\""}, {"\"\n\"", "\"\\x\"", "\"\\ud800\"", "a"}},
      {R"({"type": "string", "minLength": 1, "maxLength": 2})", {"\"a\"", "\"\\n😀\""}, {"\"\"", "\"abc\""}},
      {R"({"type": "string", "pattern": "^[A-Z]\\d{2}$"})", {"\"A12\""}, {"\"A123\"", "\"a12\"", "A12"}},
      {R"({"type": "string", "pattern": "b+"})", {"\"abc\"", "\"b\""}, {"\"ac\"", "\"\""}},
      {R"({"type": "string", "pattern": "^.[\"\\\\].$"})", {R"("a\"b")", R"("\"\\\"")"}, {R"("a"b")", R"("aab")"}},
      {R"({"type": "string", "format": "date"})", {"\"2026-11-25\""}, {"\"2026-13-01\"", "\"x\""}},
      {R"({"type": "string", "format": "ipv4"})", {"\"255.0.10.199\""}, {"\"256.0.0.1\"", "\"1.2.3\""}},
      {R"({"type": "string", "format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
      {R"({"type": "integer"})", {"0", "-12", "999999999999999999"}, {"-0x", "1.5", "1e3", "00"}},
      {R"({"type": "integer", "minimum": -5, "maximum": 123})",
       {"-5", "-1", "0", "9", "10", "99", "100", "123"},
       {"-6", "124", "200", "1000", "-10", "00"}},
      {R"({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11})", {"10"}, {"9", "11"}},
      {R"({"type": "integer", "minimum": 0.5})", {"1", "20"}, {"0", "-1"}},
      {R"({"type": "number", "minimum": 0, "exclusiveMaximum": 2})",
       {"0", "0.5", "1.999", "1"},
       {"2", "2.0", "-1", "10"}},
      {R"({"type": "number", "exclusiveMinimum": -1, "maximum": 1})", {"-0.5", "0", "1.0", "1"}, {"-1", "-1.5", "1.1"}},
      {R"({"enum": ["red", 3, null, {"a": 1}]})", {"\"red\"", "3", "null", "{\"a\":1}"}, {"\"blue\"", "red", "4"}},
      {R"({"const": "x\"y"})", {R"("x\"y")"}, {"\"x\""}},
      {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
      {R"({"type": ["integer", "null"]})", {"7", "null"}, {"\"a\""}},
      {R"({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}]})",
       {"true", "[1, 2]", "[]"},
       {"1", "[true]"}},
      {R"({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2})",
       {"[null]", "[null, null]"},
       {"[]", "[null, null, null]", "[null null]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false})",
       {"[\"a\", 1]"},
       {"[\"a\"]", "[1, \"a\"]", "[\"a\", 1, 2]"}},
      // As drafts before 2020-12 say it.
      {R"({"type": "array", "items": [{"type": "string"}, {"type": "integer"}]})",
       {"[\"a\", 1]"},
       {"[\"a\"]", "[1, \"a\"]"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
           "required": ["a", "c"], "additionalProperties": false})",
       {R"({"a": 1, "b": "x", "c": null})", R"({"a":1,"c":[]})", "{\n  \"a\": 1,\n  \"c\": 2\n}"},
       {R"({"a": 1})", R"({"c": 1, "a": 1})", R"({"a": 1, "c": 2, "d": 3})", "{}", R"({"a": 1,, "c": 2})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}})",
       {"{}", R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 2})"},
       {R"({"b": 1, "a": 2})", R"({"a": 1,})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x": 1, "y": 2})"},
       {R"({"x": "a"})"}},
      {R"({"type": "object", "required": ["z"]})", {R"({"z": [1]})"}, {"{}"}},
      {R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, "required": ["v", "next"]}}})",
       {R"({"v": 1, "next": {"v": 2, "next": null}})"},
       {R"({"v": 1})", R"({"v": 1, "next": 2})"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[], [[]]]"}, {"[1]"}},
  };
  for (const Case& one : cases) expect(*Grammar::json_schema(one.source, vocabulary()), one);
}

// All integers near the bounds, and all numbers of as many decimals.
TEST(Grammar, Multiples) {
  for (const int modulus : {1, 2, 3, 7, 10, 25, 64, 100}) {
    for (const auto& [least, most] : {std::pair(-130, 217), std::pair(0, 1000), std::pair(5, 99), std::pair(-77, -8)}) {
      const std::string bounds =
          ", \"minimum\": " + std::to_string(least) + ", \"maximum\": " + std::to_string(most) + "}";
      const std::string of = "\"multipleOf\": " + std::to_string(modulus);
      std::shared_ptr<Grammar> integers, hundredths;
      try {
        integers = Grammar::json_schema("{\"type\": \"integer\", " + of + bounds, vocabulary());
      } catch (const InvalidArgument&) {  // there are none
      }
      const std::string small = modulus < 10 ? "0.0" + std::to_string(modulus) : std::to_string(modulus / 100.0);
      hundredths = Grammar::json_schema("{\"type\": \"number\", \"multipleOf\": " + small + bounds, vocabulary());
      for (int n = least - 120; n <= most + 120; ++n) {
        const bool inside = n >= least && n <= most;
        EXPECT_EQ(integers && integers->matches(std::to_string(n)), inside && n % modulus == 0) << n << of << bounds;
      }
      const std::size_t decimals = modulus == 100 ? 0 : modulus == 10 ? 1 : 2;
      const int scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1, unit = modulus * scale / 100;
      for (int n = (least - 2) * scale; n <= (most + 2) * scale; n += 1 + (n & 1)) {
        std::string text = std::to_string(std::abs(n));
        if (text.size() <= decimals) text.insert(0, decimals + 1 - text.size(), '0');
        if (decimals > 0) text.insert(text.size() - decimals, ".");
        const bool inside = n >= least * scale && n <= most * scale && n % unit == 0;
        EXPECT_EQ(hundredths->matches((n < 0 ? "-" : "") + text), inside) << n << " of " << small << bounds;
      }
    }
  }
  const auto price =
      Grammar::json_schema(R"({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01})", vocabulary());
  for (const char* right : {"0.01", "9.99", "1234567890123.00"}) EXPECT_TRUE(price->matches(right)) << right;
  for (const char* wrong : {"0.00", "-0.01", "0.001", "00.01", "1", ".5", "12345678901234.00"})
    EXPECT_FALSE(price->matches(wrong)) << wrong;
}

TEST(Grammar, WhatSchemasAreRefused) {
  const std::pair<const char*, const char*> unsupported[] = {
      {R"({"not": {}})", "'not'"},
      {R"({"type": "object", "patternProperties": {}})", "'patternProperties'"},
      {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})", "'uniqueItems'"},
      {R"({"type": "number", "multipleOf": 1e-12})", "'multipleOf'"},
      {R"({"type": "integer", "multipleOf": 0.5})", "'multipleOf'"},
      {R"({"type": "integer", "multipleOf": 1001})", "'multipleOf'"},
      {R"({"type": "number", "minimum": 0.5})", "'minimum'"},
      {R"({"oneOf": [{}, {"type": "null"}]})", "'oneOf'"},
      {R"({"allOf": [{}, {}]})", "'allOf'"},
      {R"({"anyOf": [{}], "type": "string"})", "'type'"},
      {R"({"if": {}, "then": {}})", "'if'"},
      {R"({"type": "string", "format": "regex"})", "'format'"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "'maxLength'"},
      {R"x({"type": "string", "pattern": "(?=a)"})x", "'pattern'"},
      {R"({"type": "object", "minProperties": 1})", "'minProperties'"},
      {R"({"x-unknown": 1})", "'x-unknown'"},
      {R"({"$ref": "other.json"})", "'other.json'"},
      {R"({"type": "object", "properties": {"a": false}})", "#.a"},
  };
  for (const auto& [source, message] : unsupported) {
    try {
      Grammar::json_schema(source, vocabulary());
      ADD_FAILURE() << source;
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message)) << source;
    }
  }
  for (const char* wrong :
       {"", "3", "[]", R"({"type": "text"})", R"({"type": 3})", R"({"enum": []})", R"({"anyOf": {}})",
        R"({"required": "a"})", R"({"properties": []})", R"({"$ref": "#/none"})", R"({"$ref": "#"})",
        R"({"type": "string", "minLength": -1})", R"({"type": "string", "minLength": 3, "maxLength": 1})",
        R"({"type": "integer", "minimum": 3, "maximum": 1})", R"({"type": "integer", "multipleOf": 0})",
        R"({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13})",
        R"({"type": "object", "required": ["a"], "additionalProperties": false})",
        R"({"type": "string", "pattern": "("})",
        R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"})
    EXPECT_THROW(Grammar::json_schema(wrong, vocabulary()), InvalidArgument) << wrong;
}

TEST(Grammar, Parts) {
  using Kind = GrammarPart::Kind;
  const std::vector<GrammarPart> calls[] = {
      {{Kind::literal, "<a>"}, {Kind::json_schema, R"({"type": "integer"})"}, {Kind::literal, "</a>"}},
      {{Kind::regex, "b+"}},
  };
  expect(*Grammar::parts(calls, 1, -1, ";", vocabulary()),
         {"parts", {"<a>1</a>", "bb;<a>-3</a>;b"}, {"", "<a>x</a>", "b;", "b b"}});
  expect(*Grammar::parts(calls, 0, 1, "", vocabulary()), {"optional", {"", "b"}, {"b<a>1</a>"}});
  const std::vector<GrammarPart> thought[] = {{{Kind::any_text, "</t>"}, {Kind::literal, "</t>x"}}};
  expect(*Grammar::parts(thought, 1, 1, "", vocabulary()),
         {"any text", {"</t>x", "a<b></t>x", "</</t>x", "<<</t>x", "é\n</t>x"}, {"</t></t>x", "x", "</t>"}});
  EXPECT_THROW(Grammar::parts(calls, 2, 1, "", vocabulary()), InvalidArgument);
  EXPECT_THROW(Grammar::choice({}, vocabulary()), InvalidArgument);
  expect(*Grammar::choice(Texts{"yes", "no", "yes and no"}, vocabulary()),
         {"choice", {"yes", "no", "yes and no"}, {"yes ", "", "maybe"}});
}

bool has(std::span<const std::uint32_t> words, std::size_t id) { return words[id / 32] >> (id % 32) & 1; }

// What masks allow is what the automaton alone, byte by byte, finds to be the beginning of a right text.
// Some begin with others.
Texts many_texts() {
  Texts texts = {""};
  for (int i = 0; i < 120; ++i) texts.push_back(texts[static_cast<std::size_t>(i) / 2] + (i % 3 == 0 ? "aa" : "12"));
  return texts;
}

TEST(Grammar, AChoiceOfManyTexts) {
  const Texts texts = many_texts();
  const auto grammar = Grammar::choice(texts, vocabulary());
  for (const std::string& text : texts) {
    EXPECT_TRUE(grammar->matches(text)) << text;
    const bool is_one = std::ranges::find(texts, text + "a") != texts.end();
    EXPECT_EQ(grammar->matches(text + "a"), is_one) << text;
  }
  // Each begins with the one before.
  Texts nested;
  for (std::size_t i = 1; i < 800; ++i) nested.emplace_back(i, 'a');
  const auto deep = Grammar::choice(nested, vocabulary());
  EXPECT_TRUE(deep->matches(nested.back()));
  EXPECT_FALSE(deep->matches(nested.back() + "a"));
}

TEST(Grammar, MasksAllowWhatTextsMayGoOnWith) {
  std::mt19937 rng(1);
  const auto& trie = vocabulary()->trie();
  const std::shared_ptr<Grammar> grammars[] = {
      Grammar::json_schema("{}", vocabulary()),
      Grammar::json_schema(R"({"type": "object", "properties": {"aa": {"type": "string", "maxLength": 4}, "ab":
        {"type": "array", "items": {"type": "number"}}, "é": {"enum": ["aaa", "ab", null, true]}}, "required": ["ab"]})",
                           vocabulary()),
      Grammar::regex("(a|ab|aaa|é|😀)*(12|3\\.)?", vocabulary()),
      Grammar::ebnf("root ::= \"(\" root \")\" | [a-é]* | \"true\" root", vocabulary()),
      Grammar::choice(Texts{"aa", "aaab", "ab12", "a\"a"}, vocabulary()),
      // Counters: masks are made from those of other counts.
      Grammar::regex("(a{1,9}|é{2,7};){3}12", vocabulary()),
      Grammar::json_schema(
          R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 9}, "maxItems": 3})",
          vocabulary()),
      Grammar::ebnf("root ::= (a{0,6} \"e1\"){1,4}\na ::= b? \"aa\"\nb ::= \"ab\"{1,5}", vocabulary()),
      Grammar::choice(many_texts(), vocabulary()),
  };
  std::size_t ended = 0;
  for (const auto& grammar : grammars) {
    for (int run = 0; run < 12; ++run) {
      const auto mask = grammar->mask();
      std::string text;
      for (int step = 0; step < 40 && !mask->done(); ++step) {
        std::vector<std::uint32_t> words(trie.words());
        mask->allowed(words);
        std::vector<std::int64_t> next;
        for (std::int64_t id = 0; id < trie.size(); ++id) {
          const bool expected = id == 0 ? grammar->matches(text) : grammar->begins(text + trie.bytes_of(id));
          ASSERT_EQ(has(words, static_cast<std::size_t>(id)), expected) << text << " token " << id;
          if (expected && id > 0) next.push_back(id);
          if (!expected) {
            EXPECT_THROW(mask->accept(id), InvalidArgument);
          }
        }
        if (next.empty()) break;
        const std::int64_t id = next[rng() % next.size()];
        mask->accept(id);
        text += trie.bytes_of(id);
      }
      ended += mask->done();
    }
  }
  EXPECT_GT(ended, 5u);
}

TEST(Grammar, AMaskEnds) {
  const auto grammar = Grammar::regex("ab?", vocabulary());
  const auto mask = grammar->mask();
  mask->accept('a');
  EXPECT_FALSE(mask->done());
  mask->accept(0);  // EOS
  EXPECT_TRUE(mask->done());
  std::vector<std::uint32_t> words(vocabulary()->trie().words() + 1, 7);
  mask->allowed(words);
  EXPECT_THAT(words, ::testing::Each(0u));
  EXPECT_THROW(mask->accept('b'), InvalidArgument);
  EXPECT_THROW(grammar->mask()->accept(0), InvalidArgument);
  EXPECT_THROW(grammar->mask()->accept(1 << 20), InvalidArgument);
  std::vector<std::uint32_t> few(1);
  EXPECT_THROW(grammar->mask()->allowed(few), InvalidArgument);
  const auto other = grammar->mask();
  other->accept('a');
  other->accept('b');
  EXPECT_TRUE(other->done());
}

}  // namespace
}  // namespace graft
