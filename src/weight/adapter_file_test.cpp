#include "weight/adapter_file.h"

#include <gtest/gtest.h>

#include <string>

#include "base/test_errors.h"

namespace graft {
namespace {

TEST(AdapterFile, PatternsMatchAsPefts) {
  const auto matches = [](const char* pattern, const char* module) { return ModulePattern(pattern).matches(module); };
  EXPECT_TRUE(matches("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("q_proj", "q_proj"));
  EXPECT_FALSE(matches("q_proj", "model.layers.0.self_attn.qq_proj"));
  EXPECT_FALSE(matches("q_proj", "model.layers.0.self_attn.q_proj.x"));
  EXPECT_TRUE(matches("^q_proj$", "layers.q_proj"));
  EXPECT_TRUE(matches("self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("layers.[0-3].*proj", "model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(matches("layers.[0-3].*proj", "model.layers.4.mlp.up_proj"));
  EXPECT_TRUE(matches("layers\\.[^1]\\.mlp", "layers.0.mlp"));
  EXPECT_FALSE(matches("layers\\.[^1]\\.mlp", "layers.1.mlp"));
  EXPECT_FALSE(matches("layers\\.1", "layersx1"));
  EXPECT_TRUE(matches("layers.\\d+.fc", "h.layers.12.fc"));
  EXPECT_TRUE(matches("a?b+c*", "bbb"));
  EXPECT_FALSE(matches("a?b+c*", "aab"));
  EXPECT_TRUE(matches(".*", ""));
  // As many places as there are are looked at at once.
  EXPECT_FALSE(matches("a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(20000, 'a').c_str()));
}

TEST(AdapterFile, OtherPatternsAreRefused) {
  for (const char* pattern : {"(a|b)", "a{2}", "\\w", "*a", "a**", "[a", "a\\", "[]", "a|b", "[[a]]"})
    test::expect_error<Unsupported>([&] { ModulePattern{pattern}; }, std::string("'") + pattern + "'");
  test::expect_error<Unsupported>([] { ModulePattern{std::string(600, 'a')}; }, "512");
}

}  // namespace
}  // namespace graft
