#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "graft/llm.h"
#include "llm/text_program.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kTokenizer = R"({"pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, "c": 2}}})";

// A table of 3 rows of 2 elements, for at most `tokens` tokens of at most `texts` texts.
struct World {
  std::int64_t texts = 1, tokens = 4;
  test::GraphBuilder graph = test::GraphBuilder();
  std::shared_ptr<const Program> program = [this] {
    const std::vector<ir::Dim> dims = {texts == 1 ? test::fixed(1) : test::dynamic(1, texts, "b"),
                                       test::dynamic(1, tokens, "t")};
    const auto ids = graph.input("input_ids", DType::i64, dims);
    const auto table = graph.weight("table", {3, 4, 0, 2, 1, 0}, {3, 2});
    const ir::Arg no{ir::Arg::Kind::boolean, 0, 0, {}, {}};
    graph.output(graph.node("aten.embedding.default",
                            {{"weight", ir::Arg::of_value(table)},
                             {"indices", ir::Arg::of_value(ids)},
                             {"padding_idx", test::of_int(-1)},
                             {"scale_grad_by_freq", no},
                             {"sparse", no}},
                            DType::f32, {dims[0], dims[1], test::fixed(2)}));
    return graph.build();
  }();
  TextEncoder encoder{program, Tokenizer::from_json(kTokenizer)};
};

auto message(const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); }

TEST(TextEncoder, TextsAndTheirIdsGiveTheSame) {
  World w;
  const auto near = [](float x) { return FloatNear(x, 1e-6f); };
  EXPECT_THAT(w.encoder.embed(std::vector<std::string>{"a", "b c"}),
              ElementsAre(near(0.6f), near(0.8f), near(0.4472136f), near(0.8944272f)));
  EXPECT_EQ(w.encoder.embed_ids(std::vector<std::vector<std::int64_t>>{{0}, {1, 2}}),
            w.encoder.embed(std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(w.encoder.size(), 2);
}

TEST(TextEncoder, TextsInAnyOrderHaveTheirOwnVectors) {
  World w{.texts = 16, .tokens = 300};
  std::vector<std::vector<std::int64_t>> texts;
  for (std::size_t i = 0; i < 40; ++i)
    for (std::size_t k = 0, tokens = i * 53 % 7 * 3 + 1 + (i == 11 ? 280 : 0); k < tokens; ++k) {
      if (k == 0) texts.emplace_back();
      texts.back().push_back(static_cast<std::int64_t>((i + k * k) % 3));
    }
  ASSERT_EQ(texts.size(), 40u);
  std::vector<float> alone;
  for (const auto& text : texts) std::ranges::copy(w.encoder.embed_ids({&text, 1}), std::back_inserter(alone));
  EXPECT_EQ(w.encoder.embed_ids(texts), alone);
}

TEST(TextProgram, TextsAtOnce) {
  const World w{.texts = 16, .tokens = 300};
  const llm::TextProgram program(w.program, Tokenizer::from_json(kTokenizer), {});
  const auto at_once = [&](std::size_t tokens, std::size_t waiting) { return program.texts_at_once(tokens, waiting); };
  EXPECT_EQ(at_once(9, 100), 16u);  // what the program takes
  EXPECT_EQ(at_once(9, 15), 8u);
  EXPECT_EQ(at_once(64, 100), 4u);
  EXPECT_EQ(at_once(64, 3), 2u);
  EXPECT_EQ(at_once(65, 100), 2u);
  EXPECT_EQ(at_once(129, 100), 1u);
  EXPECT_EQ(at_once(300, 100), 1u);
  EXPECT_EQ(at_once(8, 100), 1u);  // kernels of their own
  const World fixed;
  EXPECT_EQ(llm::TextProgram(fixed.program, Tokenizer::from_json(kTokenizer), {}).texts_at_once(20, 9), 1u);
}

TEST(TextEncoder, IdsThatItDoesNotTake) {
  World w;
  const auto embed = [&](std::vector<std::int64_t> ids) {
    return [&w, ids] { w.encoder.embed_ids(std::vector<std::vector<std::int64_t>>{ids}); };
  };
  EXPECT_THAT(embed({}), message("a text has no tokens"));
  EXPECT_THAT(embed({0, 3}), message("a text has the token id 3, expected from 0 to 2"));
  EXPECT_THAT(embed({-1}), message("a text has the token id -1"));
  EXPECT_THAT(embed({0, 0, 0, 0, 0}), message("a text has 5 tokens, the encoder takes 4"));
  // Texts are cut off instead.
  EXPECT_EQ(w.encoder.embed(std::vector<std::string>{"a a a a b"}),
            w.encoder.embed(std::vector<std::string>{"a a a a"}));
}

}  // namespace
}  // namespace graft
