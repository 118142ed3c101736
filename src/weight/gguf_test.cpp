#include "weight/gguf.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <map>

#include "base/log.h"
#include "base/test_errors.h"
#include "graft/error.h"
#include "package/test_package.h"

namespace graft {
namespace {

using ::testing::ElementsAre;

class Gguf : public ::testing::Test {
 protected:
  Gguf() : head_(gguf_init_empty()) { install_ggml_log(); }
  ~Gguf() override { gguf_free(head_); }

  std::string written() {
    const std::string path = (folder_.path() / "made.gguf").string();
    EXPECT_TRUE(gguf_write_to_file(head_, path.c_str(), /*only_meta=*/false));
    return path;
  }

  std::map<std::string, GgufValue> pairs() {
    const GgufFile file = open_gguf(written());
    return {file.pairs.begin(), file.pairs.end()};
  }

  template <typename T>
  void set_array(const char* key, gguf_type type, const std::vector<T>& values) {
    gguf_set_arr_data(head_, key, type, values.data(), values.size());
  }

  test::TemporaryFolder folder_;
  gguf_context* head_;
};

TEST_F(Gguf, NumbersAreWidened) {
  gguf_set_val_u8(head_, "u8", 255);
  gguf_set_val_i8(head_, "i8", -128);
  gguf_set_val_u32(head_, "u32", std::numeric_limits<std::uint32_t>::max());
  gguf_set_val_i64(head_, "i64", std::numeric_limits<std::int64_t>::min());
  gguf_set_val_u64(head_, "u64", std::numeric_limits<std::uint64_t>::max());
  gguf_set_val_f32(head_, "f32", 0.5F);
  gguf_set_val_f64(head_, "f64", 1e300);
  gguf_set_val_bool(head_, "bool", true);
  const auto found = pairs();
  EXPECT_EQ(std::get<std::int64_t>(found.at("u8")), 255);
  EXPECT_EQ(std::get<std::int64_t>(found.at("i8")), -128);
  EXPECT_EQ(std::get<std::int64_t>(found.at("u32")), 0xffffffff);
  EXPECT_EQ(std::get<std::int64_t>(found.at("i64")), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(std::get<std::uint64_t>(found.at("u64")), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(std::get<double>(found.at("f32")), 0.5);
  EXPECT_EQ(std::get<double>(found.at("f64")), 1e300);
  EXPECT_TRUE(std::get<bool>(found.at("bool")));
}

TEST_F(Gguf, ArraysAndStrings) {
  gguf_set_val_str(head_, "name", "caf\xe9");  // not UTF-8
  set_array<std::int32_t>("i32", GGUF_TYPE_INT32, {-1, 2});
  set_array<float>("f32", GGUF_TYPE_FLOAT32, {0.5F, 2.0F});
  set_array<std::uint16_t>("empty", GGUF_TYPE_UINT16, {});
  std::vector<const char*> tokens = {"a", "b", "c"};
  gguf_set_arr_str(head_, "tokens", tokens.data(), tokens.size());
  const auto found = pairs();
  EXPECT_EQ(std::get<std::string>(found.at("name")), "caf\xe9");
  EXPECT_THAT(std::get<std::vector<std::int64_t>>(found.at("i32")), ElementsAre(-1, 2));
  EXPECT_THAT(std::get<std::vector<double>>(found.at("f32")), ElementsAre(0.5, 2.0));
  EXPECT_TRUE(std::get<std::vector<std::int64_t>>(found.at("empty")).empty());
  EXPECT_EQ(std::get<GgufStrings>(found.at("tokens")).count, 3U);
}

TEST_F(Gguf, TheVocabularyIsTheFileWithoutTensors) {
  gguf_set_val_str(head_, "tokenizer.ggml.model", "gpt2");
  const GgufFile file = open_gguf(written());
  EXPECT_TRUE(file.weights.tensors.empty());
  const std::string again = (folder_.path() / "vocabulary.gguf").string();
  std::ofstream(again, std::ios::binary) << file.vocabulary;
  const GgufFile vocabulary = open_gguf(again);
  ASSERT_EQ(vocabulary.pairs.size(), 1U);
  EXPECT_EQ(vocabulary.pairs[0].first, "tokenizer.ggml.model");
}

// ggml would end the process when it copies the first of these.
TEST_F(Gguf, KeysWithZeroBytes) {
  gguf_set_val_str(head_, "general.name", "a");
  gguf_set_val_u32(head_, "general.named", 3);
  const std::string path = written();
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto with_zero = [&](std::string_view key, std::size_t at) {
    std::string changed = bytes;
    changed[changed.find(key) + at] = '\0';
    std::ofstream(path, std::ios::binary) << changed;
    return path;
  };
  test::expect_error<InvalidProgram>([&] { open_gguf(with_zero("general.named", 0)); },
                                     "key 1 is empty or begins with");
  test::expect_error<InvalidProgram>([&] { open_gguf(with_zero("general.named", 12)); }, "two keys are 'general.name'");
  EXPECT_EQ(open_gguf(with_zero("general.named", 3)).pairs[1].first, "gen");
}

TEST_F(Gguf, FilesThatAreNone) {
  EXPECT_THROW(open_gguf((folder_.path() / "none.gguf").string()), NotFound);
  const std::string path = written();
  std::filesystem::resize_file(path, 16);  // within its head
  EXPECT_THROW(open_gguf(path), InvalidProgram);
  std::ofstream(path, std::ios::binary) << "GGUX";
  EXPECT_THROW(open_gguf(path), InvalidProgram);
}

}  // namespace
}  // namespace graft
