#include "graft/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "graft/error.h"
#include "text/pattern.h"
#include "text/unicode.h"

// tokenizer_test.py compares ids with Hugging Face tokenizers; here is what only the C++ interface has.
namespace graft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Like Llama's: ▁ for spaces, bytes for characters outside the vocabulary.
std::shared_ptr<const Tokenizer> make() {
  std::string vocab = R"("<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁ab": 5)";
  constexpr char digits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    vocab += std::string(", \"<0x") + digits[byte / 16] + digits[byte % 16] + ">\": " + std::to_string(6 + byte);
  return Tokenizer::from_json(R"({"version": "1.0",
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": {)" +
                                  vocab + R"(}, "merges": [["▁", "a"], ["▁a", "b"]]}})",
                              R"({"unk_token": "<unk>", "chat_template": "{{ messages[0].content | upper }}"})");
}

TEST(Tokenizer, TextToIdsAndBack) {
  const auto tokenizer = make();
  EXPECT_THAT(tokenizer->encode("ab a é"), ElementsAre(5, 4, 1, 6 + 0xC3, 6 + 0xA9));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab a é")), "ab a é");
  EXPECT_EQ(tokenizer->size(), 262);
  EXPECT_EQ(tokenizer->special_ids().unk, 0);
  EXPECT_EQ(tokenizer->special_ids().bos, std::nullopt);
  EXPECT_EQ(tokenizer->identity().size(), 64u);
}

TEST(Tokenizer, EmptyAndHuge) {
  const auto tokenizer = make();
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->decode({}), "");
  std::string large;
  for (int i = 0; i < 200'000; ++i) large += "ab ";
  const auto ids = tokenizer->encode(large);
  EXPECT_EQ(ids.size(), 200'001u);
  EXPECT_EQ(tokenizer->decode(ids), large);
}

TEST(Tokenizer, ManyThreadsUseOne) {
  const auto tokenizer = make();
  const auto expected = tokenizer->encode("ab a é ab");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        EXPECT_EQ(tokenizer->encode("ab a é ab"), expected);
        EXPECT_EQ(tokenizer->apply_chat_template(R"({"messages": [{"content": "x"}]})"), "X");
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Detokenizer, WholeCharactersOnly) {
  const auto tokenizer = make();
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.add(5), "ab");
  EXPECT_EQ(stream.add(6 + 0xE2), "");
  EXPECT_EQ(stream.add(6 + 0x82), "");
  EXPECT_EQ(stream.add(6 + 0xAC), "€");
  EXPECT_EQ(stream.add(4), " a");
  EXPECT_EQ(stream.add(0), "");  // special
  EXPECT_EQ(stream.add(6 + 0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.add(4), "a");  // a new text: no space in front
  EXPECT_THROW(stream.add(9999), InvalidArgument);
  EXPECT_EQ(stream.add(4), " a");
}

TEST(Pattern, CutsCoverTheText) {
  const auto cut = text::Pattern::regex(R"(\p{L}+|\s+(?!\S)|\s+)").find("ab  ç 1");
  std::vector<std::size_t> ends;
  for (const auto& piece : cut) ends.push_back(piece.end);
  EXPECT_THAT(ends, ElementsAre(2u, 3u, 4u, 6u, 7u, 8u));
  EXPECT_FALSE(cut.back().match);
  EXPECT_EQ(text::Pattern::literal("aa").replace("aaaab", "-"), "--b");
  EXPECT_EQ(text::Pattern::regex("x*").replace("axb", "-"), "-a-b-");
}

TEST(Pattern, ManyThreadsSearchWithOne) {
  const auto words = text::Pattern::regex(R"(\p{L}+|\s+(?!\S)|\s+)");
  const std::size_t expected = words.find("ab  ç 1 xyz").size();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) EXPECT_EQ(words.find("ab  ç 1 xyz").size(), expected);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Pattern, WhatCannotBeUsedIsNamed) {
  EXPECT_THAT([] { text::Pattern::regex("(a"); }, ThrowsMessage<InvalidProgram>(HasSubstr("'(a'")));
  const auto slow = text::Pattern::regex("(a|aa)+$");
  EXPECT_THAT([&] { slow.find(std::string(200, 'a') + "b"); }, ThrowsMessage<ExecutionError>(HasSubstr("(a|aa)+$")));
}

TEST(Unicode, IllFormedPartsAreReplaced) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(text::to_utf8("a\xFFz"), "a" + bad + "z");
  EXPECT_EQ(text::to_utf8("\xE2\x82"), bad);                  // cut off: one
  EXPECT_EQ(text::to_utf8("\xED\xA0\x80"), bad + bad + bad);  // a surrogate: no byte of it is a beginning
  EXPECT_EQ(text::to_utf8("\xF0\x9F\x98x"), bad + "x");
  EXPECT_EQ(text::to_utf8("\xC0\xAF"), bad + bad);
  EXPECT_EQ(text::to_utf8("\xF4\x90\x80\x80"), bad + bad + bad + bad);
}

TEST(Tokenizer, BytesOfTokens) {
  const auto tokenizer = make();
  EXPECT_EQ(tokenizer->token_bytes(5), " ab");  // decode() drops the space at the start of a text
  EXPECT_EQ(tokenizer->token_bytes(2), "a");
  EXPECT_EQ(tokenizer->token_bytes(6 + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer->token_bytes(0), "<unk>");
  EXPECT_THROW(tokenizer->token_bytes(6 + 256), InvalidArgument);
  // A byte-level vocabulary, with half of "é".
  const auto bytes = Tokenizer::from_json(R"({"model": {"type": "BPE", "vocab": {"a": 0, "Ã": 1, "Ġb": 2, "Ã©": 3},
    "merges": []}, "decoder": {"type": "ByteLevel"}})");
  EXPECT_EQ(bytes->token_bytes(1), "\xC3");
  EXPECT_EQ(bytes->token_bytes(2), " b");
  EXPECT_EQ(bytes->token_bytes(3), "é");
}

}  // namespace
}  // namespace graft
