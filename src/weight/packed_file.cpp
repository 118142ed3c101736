#include "weight/packed_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"

namespace graft {
namespace {

constexpr std::array<char, 8> kMagic = {'G', 'R', 'F', 'T', 'P', 'A', 'C', 'K'};
constexpr std::uint64_t kFormat = 1;
constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kWord = 8;
constexpr std::size_t kEntryBytes = 2 * kDigestBytes + 2 * kWord;
constexpr std::size_t kFixedBytes = 4 * kWord;  // up to and with the bytes of the file

std::size_t padded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

void put(std::vector<std::byte>& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void put(std::vector<std::byte>& out, std::span<const std::uint8_t> bytes) {
  for (const std::uint8_t byte : bytes) out.push_back(std::byte{byte});
}

std::uint64_t number(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kWord; ++i) value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}

Digest digest_at(std::span<const std::byte> bytes, std::size_t at) {
  Digest out;
  std::memcpy(out.data(), bytes.data() + at, out.size());
  return out;
}

}  // namespace

std::string hex(const Digest& digest) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : digest) {
    out += kDigits[byte / 16];
    out += kDigits[byte % 16];
  }
  return out;
}

std::shared_ptr<const PackedFile> PackedFile::open(const std::string& path, const std::string& origin, bool verify) {
  std::shared_ptr<PackedFile> file(new PackedFile(MappedFile::open_without_descriptor(path)));
  naming_file(path, [&] { file->read(origin, verify); });
  return file;
}

void PackedFile::read(const std::string& origin, bool verify) {
  const std::span<const std::byte> bytes = file_->bytes();
  GRAFT_CHECK(InvalidProgram, bytes.size() >= kFixedBytes && std::memcmp(bytes.data(), kMagic.data(), kWord) == 0,
              "is no file of packed weights");
  const std::uint64_t format = number(bytes, kWord);
  GRAFT_CHECK(Unsupported, format == kFormat, "'", path(), "' has format ", format, " of packed weights, expected ",
              kFormat);
  const std::uint64_t head_bytes = number(bytes, 2 * kWord), file_bytes = number(bytes, 3 * kWord);
  GRAFT_CHECK(InvalidProgram, file_bytes == bytes.size(), "is damaged: it must have ", file_bytes, " bytes, it has ",
              bytes.size());
  constexpr std::size_t kLeast = kFixedBytes + 2 * kWord + kDigestBytes;
  GRAFT_CHECK(InvalidProgram, head_bytes >= kLeast && head_bytes <= bytes.size() && head_bytes % kWord == 0,
              "is damaged: its head has ", head_bytes, " bytes");
  const std::span<const std::byte> head = bytes.first(head_bytes - kDigestBytes);
  GRAFT_CHECK(InvalidProgram, sha256(head) == digest_at(bytes, head.size()),
              "is damaged: the checksum of its head is wrong");
  // From here on the numbers are those that were written, by whomever.
  std::size_t at = kFixedBytes + kWord;
  const std::uint64_t origin_bytes = number(head, kFixedBytes);
  GRAFT_CHECK(InvalidProgram, origin_bytes <= head.size() - at - kWord, "is damaged: its origin has ", origin_bytes,
              " bytes");
  const std::string made_by(reinterpret_cast<const char*>(head.data() + at), origin_bytes);
  GRAFT_CHECK(Unsupported, made_by == origin, "'", path(), "' was packed for '", made_by, "', expected '", origin, "'");
  at += padded(origin_bytes, kWord);
  GRAFT_CHECK(InvalidProgram, at + kWord <= head.size(), "is damaged: its origin has ", origin_bytes, " bytes");
  const std::uint64_t count = number(head, at);
  at += kWord;
  GRAFT_CHECK(InvalidProgram, (head.size() - at) % kEntryBytes == 0 && count == (head.size() - at) / kEntryBytes,
              "is damaged: its head of ", head_bytes, " bytes lists ", count, " entries");
  for (; at < head.size(); at += kEntryBytes) {
    const std::uint64_t offset = number(head, at + kDigestBytes), size = number(head, at + kDigestBytes + kWord);
    GRAFT_CHECK(
        InvalidProgram,
        offset % kAlignment == 0 && offset >= head_bytes && offset <= bytes.size() && size <= bytes.size() - offset,
        "is damaged: an entry of ", size, " bytes at ", offset, " does not lie in its ", bytes.size(), " bytes");
    const std::span<const std::byte> entry = bytes.subspan(offset, size);
    GRAFT_CHECK(InvalidProgram, !verify || sha256(entry) == digest_at(head, at + kDigestBytes + 2 * kWord),
                "is damaged: the SHA-256 of the entry at byte ", offset, " is wrong");
    entries_[digest_at(head, at)] = entry;
  }
}

std::optional<AlignedMemory> PackedFile::find(const Digest& digest, std::size_t bytes) const {
  const auto entry = entries_.find(digest);
  if (entry == entries_.end() || entry->second.size() != bytes) return std::nullopt;
  return AlignedMemory::of_file(file_, entry->second);
}

void write_packed_file(const std::string& path, const std::string& origin,
                       const std::map<Digest, std::span<const std::byte>>& entries) {
  const std::size_t head_bytes =
      kFixedBytes + 2 * kWord + padded(origin.size(), kWord) + entries.size() * kEntryBytes + kDigestBytes;
  std::size_t end = padded(head_bytes, kAlignment);
  for (const auto& [digest, bytes] : entries) end = padded(end + bytes.size(), kAlignment);
  std::vector<std::byte> head;
  for (const char c : kMagic) head.push_back(static_cast<std::byte>(c));
  for (const std::uint64_t value :
       {kFormat, std::uint64_t{head_bytes}, std::uint64_t{end}, std::uint64_t{origin.size()}})
    put(head, value);
  for (const char c : origin) head.push_back(static_cast<std::byte>(c));
  head.resize(padded(head.size(), kWord));
  put(head, std::uint64_t{entries.size()});
  std::size_t at = padded(head_bytes, kAlignment);
  for (const auto& [digest, bytes] : entries) {
    put(head, digest);
    put(head, std::uint64_t{at});
    put(head, std::uint64_t{bytes.size()});
    put(head, sha256(bytes));
    at = padded(at + bytes.size(), kAlignment);
  }
  put(head, sha256(head));
  GRAFT_ASSERT(head.size() == head_bytes && at == end);

  NewFile file(path);
  head.resize(padded(head_bytes, kAlignment));
  file.write(head, 0);
  at = head.size();
  for (const auto& [digest, bytes] : entries) {
    file.write(bytes, at);
    at = padded(at + bytes.size(), kAlignment);
  }
  file.resize(end);  // the last padding
  file.commit();
}

}  // namespace graft
