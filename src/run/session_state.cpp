#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/sha256.h"
#include "run/session_impl.h"

// The states of a session: made when first needed, reset, copied to another session, saved and restored.
namespace graft {
namespace {

// A file of states: magic, version, fingerprint of the program, then the bytes of all states in the program's order,
// then the SHA-256 of everything before. Little-endian, as packages are.
constexpr char kMagic[8] = {'G', 'R', 'A', 'F', 'T', 'S', 'T', 'A'};
constexpr std::uint32_t kVersion = 1;
using Digest = std::array<std::uint8_t, 32>;

struct FileHead {
  char magic[8];
  std::uint32_t version;
  std::uint32_t states;
  Digest program;
};

}  // namespace

void Session::Impl::reset_state(std::uint32_t index) {
  const StateInfo& info = loaded().states[index];
  const std::size_t bytes = info.desc.byte_count();
  if (info.initial) {
    std::memcpy(states[index].data(), info.initial, bytes);
  } else {
    std::memset(states[index].data(), 0, bytes);
  }
}

std::byte* Session::Impl::state(std::uint32_t index) {
  if (states.size() <= index) states.resize(loaded().states.size());
  AlignedMemory& memory = states[index];
  if (!memory.data()) {
    const std::size_t bytes = loaded().states[index].desc.byte_count();
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
    views.push_back({infos[i].fqn, {impl_->state(i), infos[i].desc.dtype, infos[i].desc.shape}});
  return views;
}

void Session::reset() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  for (std::uint32_t i = 0; i < impl_->states.size(); ++i)
    if (impl_->states[i].data()) impl_->reset_state(i);
}

Session Session::fork() {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  SessionOptions options = impl_->options;
  options.threads = impl_->threads;
  Session copy(impl_->program, options);
  for (std::uint32_t i = 0; i < impl_->states.size(); ++i)
    if (impl_->states[i].data()) std::memcpy(copy.impl_->state(i), impl_->states[i].data(), impl_->states[i].size());
  return copy;
}

void Session::save(const std::string& path) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::vector<StateInfo>& infos = impl_->loaded().states;
  std::size_t total = sizeof(FileHead);
  for (const StateInfo& info : infos) total += info.desc.byte_count();
  std::vector<std::byte> bytes(total);
  FileHead head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.states = static_cast<std::uint32_t>(infos.size());
  head.program = impl_->loaded().fingerprint;
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::size_t at = sizeof(head);
  for (std::uint32_t i = 0; i < infos.size(); ++i) {
    const std::size_t size = infos[i].desc.byte_count();
    if (size > 0) std::memcpy(bytes.data() + at, impl_->state(i), size);
    at += size;
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
  const std::vector<StateInfo>& infos = impl_->loaded().states;
  std::size_t total = sizeof(FileHead);
  for (const StateInfo& info : infos) total += info.desc.byte_count();
  FileHead head{};
  file.read(reinterpret_cast<char*>(&head), sizeof(head));
  GRAFT_CHECK(InvalidProgram, file && std::equal(kMagic, kMagic + sizeof(kMagic), head.magic), path,
              " is not a file of states");
  GRAFT_CHECK(InvalidProgram, head.version == kVersion, path, ": version of the file must be ", kVersion, ", found ",
              head.version);
  GRAFT_CHECK(InvalidProgram, head.states == infos.size() && head.program == impl_->loaded().fingerprint, path,
              " holds ", head.states, " states of another program, not the ", infos.size(), " of ",
              impl_->loaded().source);
  std::vector<std::byte> bytes(total);
  std::memcpy(bytes.data(), &head, sizeof(head));
  file.read(reinterpret_cast<char*>(bytes.data()) + sizeof(head), static_cast<std::streamsize>(total - sizeof(head)));
  Digest digest{};
  file.read(reinterpret_cast<char*>(digest.data()), static_cast<std::streamsize>(digest.size()));
  GRAFT_CHECK(InvalidProgram, file && digest == sha256(bytes) && file.peek() == std::ifstream::traits_type::eof(), path,
              " is damaged: its length or checksum is wrong");
  // Nothing was changed before all of it was checked.
  std::size_t at = sizeof(head);
  for (std::uint32_t i = 0; i < infos.size(); ++i) {
    const std::size_t size = infos[i].desc.byte_count();
    if (size > 0) std::memcpy(impl_->state(i), bytes.data() + at, size);
    at += size;
  }
}

}  // namespace graft
