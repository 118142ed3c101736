#include "flat_tensor_generated.h"
#include "weight/et_container.h"
#include "weight/weights.h"

namespace graft {
namespace {

namespace ft = flat_tensor_flatbuffer;
using namespace et_container;

constexpr std::string_view kPtdHeaderMagic = "FH01";
// Magic, header length, flatbuffer offset, flatbuffer size, segment base, size of the segments.
constexpr std::uint32_t kPtdHeaderBytes = 40;
// The highest version of the schema that the headers of executorch 1.5 describe.
constexpr std::uint32_t kPtdSchemaVersion = 0;

}  // namespace

WeightFile read_ptd(std::shared_ptr<const MappedFile> file) {
  const Bytes bytes = file->bytes();
  check_identifier(bytes, ft::FlatTensorIdentifier(), "ptd");
  GRAFT_CHECK(
      InvalidProgram,
      bytes.size() >= kHeaderOffset + kPtdHeaderBytes && text(bytes, kHeaderOffset, kMagicBytes) == kPtdHeaderMagic,
      "its header is missing");
  const auto length = load<std::uint32_t>(bytes, kHeaderOffset + 4);
  GRAFT_CHECK(InvalidProgram, length >= kPtdHeaderBytes, "its header must have at least ", kPtdHeaderBytes,
              " bytes, found ", length);
  // The flatbuffer's root offset counts from the start of the file, because the header is inside the flatbuffer.
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
  WeightFile out{file, {}};
  for (const NamedBytes& named : read_named(root.named_data(), read_segments(root.segments(), area))) {
    const bool fresh = out.tensors.emplace(named.key, StoredTensor{named.bytes, {}, {}, {}}).second;
    GRAFT_CHECK(InvalidProgram, fresh, "data '", named.key, "' appears twice");
  }
  return out;
}

}  // namespace graft
