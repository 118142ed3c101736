#pragma once

#include <flatbuffers/flatbuffers.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

// Shared by ExecuTorch's two containers, .pte and .ptd: a flatbuffer with a header inside it, segments of data behind
// it, and names for some of these. A file is untrusted: every offset, count and size is checked here before use.
namespace graft {

// The bytes at offset 4 of a .ptd.
inline constexpr std::string_view kPtdIdentifier = "FT01";

// Named data of a file.
struct NamedBytes {
  std::string_view key;              // lives as long as the object that returned it
  std::span<const std::byte> bytes;  // in the mapping
};

namespace et_container {

using Bytes = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "the containers are little-endian");

inline constexpr std::size_t kIdentifierOffset = sizeof(flatbuffers::uoffset_t);
// Both containers put their own header between the identifier and the rest of the flatbuffer.
inline constexpr std::size_t kHeaderOffset = kIdentifierOffset + 4;
inline constexpr std::size_t kMagicBytes = 4;
inline constexpr flatbuffers::uoffset_t kMaxTableDepth = 32;

template <typename T>
T load(Bytes bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

inline std::string_view text(Bytes bytes, std::size_t offset, std::size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()) + offset, count};
}

// bytes[offset, offset + count), with the sum checked.
inline Bytes slice(Bytes bytes, std::uint64_t offset, std::uint64_t count, std::string_view what) {
  GRAFT_CHECK(InvalidProgram, offset <= bytes.size() && count <= bytes.size() - offset, what, " (", count, " bytes at ",
              offset, ") reaches beyond the ", bytes.size(), " bytes there are: the file is truncated or damaged");
  return bytes.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

inline void check_identifier(Bytes bytes, std::string_view expected, std::string_view kind) {
  GRAFT_CHECK(InvalidProgram, bytes.size() >= kHeaderOffset, "not a ", kind, " file: it has only ", bytes.size(),
              " bytes");
  const std::string_view found = text(bytes, kIdentifierOffset, kHeaderOffset - kIdentifierOffset);
  GRAFT_CHECK(InvalidProgram, found == expected, "not a ", kind,
              " file that this graft can read: the identifier is not '", expected, "'");
}

// Runs FlatBuffers' verifier; `bytes` is aligned because mappings are.
template <typename Verify>
void verify_flatbuffer(Bytes bytes, Verify&& verify) {
  GRAFT_CHECK(InvalidProgram, bytes.size() < FLATBUFFERS_MAX_BUFFER_SIZE, "the flatbuffer has ", bytes.size(),
              " bytes, at most ", FLATBUFFERS_MAX_BUFFER_SIZE - 1, " are possible");
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), kMaxTableDepth,
                                 static_cast<flatbuffers::uoffset_t>(bytes.size()));
  GRAFT_CHECK(InvalidProgram, verify(verifier), "damaged: an offset or a count in the flatbuffer of ", bytes.size(),
              " bytes is not valid");
}

template <typename Segment>
std::vector<Bytes> read_segments(const flatbuffers::Vector<flatbuffers::Offset<Segment>>* segments, Bytes area) {
  std::vector<Bytes> out;
  if (segments == nullptr) return out;
  out.reserve(segments->size());
  for (const Segment* s : *segments) out.push_back(slice(area, s->offset(), s->size(), str("segment ", out.size())));
  return out;
}

template <typename Named>
std::vector<NamedBytes> read_named(const flatbuffers::Vector<flatbuffers::Offset<Named>>* named,
                                   const std::vector<Bytes>& segments) {
  std::vector<NamedBytes> out;
  if (named == nullptr) return out;
  out.reserve(named->size());
  for (const Named* n : *named) {
    GRAFT_CHECK(InvalidProgram, n->key() != nullptr, "named data ", out.size(), " has no key");
    GRAFT_CHECK(InvalidProgram, n->segment_index() < segments.size(), "named data '", n->key()->string_view(),
                "': there are ", segments.size(), " segments, found index ", n->segment_index());
    out.push_back({n->key()->string_view(), segments[n->segment_index()]});
  }
  return out;
}

}  // namespace et_container
}  // namespace graft
