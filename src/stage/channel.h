#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "stage/socket.h"

namespace graft::stage {

enum class Kind : std::uint16_t {
  challenge = 1,  // from the stage: a nonce
  proof,          // from the driver: a nonce, and that it knows the secret
  welcome,        // from the stage: that it knows it, too
  open,           // from the driver: which stage it wants, and the sizes of the cache
  prepare,        // from the driver: plan for these sizes
  run,            // from the driver: compute
  working,        // from the stage, meanwhile: that it is at work
  done,           // from the stage: the result of `open`, `prepare` or `run`
  failed,         // from the stage: an error, or why it refuses
};

// What a message may have: bytes beyond are refused before memory is taken for them.
struct Limits {
  std::uint32_t meta = 0;
  std::uint64_t payload = 0;
};
inline constexpr Limits kBeforeProof{256, 0};  // of whom nothing is known
inline constexpr Limits kProven{std::uint32_t{1} << 26, std::uint64_t{1} << 30};

// The beginning of each message.
struct Header {
  static constexpr std::size_t kBytes = 24;
  static constexpr std::uint32_t kMagic = 0x53545247;  // "GRTS"
  static constexpr std::uint16_t kVersion = 3;

  Kind kind = Kind::failed;
  std::uint32_t meta = 0;
  std::uint64_t payload = 0;

  void write(std::span<std::byte, kBytes> out) const;
  // Throws Refused for what is no header, has another version, or says more bytes than the limits.
  static Header read(std::span<const std::byte, kBytes> bytes, const Limits& limits);
};

// The other side broke the protocol, or does not know the secret.
class GRAFT_API Refused : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Messages of a header, numbers about the tensors (`meta`) and their bytes (`payload`). Those of a local connection lie
// in memory that both processes map; only header and meta go through the socket. There each side has two rooms, for its
// messages with a payload in turn: after share() or receive_shared() it may fill one while the other side still reads
// the one before, and sends it once that was answered.
class Channel {
 public:
  explicit Channel(Socket socket) : socket_(std::move(socket)) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Memory, aligned to 64 bytes, for the payload of the next message. Throws InvalidArgument for more than the limit.
  std::span<std::byte> outgoing(std::uint64_t bytes);
  // Sends the first `payload` bytes of outgoing().
  void send(Kind kind, std::span<const std::byte> meta, std::uint64_t payload, const Wait& wait);

  struct Message {
    Kind kind = Kind::failed;
    std::vector<std::byte> meta;
    std::span<std::byte> payload;  // aligned to 64 bytes; until the next message is received
  };
  Message receive(const Limits& limits, const Wait& wait);

  // `send` with memory for the payloads of a local connection; receive() of such a message.
  void share(Kind kind, std::span<const std::byte> meta, const Wait& wait);
  Message receive_shared(const Limits& limits, const Wait& wait);

  Socket& socket() { return socket_; }

 private:
  void map(const Descriptor& memory, bool first_half_is_own);
  static std::span<std::byte> room(AlignedMemory& memory, std::uint64_t bytes);

  Socket socket_;
  AlignedMemory in_memory_, out_memory_;  // of a connection that is not local
  std::byte *shared_ = nullptr, *shared_in_ = nullptr, *shared_out_ = nullptr;
  std::size_t sent_ = 0, received_ = 0;  // payloads
};

}  // namespace graft::stage
