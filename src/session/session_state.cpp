#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/sha256.h"
#include "session/session_impl.h"

// The states of a session: made when first needed, reset, copied to another session, saved and restored.
namespace graft {
namespace {

// A file of states: the head, then of each state in the program's order the bytes that hold something, then the SHA-256
// of everything before. Little-endian, as packages are. A cache's lengths come before its keys and values.
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

std::vector<Session::Impl::Range> Session::Impl::used_ranges(std::uint32_t index) {
  const TensorDesc desc = desc_of(index);
  const ir::State& info = loaded().states[index].state;
  if (!is_tokens(info.kind)) return {{0, desc.byte_count()}};
  std::vector<Range> ranges;  // of [rows, heads, slots, size]
  const std::size_t slot = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
  for (std::int64_t r = 0; r < desc.shape[0]; ++r) {
    const auto [begin, end] = held(info, static_cast<std::size_t>(r));
    for (std::int64_t h = 0; h < desc.shape[1]; ++h)
      for (std::int64_t p = begin, n = 0; p < end; p += n) {
        const std::int64_t at = p % desc.shape[2];
        n = std::min(end - p, desc.shape[2] - at);
        ranges.push_back({static_cast<std::size_t>((r * desc.shape[1] + h) * desc.shape[2] + at) * slot,
                          static_cast<std::size_t>(n) * slot});
      }
  }
  return ranges;
}

void Session::Impl::reset_state(std::uint32_t index) {
  const StateInfo& info = loaded().states[index];
  const std::size_t bytes = desc_of(index).byte_count();
  if (info.initial) {
    std::memcpy(states[index].data(), info.initial, bytes);
  } else if (!is_tokens(info.state.kind)) {  // a cache is empty when its lengths are 0
    std::memset(states[index].data(), 0, bytes);
  }
}

std::byte* Session::Impl::state(std::uint32_t index) {
  if (states.size() <= index) states.resize(loaded().states.size());
  AlignedMemory& memory = states[index];
  if (!memory.data()) {
    const std::size_t bytes = desc_of(index).byte_count();
    memory = AlignedMemory(bytes);
    reset_state(index);
    counters.state_bytes += bytes;
  }
  return memory.data();
}

std::vector<StateView> Session::states() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  std::vector<StateView> views;
  const std::vector<StateInfo>& infos = impl_->loaded().states;
  for (std::uint32_t i = 0; i < infos.size(); ++i)
    views.push_back({infos[i].state.fqn, {impl_->state(i), impl_->desc_of(i).dtype, impl_->desc_of(i).shape}});
  return views;
}

void Session::reset() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  for (std::uint32_t i = 0; i < impl_->states.size(); ++i)
    if (impl_->states[i].data()) impl_->reset_state(i);
  impl_->control.random.run = 0;
}

Session Session::fork() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  SessionOptions options = impl_->options;
  options.threads = impl_->threads;
  Session copy(impl_->program, options);
  copy.impl_->control.random = impl_->control.random;
  for (std::uint32_t i = 0; i < impl_->states.size(); ++i) {
    if (!impl_->states[i].data()) continue;
    std::byte* to = copy.impl_->state(i);
    for (const auto& [offset, bytes] : impl_->used_ranges(i))
      std::memcpy(to + offset, impl_->states[i].data() + offset, bytes);
  }
  return copy;
}

void Session::save(const std::string& path) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const auto states = static_cast<std::uint32_t>(impl_->loaded().states.size());
  FileHead head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.states = states;
  head.program = impl_->loaded().fingerprint;
  if (impl_->has_kv) {
    head.kv_rows = impl_->options.kv.rows;
    head.kv_type = static_cast<std::int64_t>(impl_->options.kv.type);
  }
  std::vector<std::byte> bytes(sizeof(head));
  std::memcpy(bytes.data(), &head, sizeof(head));
  for (std::uint32_t i = 0; i < states; ++i) {
    const std::byte* from = impl_->state(i);
    for (const auto& [offset, size] : impl_->used_ranges(i))
      bytes.insert(bytes.end(), from + offset, from + offset + size);
  }
  const Digest digest = sha256(bytes);
  // Under another name first: a full disk or a crash leaves an earlier file as it was.
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.write(reinterpret_cast<const char*>(digest.data()), static_cast<std::streamsize>(digest.size()));
  file.close();
  const bool written = file.good() && std::rename(partial.c_str(), path.c_str()) == 0;
  if (!written) std::remove(partial.c_str());
  GRAFT_CHECK(SystemError, written, "cannot write the states to ", path);
}

