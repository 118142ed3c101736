#include "package/container.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "flat_tensor_generated.h"

namespace graft {
namespace {

namespace ft = flat_tensor_flatbuffer;
using Bytes = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "the containers are little-endian");

constexpr std::size_t kIdentifierOffset = sizeof(flatbuffers::uoffset_t);
// Both containers put a header of their own between the identifier and the rest of the flatbuffer.
constexpr std::size_t kHeaderOffset = kIdentifierOffset + 4;
constexpr std::string_view kPteHeaderMagic = "eh00";
constexpr std::string_view kPtdHeaderMagic = "FH01";
constexpr std::size_t kMagicBytes = 4;
// Magic, header length, program size, segment base.
constexpr std::uint32_t kPteHeaderBytes = 24;
// The same and the size of the segments, which old files lack.
constexpr std::uint32_t kPteHeaderBytesWithSize = 32;
// Magic, header length, flatbuffer offset, flatbuffer size, segment base, size of the segments.
constexpr std::uint32_t kPtdHeaderBytes = 40;
// The highest versions of the two schemas that the headers of executorch 1.5 describe.
constexpr std::uint32_t kPteSchemaVersion = 0;
constexpr std::uint32_t kPtdSchemaVersion = 0;
constexpr flatbuffers::uoffset_t kMaxTableDepth = 32;

template <typename T>
T load(Bytes bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view text(Bytes bytes, std::size_t offset, std::size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()) + offset, count};
}

// bytes[offset, offset + count), with the sum checked.
Bytes slice(Bytes bytes, std::uint64_t offset, std::uint64_t count, std::string_view what) {
  GRAFT_CHECK(InvalidProgram, offset <= bytes.size() && count <= bytes.size() - offset, what, " (", count, " bytes at ",
              offset, ") reaches beyond the ", bytes.size(), " bytes there are: the file is truncated or damaged");
  return bytes.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

void check_identifier(Bytes bytes, std::string_view expected, std::string_view kind) {
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

}  // namespace

PteFile::PteFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  naming_file(file_->path(), [this] { read(); });
}

void PteFile::read() {
  const Bytes bytes = file_->bytes();
  const std::size_t start_bytes = std::min<std::size_t>(bytes.size(), kHeaderOffset + kPteHeaderBytesWithSize);
  const std::vector<std::byte> start = file_->read(0, start_bytes);
  check_identifier(start, et::ProgramIdentifier(), "pte");
  Bytes program = bytes;
  Bytes area;
  if (start.size() >= kHeaderOffset + kPteHeaderBytes && text(start, kHeaderOffset, kMagicBytes) == kPteHeaderMagic) {
    const auto length = load<std::uint32_t>(start, kHeaderOffset + 4);
    GRAFT_CHECK(InvalidProgram, length >= kPteHeaderBytes, "its header must have at least ", kPteHeaderBytes,
                " bytes, found ", length);
    program = slice(bytes, 0, load<std::uint64_t>(start, kHeaderOffset + 8), "the program");
    GRAFT_CHECK(InvalidProgram, program.size() >= kHeaderOffset + length, "the program of ", program.size(),
                " bytes ends within its header of ", length);
    const auto base = load<std::uint64_t>(start, kHeaderOffset + 16);
    if (base != 0) {
      GRAFT_CHECK(InvalidProgram, base >= program.size() && base <= bytes.size(), "the segments start at ", base,
                  ", outside ", program.size(), " to ", bytes.size(), ": the file is truncated or damaged");
      const auto size = length >= kPteHeaderBytesWithSize ? load<std::uint64_t>(start, kHeaderOffset + 24) : 0;
      // Writers that do not fill the size in leave 0.
      area = slice(bytes, base, size != 0 ? size : bytes.size() - base, "the segment data");
    }
  }
  const auto verified = [](Bytes flatbuffer) {
    verify_flatbuffer(flatbuffer, [](flatbuffers::Verifier& verifier) { return et::VerifyProgramBuffer(verifier); });
    return et::GetProgram(flatbuffer.data());
  };
  // Memory cannot be taken away under the reader; of a file it is a copy that is read.
  if (!file_->is_memory()) {
    head_ = file_->read(0, program.size());
    program_ = verified(head_);
  }
  if (program_ == nullptr || (program_->constant_buffer() != nullptr && program_->constant_buffer()->size() > 1)) {
    program_ = verified(program);
    head_ = {};
  }
  GRAFT_CHECK(InvalidProgram, program_->version() <= kPteSchemaVersion, "schema version ", program_->version(),
              ": this graft reads versions up to ", kPteSchemaVersion);
  segments_ = read_segments(program_->segments(), area);
  named_data_ = read_named(program_->named_data(), segments_);
}

