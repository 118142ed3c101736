#include "session/state_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace graft {
namespace {

// A file of states: the header, then the used bytes of each state in the program's order, then the SHA-256 of
// everything before. Little-endian, as packages are. A cache's lengths come before its keys and values.
constexpr char kMagic[8] = {'G', 'R', 'A', 'F', 'T', 'S', 'T', 'A'};
constexpr std::uint32_t kVersion = 3;
using Digest = std::array<std::uint8_t, 32>;

struct FileHead {
  char magic[8];
  std::uint32_t version;
  std::uint32_t states;
  Digest program;
  std::int64_t kv_rows;  // of a program with a cache of keys and values, else 0
  std::int64_t kv_type;
};

}  // namespace

void StateFile::save(const std::string& path) {
  FileHead head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.states = states_.count();
  head.program = states_.program().fingerprint;
  if (cache_.exists()) {
    head.kv_rows = states_.kv().rows;
    head.kv_type = static_cast<std::int64_t>(states_.kv().type);
  }
  std::vector<std::byte> bytes(sizeof(head));
  std::memcpy(bytes.data(), &head, sizeof(head));
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    const std::byte* from = states_.data(i);
    for (const auto& [offset, size] : cache_.used_ranges(i))
      bytes.insert(bytes.end(), from + offset, from + offset + size);
  }
  const Digest digest = sha256(bytes);
  NewFile file(path);
  file.write(bytes, 0);
  file.write(std::as_bytes(std::span(digest)), bytes.size());
  file.commit();
}

