#include "weight/packed_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "graft/error.h"
#include "weight/packed_store.h"
#include "weight/test_container.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr const char* kOrigin = "graft 1; cpu; avx9";

Digest digest(std::uint8_t value) {
  Digest out{};
  out.fill(value);
  return out;
}

Bytes filled(std::size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

Bytes content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(in), {}};
  Bytes out(chars.size());
  if (!out.empty()) std::memcpy(out.data(), chars.data(), out.size());
  return out;
}

template <typename ErrorType>
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "";
}

class PackedFileTest : public ::testing::Test {
 protected:
  PackedFileTest() { write_packed_file(path_, kOrigin, {{digest(1), first_}, {digest(2), second_}, {digest(3), {}}}); }

  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.path()), std::filesystem::directory_iterator{}));
  }
  // The message of the refusal; "" if the bytes are accepted.
  template <typename ErrorType = InvalidProgram>
  std::string refusal(const Bytes& bytes, bool verify = false) const {
    const std::string path = folder_.write("changed.packed", bytes);
    return error_of<ErrorType>([&] { PackedFile::open(path, kOrigin, verify); });
  }
  // With the head's checksum made right again.
  static Bytes with_checksum(Bytes bytes) {
    std::uint64_t head = 0;
    std::memcpy(&head, bytes.data() + 16, sizeof(head));
    const auto sum = sha256(std::span(bytes).first(head - 32));
    std::memcpy(bytes.data() + head - 32, sum.data(), sum.size());
    return bytes;
  }
  static Bytes with_number(Bytes bytes, std::size_t at, std::uint64_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return with_checksum(std::move(bytes));
  }

  test::TemporaryFolder folder_;
  const std::string path_ = (std::filesystem::path(folder_.path()) / "w.packed").string();
  const Bytes first_ = filled(100, 7), second_ = filled(5000, 9);
};

TEST_F(PackedFileTest, EntriesAreFoundByDigestAndSizeAndKeepTheMapping) {
  std::optional<AlignedMemory> one, two;
  {
    const auto file = PackedFile::open(path_, kOrigin, /*verify=*/true);
    one = file->find(digest(1), 100);
    two = file->find(digest(2), 5000);
    EXPECT_TRUE(file->find(digest(3), 0));
    EXPECT_FALSE(file->find(digest(1), 101));
    EXPECT_FALSE(file->find(digest(4), 100));
  }
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(std::equal(first_.begin(), first_.end(), one->data()));
  EXPECT_TRUE(std::equal(second_.begin(), second_.end(), two->data()));
  EXPECT_TRUE(one->in_file());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(two->data()) % kAlignment, 0U);
  EXPECT_EQ(files(), 1U) << "no temporary file is left";
}

TEST_F(PackedFileTest, WhatACrashLeftIsRemovedByTheNextWrite) {
  folder_.write("w.packed.77.1.graft.tmp", filled(40, 1));
  folder_.write("other.tmp", filled(40, 1));
  const std::string written = folder_.write("w.packed.78.1.graft.tmp", filled(40, 1));
  const int writer = ::open(written.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  EXPECT_EQ(files(), 4U);
  const auto write = [&](const std::string& folder) {
    PackedStore store(kOrigin, /*verify=*/true);
    store.set_folder(folder);
    store.keep(digest(4), AlignedMemory(1 << 20));
    EXPECT_EQ(store.written(), 1U) << store.refusal();
  };
  write(folder_.path());
  EXPECT_TRUE(std::filesystem::exists(written)) << "somebody writes it";
  EXPECT_EQ(files(), 4U) << "the abandoned one is gone, that of digest 4 is there";
  ::close(writer);  // as when its process ends
  write(folder_.path());
  EXPECT_FALSE(std::filesystem::exists(written));
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(folder_.path()) / "other.tmp")) << "no file of graft's";
}