Bytes PteFile::segment(std::uint64_t index) const {
  GRAFT_CHECK(InvalidProgram, index < segments_.size(), "there are ", segments_.size(), " segments, found index ",
              index);
  return segments_[static_cast<std::size_t>(index)];
}

Bytes PteFile::processed(const et::BackendDelegate& delegate) const {
  const auto* reference = delegate.processed();
  GRAFT_CHECK(InvalidProgram, reference != nullptr, "a delegate has no data");
  if (reference->location() == et::DataLocation::SEGMENT) return segment(reference->index());
  GRAFT_CHECK(InvalidProgram, reference->location() == et::DataLocation::INLINE, "delegate data location ",
              static_cast<int>(reference->location()), " is not known");
  const auto* all = program_->backend_delegate_data();
  const std::size_t count = all == nullptr ? 0 : all->size();
  GRAFT_CHECK(InvalidProgram, reference->index() < count, "there are ", count, " inline delegate blobs, found index ",
              reference->index());
  const auto* data = all->Get(reference->index())->data();
  if (data == nullptr) return {};
  return {reinterpret_cast<const std::byte*>(data->data()), data->size()};
}

Bytes PteFile::constant(std::uint32_t buffer_index, std::uint64_t byte_count) const {
  const auto* constants = program_->constant_segment();
  const std::string what = str("constant ", buffer_index);
  if (constants != nullptr && constants->offsets() != nullptr && constants->offsets()->size() > 0) {
    GRAFT_CHECK(InvalidProgram, buffer_index < constants->offsets()->size(), "there are ", constants->offsets()->size(),
                " constants, found index ", buffer_index);
    // The verifier checks the alignment of a vector's length, not of its elements.
    std::uint64_t offset;
    std::memcpy(&offset, constants->offsets()->Data() + buffer_index * sizeof(offset), sizeof(offset));
    return slice(segment(constants->segment_index()), offset, byte_count, what);
  }
  const auto* buffers = program_->constant_buffer();
  const std::size_t count = buffers == nullptr ? 0 : buffers->size();
  GRAFT_CHECK(InvalidProgram, buffer_index < count, "there are ", count, " constants, found index ", buffer_index);
  const auto* storage = buffers->Get(buffer_index)->storage();
  const Bytes bytes =
      storage == nullptr ? Bytes{} : Bytes(reinterpret_cast<const std::byte*>(storage->data()), storage->size());
  return slice(bytes, 0, byte_count, what);
}

PtdFile::PtdFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  naming_file(file_->path(), [this] { read(); });
}

void PtdFile::read() {
  const Bytes bytes = file_->bytes();
  check_identifier(bytes, ft::FlatTensorIdentifier(), "ptd");
  GRAFT_CHECK(
      InvalidProgram,
      bytes.size() >= kHeaderOffset + kPtdHeaderBytes && text(bytes, kHeaderOffset, kMagicBytes) == kPtdHeaderMagic,
      "its header is missing");
  const auto length = load<std::uint32_t>(bytes, kHeaderOffset + 4);
  GRAFT_CHECK(InvalidProgram, length >= kPtdHeaderBytes, "its header must have at least ", kPtdHeaderBytes,
              " bytes, found ", length);
  // The flatbuffer's root offset counts from the start of the file: the header was put inside it.
  const auto offset = load<std::uint64_t>(bytes, kHeaderOffset + 8);
  const Bytes body = slice(bytes, offset, load<std::uint64_t>(bytes, kHeaderOffset + 16), "the flatbuffer");
  const Bytes tensors = bytes.first(static_cast<std::size_t>(offset) + body.size());
  GRAFT_CHECK(InvalidProgram, tensors.size() >= kHeaderOffset, "the flatbuffer ends within the header");
  const auto base = load<std::uint64_t>(bytes, kHeaderOffset + 24);
  const Bytes area = slice(bytes, base, load<std::uint64_t>(bytes, kHeaderOffset + 32), "the segment data");
  verify_flatbuffer(tensors, [](flatbuffers::Verifier& verifier) { return ft::VerifyFlatTensorBuffer(verifier); });
  const ft::FlatTensor& root = *ft::GetFlatTensor(tensors.data());
  GRAFT_CHECK(InvalidProgram, root.version() <= kPtdSchemaVersion, "schema version ", root.version(),
              ": this graft reads versions up to ", kPtdSchemaVersion);
  named_data_ = read_named(root.named_data(), read_segments(root.segments(), area));
}

}  // namespace graft