void StateFile::restore(const std::string& path) {
  const std::vector<std::byte> bytes = MappedFile::read_whole(path);
  FileHead head{};
  const bool whole = bytes.size() >= sizeof(head) + sizeof(Digest);
  if (whole) std::memcpy(&head, bytes.data(), sizeof(head));
  GRAFT_CHECK(InvalidProgram, whole && std::equal(kMagic, kMagic + sizeof(kMagic), head.magic), path,
              " is not a file of states");
  GRAFT_CHECK(InvalidProgram, head.version == kVersion, path, ": version of the file must be ", kVersion, ", found ",
              head.version);
  GRAFT_CHECK(InvalidProgram, head.states == states_.count() && head.program == states_.program().fingerprint, path,
              " holds ", head.states, " states of another program, not the ", states_.count(), " of ",
              states_.program().source);
  const std::span<const std::byte> hashed = std::span(bytes).first(bytes.size() - sizeof(Digest));
  Digest digest{};
  std::memcpy(digest.data(), bytes.data() + hashed.size(), sizeof(digest));
  GRAFT_CHECK(InvalidProgram, digest == sha256(hashed), path, " is damaged: its length or checksum is wrong");
  const KvOptions& kv = states_.kv();
  if (cache_.exists())
    GRAFT_CHECK(InvalidArgument, head.kv_rows == kv.rows && head.kv_type == static_cast<std::int64_t>(kv.type), path,
                " holds a cache of ", head.kv_rows, " rows of type ", head.kv_type, ", the session's has ", kv.rows,
                " rows of type ", static_cast<int>(kv.type));
  // Everything is checked before anything is changed.
  std::vector<std::int64_t> lengths, first_held, encoder_lengths, layer_lengths, halves;
  std::byte *layer_lengths_to = nullptr, *halves_to = nullptr;
  std::vector<std::pair<std::byte*, std::span<const std::byte>>> copies;
  std::size_t at = sizeof(head);
  const auto take = [&](std::size_t size) {
    GRAFT_CHECK(InvalidProgram, size <= hashed.size() - at, path, " is damaged: it ends too early");
    at += size;
    return hashed.subspan(at - size, size);
  };
  const auto take_numbers = [&](std::size_t count) {
    std::vector<std::int64_t> numbers(count);
    const std::span<const std::byte> from = take(count * sizeof(std::int64_t));
    if (count > 0) std::memcpy(numbers.data(), from.data(), from.size());
    return numbers;
  };
  const auto rows = static_cast<std::size_t>(kv.rows);
  for (std::uint32_t i = 0; i < states_.count(); ++i) {
    const ir::State& info = states_.info(i);
    const TensorDesc desc = states_.desc(i);
    std::byte* to = states_.data(i);
    switch (info.kind) {
      case ir::StateKind::plain:
        copies.emplace_back(to, take(desc.byte_count()));
        break;
      case ir::StateKind::kv_length:
        lengths = take_numbers(rows);
        for (const std::int64_t length : lengths)
          GRAFT_CHECK(InvalidArgument, length >= 0 && length <= kv.length, path, " holds ", length,
                      " tokens, the session's cache has room for ", kv.length);
        break;
      case ir::StateKind::kv_first:
        first_held = take_numbers(rows * info.windows.size());
        for (std::size_t f = 0; f < first_held.size(); ++f) {
          const std::int64_t length = lengths[f / info.windows.size()];
          GRAFT_CHECK(InvalidProgram, first_held[f] >= 0 && (length == 0 || first_held[f] <= length), path,
                      " is damaged: ", first_held[f], " is no first of ", length, " tokens");
        }
        break;
      case ir::StateKind::kv_layer_length:
        layer_lengths = take_numbers(rows * info.windows.size());
        layer_lengths_to = to;
        for (const std::int64_t length : layer_lengths)
          GRAFT_CHECK(InvalidProgram, length >= 0 && length <= kv.length, path, " is damaged: a layer holds ", length,
                      " tokens of ", kv.length);
        break;
      case ir::StateKind::kv_encoder_length:
        encoder_lengths = take_numbers(rows);
        for (const std::int64_t length : encoder_lengths)
          GRAFT_CHECK(InvalidArgument, length >= 0 && length <= kv.encoder_length, path, " holds ", length,
                      " tokens of an encoder, the session's cache has room for ", kv.encoder_length);
        break;
      case ir::StateKind::recurrent_half:
        halves = take_numbers(rows);
        halves_to = to;
        for (const std::int64_t half : halves)
          GRAFT_CHECK(InvalidProgram, half == 0 || half == 1, path, " is damaged: there are two halves, found ", half);
        break;
      case ir::StateKind::recurrent: {
        const std::size_t half = desc.byte_count() / (2 * rows);
        for (std::size_t r = 0; r < rows; ++r)
          if (lengths[r] > 0)
            copies.emplace_back(to + (2 * r + static_cast<std::size_t>(halves[r])) * half, take(half));
        break;
      }
      case ir::StateKind::kv_encoder:
      case ir::StateKind::kv: {
        const std::size_t slot = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
        const std::optional<std::size_t> window = cache_.window_of(info);
        for (std::size_t r = 0; r < rows; ++r) {
          const std::int64_t length = info.kind == ir::StateKind::kv ? lengths[r] : encoder_lengths[r];
          const std::int64_t first =
              window ? std::min(first_held[r * (first_held.size() / rows) + *window], length) : 0;
          for (std::int64_t h = 0; h < desc.shape[1]; ++h) {
            const std::span<const std::byte> tokens = take(static_cast<std::size_t>(length - first) * slot);
            std::byte* row =
                to +
                static_cast<std::size_t>((static_cast<std::int64_t>(r) * desc.shape[1] + h) * desc.shape[2]) * slot;
            // A smaller ring buffer keeps the last tokens.
            for (std::int64_t p = std::max(first, length - desc.shape[2]), n = 0; p < length; p += n) {
              n = std::min(length - p, desc.shape[2] - p % desc.shape[2]);
              copies.emplace_back(
                  row + static_cast<std::size_t>(p % desc.shape[2]) * slot,
                  tokens.subspan(static_cast<std::size_t>(p - first) * slot, static_cast<std::size_t>(n) * slot));
            }
          }
        }
        break;
      }
    }
  }
  GRAFT_CHECK(InvalidProgram, at == hashed.size(), path, " is damaged: bytes are left over");
  for (const auto& [to, from] : copies)
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  if (!cache_.exists()) return;
  std::ranges::copy(lengths, cache_.lengths().begin());
  std::ranges::copy(encoder_lengths, cache_.encoder_lengths().begin());
  if (layer_lengths_to)
    std::memcpy(layer_lengths_to, layer_lengths.data(), layer_lengths.size() * sizeof(std::int64_t));
  if (halves_to) std::memcpy(halves_to, halves.data(), halves.size() * sizeof(std::int64_t));
  for (std::size_t f = 0; f < first_held.size(); ++f) {
    const std::size_t windows = first_held.size() / rows;
    const std::int64_t slots = cache_.ring_slots(f % windows), length = lengths[f / windows];
    cache_.first_held()[f] = length == 0 ? 0 : std::max(first_held[f], slots > 0 ? length - slots : 0);
  }
}

}  // namespace graft