TEST_F(PackedFileTest, ASubsetOfSizesIsWrittenWholly) {
  for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 128U}) {
    const Bytes bytes = filled(size, 3);
    write_packed_file(path_, kOrigin, {{digest(1), bytes}});
    const auto found = PackedFile::open(path_, kOrigin, /*verify=*/true)->find(digest(1), size);
    ASSERT_TRUE(found) << size;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), found->data()));
  }
}

TEST_F(PackedFileTest, EveryCutAndEveryChangedByteOfTheHeadIsRefused) {
  const Bytes whole = content_of(path_);
  std::uint64_t head = 0;
  std::memcpy(&head, whole.data() + 16, sizeof(head));
  for (std::size_t size = 0; size < whole.size(); size += size < head ? 1 : 61)
    EXPECT_THAT(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}),
                HasSubstr("changed.packed'"))
        << size;
  EXPECT_THAT(refusal({whole.begin(), whole.end() - 1}), HasSubstr("is damaged: it must have"));
  Bytes longer = whole;
  longer.push_back({});
  EXPECT_THAT(refusal(longer), HasSubstr("is damaged: it must have"));
  for (std::size_t at = 0; at < head; ++at) {
    Bytes changed = whole;
    changed[at] ^= std::byte{0x10};
    EXPECT_NE(refusal<Error>(changed), "") << at;
  }
  EXPECT_EQ(refusal(whole), "");
}

TEST_F(PackedFileTest, ChangedEntriesAreSeenWhenTheyAreVerified) {
  Bytes changed = content_of(path_);
  changed[changed.size() - 64 - 64] ^= std::byte{1};
  EXPECT_EQ(refusal(changed, /*verify=*/false), "");
  EXPECT_THAT(refusal(changed, /*verify=*/true), HasSubstr("is damaged: the SHA-256 of the entry at byte"));
}

TEST_F(PackedFileTest, OtherOriginsAndFormatsAreNamed) {
  EXPECT_THAT(error_of<Unsupported>([&] { PackedFile::open(path_, "graft 2; cpu; avx9", false); }),
              HasSubstr("w.packed' was packed for 'graft 1; cpu; avx9', expected 'graft 2; cpu; avx9'"));
  EXPECT_THAT(refusal<Unsupported>(with_number(content_of(path_), 8, 2)),
              HasSubstr("has format 2 of packed weights, expected 1"));
  EXPECT_THAT(refusal(filled(200, 'x')), HasSubstr("is no file of packed weights"));
  EXPECT_THAT(error_of<NotFound>([&] { PackedFile::open(path_ + ".none", kOrigin, false); }), HasSubstr(".none"));
  EXPECT_THAT(error_of<SystemError>([&] { PackedFile::open(folder_.path(), kOrigin, false); }), HasSubstr("regular"));
}

// A checksum is no signature: whoever writes a file can make it right.
TEST_F(PackedFileTest, HeadsThatNameOtherMemoryAreRefused) {
  const Bytes whole = content_of(path_);
  std::uint64_t head = 0;
  std::memcpy(&head, whole.data() + 16, sizeof(head));
  const std::size_t entries = head - 32 - 3 * 80;
  const std::size_t offset = entries + 32, size = offset + 8;
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, std::uint64_t{64}, head - head % 64, whole.size() + 64 - whole.size() % 64,
        std::uint64_t{1} << 63, ~std::uint64_t{63}, std::uint64_t{513}})
    EXPECT_THAT(refusal(with_number(whole, offset, wrong)), HasSubstr("is damaged: an entry of")) << wrong;
  for (const std::uint64_t wrong : {whole.size(), std::uint64_t{1} << 62, ~std::uint64_t{0}})
    EXPECT_THAT(refusal(with_number(whole, size, wrong)), HasSubstr("is damaged: an entry of")) << wrong;
  for (const std::uint64_t wrong : {0ULL, 2ULL, 4ULL, ~0ULL})
    EXPECT_THAT(refusal(with_number(whole, entries - 8, wrong)), HasSubstr("entries")) << wrong;
  for (const std::uint64_t wrong : {std::uint64_t{head}, std::uint64_t{1} << 62, ~std::uint64_t{0}})
    EXPECT_THAT(refusal(with_number(whole, 32, wrong)), HasSubstr("its origin has")) << wrong;
  for (const std::uint64_t wrong : {std::uint64_t{0}, std::uint64_t{79}, whole.size() + 8, ~std::uint64_t{7}}) {
    Bytes changed = whole;
    std::memcpy(changed.data() + 16, &wrong, sizeof(wrong));
    EXPECT_THAT(refusal(changed), HasSubstr("is damaged: its head has")) << wrong;
  }
}

