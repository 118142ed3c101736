#include "stage/channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace graft::stage {
namespace {

constexpr std::uint64_t kRoom = kProven.payload;     // of the shared memory: pages that nobody touches take none
constexpr std::size_t kRooms = 2;                    // of a side, for its payloads in turn
constexpr std::uint64_t kBoth = 2 * kRooms * kRoom;  // sides
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

template <typename Number>
void put(std::span<std::byte> out, std::size_t at, Number number) {
  std::memcpy(out.data() + at, &number, sizeof(number));
}

template <typename Number>
Number get(std::span<const std::byte> bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

}  // namespace

void Header::write(std::span<std::byte, kBytes> out) const {
  put(out, 0, kMagic);
  put(out, 4, kVersion);
  put(out, 6, static_cast<std::uint16_t>(kind));
  put(out, 8, meta);
  put(out, 12, std::uint32_t{0});
  put(out, 16, payload);
}

Header Header::read(std::span<const std::byte, kBytes> bytes, const Limits& limits) {
  GRAFT_CHECK(Refused, get<std::uint32_t>(bytes, 0) == kMagic, "the bytes are no message of a stage");
  const auto version = get<std::uint16_t>(bytes, 4);
  GRAFT_CHECK(Refused, version == kVersion, "a message of version ", kVersion, " was expected, found ", version);
  const auto kind = get<std::uint16_t>(bytes, 6);
  GRAFT_CHECK(Refused,
              kind >= static_cast<std::uint16_t>(Kind::challenge) && kind <= static_cast<std::uint16_t>(Kind::failed) &&
                  get<std::uint32_t>(bytes, 12) == 0,
              "there is no message of kind ", kind);
  const Header out{static_cast<Kind>(kind), get<std::uint32_t>(bytes, 8), get<std::uint64_t>(bytes, 16)};
  GRAFT_CHECK(Refused, out.meta <= limits.meta && out.payload <= limits.payload, "a message of at most ", limits.meta,
              " and ", limits.payload, " bytes was expected, found ", out.meta, " and ", out.payload);
  return out;
}

Channel::~Channel() {
  if (shared_) ::munmap(shared_, kBoth);
}

// More than asked for, so that sizes that alternate take no new memory.
std::span<std::byte> Channel::room(AlignedMemory& memory, std::uint64_t bytes) {
  if (memory.size() < bytes) memory = AlignedMemory(bytes + bytes / 4);
  return {memory.data(), bytes};
}

std::span<std::byte> Channel::outgoing(std::uint64_t bytes) {
  GRAFT_CHECK(InvalidArgument, bytes <= kRoom, "a message to a stage has at most ", kRoom, " bytes, got ", bytes,
              ": smaller chunks of a prompt or fewer rows have fewer");
  if (shared_) return {shared_out_ + sent_ % kRooms * kRoom, bytes};
  return room(out_memory_, bytes);
}

void Channel::send(Kind kind, std::span<const std::byte> meta, std::uint64_t payload, const Wait& wait) {
  std::vector<std::byte> head(Header::kBytes + meta.size());
  Header{kind, static_cast<std::uint32_t>(meta.size()), payload}.write(std::span(head).first<Header::kBytes>());
  if (!meta.empty()) std::memcpy(head.data() + Header::kBytes, meta.data(), meta.size());
  socket_.write(head, wait);
  if (payload == 0) return;
  if (!shared_) socket_.write({out_memory_.data(), payload}, wait);
  ++sent_;
}

Channel::Message Channel::receive(const Limits& limits, const Wait& wait) {
  std::array<std::byte, Header::kBytes> head{};
  socket_.read(head, wait);
  const Header header = Header::read(head, limits);
  Message out{header.kind, std::vector<std::byte>(header.meta), {}};
  socket_.read(out.meta, wait);
  if (header.payload == 0) return out;
  if (shared_) {
    out.payload = {shared_in_ + received_ % kRooms * kRoom, header.payload};
  } else {
    out.payload = room(in_memory_, header.payload);
    socket_.read(out.payload, wait);
  }
  ++received_;
  return out;
}

void Channel::map(const Descriptor& memory, bool first_half_is_own) {
  struct stat about {};
  // Sealed: memory that the other side could cut off would end this process.
  const bool good = memory && ::fstat(memory.get(), &about) == 0 && about.st_size == static_cast<off_t>(kBoth) &&
                    (::fcntl(memory.get(), F_GET_SEALS) & kSeals) == kSeals;
  GRAFT_CHECK(Refused, good, "shared memory of ", kBoth, " bytes whose size is sealed was expected");
  void* const at = ::mmap(nullptr, kBoth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  GRAFT_CHECK(SystemError, at != MAP_FAILED, "cannot map shared memory: ", std::strerror(errno));
  shared_ = static_cast<std::byte*>(at);
  shared_out_ = shared_ + (first_half_is_own ? 0 : kBoth / 2);
  shared_in_ = shared_ + (first_half_is_own ? kBoth / 2 : 0);
}

void Channel::share(Kind kind, std::span<const std::byte> meta, const Wait& wait) {
  const Descriptor memory(::memfd_create("graft-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  GRAFT_CHECK(SystemError,
              memory && ::ftruncate(memory.get(), static_cast<off_t>(kBoth)) == 0 &&
                  ::fcntl(memory.get(), F_ADD_SEALS, kSeals) == 0,
              "cannot make shared memory: ", std::strerror(errno));
  std::vector<std::byte> head(Header::kBytes + meta.size());
  Header{kind, static_cast<std::uint32_t>(meta.size()), 0}.write(std::span(head).first<Header::kBytes>());
  if (!meta.empty()) std::memcpy(head.data() + Header::kBytes, meta.data(), meta.size());
  socket_.write_with(head, memory, wait);
  map(memory, true);
}

Channel::Message Channel::receive_shared(const Limits& limits, const Wait& wait) {
  std::array<std::byte, Header::kBytes> head{};
  const Descriptor memory = socket_.read_with(head, wait);
  const Header header = Header::read(head, limits);
  Message out{header.kind, std::vector<std::byte>(header.meta), {}};
  socket_.read(out.meta, wait);
  if (memory) map(memory, false);  // without it the other side refuses
  return out;
}

}  // namespace graft::stage
