#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/model.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

using testing::ElementsAre;

std::vector<TokenId> tokenize(const Model& model, const std::string& word) {
  std::vector<TokenId> ids;
  model.tokenize(word, ids);
  return ids;
}

Vocabulary numbered(const std::vector<std::string>& pieces) {
  std::vector<std::pair<std::string, TokenId>> entries;
  for (const std::string& piece : pieces) entries.emplace_back(piece, static_cast<TokenId>(entries.size()));
  return Vocabulary(std::move(entries));
}

TEST(WordPiece, TakesTheLongestTokenThenTheLongestAfterIt) {
  const auto model =
      make_word_piece(numbered({"[UNK]", "un", "una", "##a", "##ff", "##affa", "##ble", "é", "##é"}), {});
  EXPECT_THAT(tokenize(*model, "unaffable"), ElementsAre(2, 4, 3, 6));
  EXPECT_THAT(tokenize(*model, "unaffaz"), ElementsAre(0));
  EXPECT_THAT(tokenize(*model, "éé"), ElementsAre(7, 8));
  EXPECT_THAT(tokenize(*model, ""), ElementsAre());
}

// What begins in the middle of a character, as a broken normalizer would leave it, read before the begin of a string.
TEST(WordPiece, PartsOfCharactersAreUnknown) {
  for (const char* prefix : {"", "##", "é"}) {
    WordPieceOptions options;
    options.continuing_subword_prefix = prefix;
    const auto model = make_word_piece(numbered({"[UNK]", "a", std::string(prefix) + "b"}), options);
    EXPECT_THAT(tokenize(*model, "\x80\xA9"), ElementsAre(0)) << prefix;
    EXPECT_THAT(tokenize(*model, "a\xA9"), ElementsAre(0)) << prefix;
    EXPECT_THAT(tokenize(*model, "ab"), ElementsAre(1, 2)) << prefix;
  }
}

// No token ends within a character of the word, whatever bytes tokens have.
TEST(WordPiece, TokensEndWithCharacters) {
  const auto model = make_word_piece(numbered({"[UNK]", "a", "a\xC3", "##\xA9", "##é"}), {});
  EXPECT_THAT(tokenize(*model, "aé"), ElementsAre(1, 4));
}

// Against the definition: try all lengths from the longest.
TEST(WordPiece, RandomVocabularies) {
  std::mt19937 random(7);
  const auto text = [&](std::size_t most) {
    const char* const chars[] = {"a", "b", "é", "語"};
    std::string out;
    for (std::size_t left = 1 + random() % most; left > 0; --left) out += chars[random() % 4];
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> pieces = {"[UNK]"};
    for (int i = 0; i < 30; ++i) pieces.push_back((random() % 2 ? "##" : "") + text(4));
    std::sort(pieces.begin(), pieces.end());
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    const Vocabulary vocabulary = numbered(pieces);
    const auto model = make_word_piece(numbered(pieces), {});
    for (int i = 0; i < 30; ++i) {
      const std::string word = text(8);
      std::vector<TokenId> expected;
      for (std::size_t begin = 0; begin < word.size();) {
        std::size_t end = word.size();
        std::optional<TokenId> id;
        while (end > begin && !(id = vocabulary.find((begin > 0 ? "##" : "") + word.substr(begin, end - begin)))) do
            --end;
          while (end > begin && continues_char(word[end]));
        if (!id) {
          expected = {*vocabulary.find("[UNK]")};
          break;
        }
        expected.push_back(*id);
        begin = end;
      }
      ASSERT_EQ(tokenize(*model, word), expected) << word;
    }
  }
}

}  // namespace
}  // namespace graft::text