TEST_F(PackedFileTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const Bytes before = content_of(path_);
  EXPECT_THAT(error_of<SystemError>([&] { write_packed_file("/nowhere/w.packed", kOrigin, {}); }),
              HasSubstr("cannot write '/nowhere/w.packed'"));
  // A folder of that name: the file is written, and cannot be renamed.
  const std::string taken = path_ + ".taken";
  std::filesystem::create_directories(taken + "/full");
  EXPECT_THAT(error_of<SystemError>([&] { write_packed_file(taken, kOrigin, {}); }), HasSubstr("cannot write"));
  EXPECT_EQ(files(), 2U);
  EXPECT_EQ(content_of(path_), before);
}

TEST_F(PackedFileTest, TheStoreKeepsLargeEntriesInItsFolder) {
  const std::string folder = (std::filesystem::path(folder_.path()) / "a" / "b").string();
  const auto memory = [](std::size_t size, int value) {
    AlignedMemory out(size);
    std::memset(out.data(), value, size);
    return out;
  };
  const std::size_t large = std::size_t{1} << 17;
  Digest of_large{};
  {
    PackedStore store(kOrigin, false);
    store.set_folder(folder);
    of_large = store.digest("large");
    EXPECT_NE(of_large, PackedStore("other origin", false).digest("large"));
    EXPECT_FALSE(store.find(of_large, large));
    const AlignedMemory kept = store.keep(of_large, memory(large, 5));
    EXPECT_TRUE(kept.in_file());
    EXPECT_EQ(kept.data()[large - 1], std::byte{5});
    EXPECT_FALSE(store.keep(store.digest("small"), memory(100, 6)).in_file());
    EXPECT_EQ(store.written(), 1U);
    EXPECT_EQ(store.refused(), 0U);
  }
  PackedStore again(kOrigin, true);
  again.set_folder(folder);
  const auto found = again.find(of_large, large);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->data()[0], std::byte{5});
  EXPECT_EQ(again.used_bytes(), large);
  // A damaged file is refused, and replaced by the next that is kept.
  const std::string path = folder + "/" + hex(of_large) + ".packed";
  std::filesystem::resize_file(path, 1000);
  PackedStore third(kOrigin, false);
  third.set_folder(folder);
  EXPECT_FALSE(third.find(of_large, large));
  EXPECT_EQ(third.refused(), 1U);
  EXPECT_THAT(third.refusal(), AllOf(HasSubstr(path), HasSubstr("is damaged: it must have")));
  EXPECT_TRUE(third.keep(of_large, memory(large, 5)).in_file());
  EXPECT_TRUE(PackedFile::open(path, kOrigin, true)->find(of_large, large));
  // A folder that is none.
  PackedStore fourth(kOrigin, false);
  fourth.set_folder(path_);
  EXPECT_FALSE(fourth.find(of_large, large));
  const AlignedMemory own = fourth.keep(of_large, memory(large, 8));
  EXPECT_FALSE(own.in_file());
  EXPECT_EQ(own.data()[0], std::byte{8});
  EXPECT_THAT(fourth.refusal(), HasSubstr("cannot write '" + path_));
}

}  // namespace
}  // namespace graft