void Session::restore(const std::string& path) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  std::ifstream file(path, std::ios::binary);
  GRAFT_CHECK(NotFound, file, "cannot open ", path);
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  FileHead head{};
  const bool whole = bytes.size() >= sizeof(head) + sizeof(Digest);
  if (whole) std::memcpy(&head, bytes.data(), sizeof(head));
  GRAFT_CHECK(InvalidProgram, whole && std::equal(kMagic, kMagic + sizeof(kMagic), head.magic), path,
              " is not a file of states");
  GRAFT_CHECK(InvalidProgram, head.version == kVersion, path, ": version of the file must be ", kVersion, ", found ",
              head.version);
  const std::vector<StateInfo>& infos = impl_->loaded().states;
  GRAFT_CHECK(InvalidProgram, head.states == infos.size() && head.program == impl_->loaded().fingerprint, path,
              " holds ", head.states, " states of another program, not the ", infos.size(), " of ",
              impl_->loaded().source);
  const std::span<const std::byte> hashed = bytes.first(bytes.size() - sizeof(Digest));
  Digest digest{};
  std::memcpy(digest.data(), bytes.data() + hashed.size(), sizeof(digest));
  GRAFT_CHECK(InvalidProgram, digest == sha256(hashed), path, " is damaged: its length or checksum is wrong");
  const KvOptions& kv = impl_->options.kv;
  if (impl_->has_kv)
    GRAFT_CHECK(InvalidArgument, head.kv_rows == kv.rows && head.kv_type == static_cast<std::int64_t>(kv.type), path,
                " holds a cache of ", head.kv_rows, " rows of type ", head.kv_type, ", the session's has ", kv.rows,
                " rows of type ", static_cast<int>(kv.type));
  // Nothing is changed before all of it was checked.
  std::vector<std::int64_t> lengths, firsts, source_lengths;
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
  for (std::uint32_t i = 0; i < infos.size(); ++i) {
    const ir::State& info = infos[i].state;
    const TensorDesc desc = impl_->desc_of(i);
    std::byte* to = impl_->state(i);
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
        firsts = take_numbers(rows * info.reaches.size());
        for (std::size_t f = 0; f < firsts.size(); ++f) {
          const std::int64_t length = lengths[f / info.reaches.size()];
          GRAFT_CHECK(InvalidProgram, firsts[f] >= 0 && (length == 0 || firsts[f] <= length), path,
                      " is damaged: ", firsts[f], " is no first of ", length, " tokens");
        }
        break;
      case ir::StateKind::kv_source_length:
        source_lengths = take_numbers(rows);
        for (const std::int64_t length : source_lengths)
          GRAFT_CHECK(InvalidArgument, length >= 0 && length <= kv.encoder_length, path, " holds ", length,
                      " tokens of an encoder, the session's cache has room for ", kv.encoder_length);
        break;
      case ir::StateKind::kv_source:
      case ir::StateKind::kv: {
        const std::size_t slot = static_cast<std::size_t>(desc.shape[3]) * byte_size(desc.dtype);
        const std::optional<std::size_t> kind = impl_->kind_of(info);
        for (std::size_t r = 0; r < rows; ++r) {
          const std::int64_t length = info.kind == ir::StateKind::kv ? lengths[r] : source_lengths[r];
          const std::int64_t first = kind ? std::min(firsts[r * (firsts.size() / rows) + *kind], length) : 0;
          for (std::int64_t h = 0; h < desc.shape[1]; ++h) {
            const std::span<const std::byte> tokens = take(static_cast<std::size_t>(length - first) * slot);
            std::byte* row =
                to +
                static_cast<std::size_t>((static_cast<std::int64_t>(r) * desc.shape[1] + h) * desc.shape[2]) * slot;
            // A smaller ring keeps the last of them.
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
  if (!impl_->has_kv) return;
  std::ranges::copy(lengths, impl_->lengths().begin());
  std::ranges::copy(source_lengths, impl_->source_lengths().begin());
  for (std::size_t f = 0; f < firsts.size(); ++f) {
    const std::size_t kinds = firsts.size() / rows;
    const std::int64_t slots = impl_->slots_of(f % kinds), length = lengths[f / kinds];
    impl_->firsts()[f] = length == 0 ? 0 : std::max(firsts[f], slots > 0 ? length - slots : 0);
  }
}

}  // namespace graft
