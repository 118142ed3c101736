#include "base/aligned.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace graft {
namespace {

TEST(AlignedMemory, BuffersOfOneBlockLiveByThemselves) {
  const std::vector<std::size_t> sizes = {0, 1, 64, 65, kHugePage, 100};
  std::vector<AlignedMemory> pieces = AlignedMemory::together_on_huge_pages(sizes);
  ASSERT_EQ(pieces.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(pieces[i].size(), sizes[i]);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[i].data()) % kAlignment, 0u) << i;
    std::memset(pieces[i].data(), static_cast<int>(i), sizes[i]);
    const std::byte* before = i == 0 ? pieces[0].data() : pieces[i - 1].data() + sizes[i - 1];
    EXPECT_GE(pieces[i].data(), before);
  }
  const AlignedMemory last = std::move(pieces.back());
  pieces.clear();  // the sanitizers detect a block freed too early or never
  for (std::size_t i = 0; i < last.size(); ++i) EXPECT_EQ(last.data()[i], std::byte{5});
  EXPECT_TRUE(AlignedMemory::together_on_huge_pages({}).empty());
}

}  // namespace
}  // namespace graft
