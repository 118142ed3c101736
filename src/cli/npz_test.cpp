#include "cli/npz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace graft::cli {
namespace {

class Npz : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "graft_npz_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
  float data_[6] = {1, 2, 3, 4, 5, 6};
  std::int64_t number_ = -9;
  std::vector<NamedTensor> tensors_ = {{"x", {data_, DType::f32, Shape{2, 3}}},
                                       {"n", {&number_, DType::i64, Shape{}}},
                                       {"gr\xc3\xbcn", {nullptr, DType::b8, Shape{4, 0}}}};
};

TEST_F(Npz, WhatIsWrittenIsReadBack) {
  write_npz(path("a.npz"), tensors_);
  write_npz(path("a.npz"), tensors_);  // replaces the file
  const std::vector<NamedArray> found = read_npz(path("a.npz"));
  ASSERT_EQ(found.size(), tensors_.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, tensors_[i].name);
    EXPECT_EQ(found[i].array.tensor.dtype, tensors_[i].tensor.dtype);
    EXPECT_EQ(found[i].array.tensor.shape, tensors_[i].tensor.shape);
  }
  EXPECT_EQ(static_cast<const float*>(found[0].array.tensor.data)[5], 6);
  EXPECT_EQ(*static_cast<const std::int64_t*>(found[1].array.tensor.data), -9);
}

TEST_F(Npz, FilesThatAreNotThere) {
  EXPECT_THROW(read_npz(path("none.npz")), NotFound);
  EXPECT_THROW(write_npz(path("no/folder.npz"), tensors_), Error);
  EXPECT_THROW(write_npz(path("empty.npz"), {}), InvalidArgument);
}

// Cut anywhere or with bits flipped: an error or arrays, never a crash (run under sanitizers too).
TEST_F(Npz, DamagedFilesAreErrors) {
  write_npz(path("a.npz"), tensors_);
  std::ifstream in(path("a.npz"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_GT(good.size(), 300U);
  const auto reads = [&](const std::string& bytes) {
    std::ofstream(path("b.npz"), std::ios::binary) << bytes;
    try {
      read_npz(path("b.npz"));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(reads(good));
  for (std::size_t cut = 0; cut < good.size(); cut += 3) EXPECT_FALSE(reads(good.substr(0, cut))) << cut;
  std::mt19937 random(7);
  for (int i = 0; i < 600; ++i) {
    std::string bad = good;
    for (auto flips = random() % 3 + 1; flips > 0; --flips) {
      char& byte = bad[random() % bad.size()];
      byte = static_cast<char>(byte ^ (1 << random() % 8));
    }
    reads(bad);
  }
}

}  // namespace
}  // namespace graft::cli
