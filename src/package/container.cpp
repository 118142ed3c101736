#include "package/container.h"

#include <algorithm>

#include "weight/et_container.h"

namespace graft {
namespace {

using namespace et_container;

constexpr std::string_view kPteHeaderMagic = "eh00";
// Magic, header length, program size, segment base.
constexpr std::uint32_t kPteHeaderBytes = 24;
// The same plus the size of the segments, which old files lack.
constexpr std::uint32_t kPteHeaderBytesWithSize = 32;
// The highest version of the schema that the headers of executorch 1.5 describe.
constexpr std::uint32_t kPteSchemaVersion = 0;

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
      // Writers that do not fill in the size leave 0.
      area = slice(bytes, base, size != 0 ? size : bytes.size() - base, "the segment data");
    }
  }
  const auto verified = [](Bytes flatbuffer) {
    verify_flatbuffer(flatbuffer, [](flatbuffers::Verifier& verifier) { return et::VerifyProgramBuffer(verifier); });
    return et::GetProgram(flatbuffer.data());
  };
  // The caller's memory cannot shrink while it is read; a file can, so a copy is parsed.
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

std::optional<std::string> named_text(const std::string& path, std::string_view key) {
  const auto file = MappedFile::open(path);
  const PteFile package(file);
  for (const NamedBytes& named : package.named_data()) {
    if (named.key != key) continue;
    const auto bytes = file->read(named.bytes);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return std::nullopt;
}

}  // namespace graft
