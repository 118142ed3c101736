#include "base/file_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace graft {
namespace {

constexpr std::size_t kBytes = std::size_t{16} * 4096;

class FilePages : public ::testing::Test {
 protected:
  FilePages() {
    char path[] = "/tmp/graft_test_XXXXXX";
    descriptor_ = ::mkstemp(path);
    ::unlink(path);
    const std::vector<char> content(kBytes, 'x');
    EXPECT_EQ(::write(descriptor_, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  }
  ~FilePages() override { ::close(descriptor_); }

  std::span<std::byte> map(int rights, int flags) const {
    void* data = ::mmap(nullptr, kBytes, rights, flags, (flags & MAP_ANONYMOUS) != 0 ? -1 : descriptor_, 0);
    EXPECT_NE(data, MAP_FAILED);
    return {static_cast<std::byte*>(data), kBytes};
  }

  int descriptor_ = -1;
};

TEST_F(FilePages, OfReadOnlyMappingsAreReadAgain) {
  const auto mapped = map(PROT_READ, MAP_PRIVATE);
  EXPECT_EQ(mapped[5000], std::byte{'x'});
  ::mlock(mapped.data(), kBytes);  // as ExecuTorch does
  EXPECT_EQ(release_file_pages({mapped}), kBytes);
  EXPECT_EQ(release_file_pages({mapped.subspan(1, kBytes - 2)}), kBytes - 2 * 4096) << "whole pages only";
  EXPECT_EQ(release_file_pages({mapped.subspan(10, 100)}), 0U);
  EXPECT_EQ(mapped[5000], std::byte{'x'});
  ::munmap(mapped.data(), mapped.size());
}

// Their content would be lost.
TEST_F(FilePages, ThatMayHaveBeenWrittenStay) {
  const auto changed = map(PROT_READ | PROT_WRITE, MAP_PRIVATE),
             anonymous = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  std::vector<std::byte> allocated(kBytes, std::byte{'z'});
  std::memset(changed.data(), 'y', kBytes);
  std::memset(anonymous.data(), 'y', kBytes);
  EXPECT_EQ(release_file_pages({changed, anonymous, allocated, {}}), 0U);
  EXPECT_EQ(changed[5000], std::byte{'y'});
  EXPECT_EQ(anonymous[5000], std::byte{'y'});
  EXPECT_EQ(allocated[5000], std::byte{'z'});
  ::mprotect(changed.data(), kBytes, PROT_READ);
  EXPECT_EQ(release_file_pages({changed}), 0U) << "written before";
  EXPECT_EQ(changed[5000], std::byte{'y'});
  ::munmap(changed.data(), kBytes);
  // Read-only now, and no file behind it.
  ::mprotect(anonymous.data(), kBytes, PROT_READ);
  EXPECT_EQ(release_file_pages({anonymous}), 0U);
  EXPECT_EQ(anonymous[5000], std::byte{'y'});
  ::munmap(anonymous.data(), kBytes);
}

}  // namespace
}  // namespace graft
