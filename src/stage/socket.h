#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "graft/graft.h"

namespace graft::stage {

// Where a stage listens: "HOST:PORT", "[IPV6]:PORT", or "unix:PATH" for processes of one host.
struct Address {
  std::string host, port;  // of TCP
  std::string path;        // of a Unix socket; empty: TCP

  bool is_unix() const { return !path.empty(); }
  std::string str() const;
  // Throws InvalidArgument for anything else.
  static Address parse(const std::string& text);
};

// When a call gives up, and who may end it before.
struct Wait {
  Clock::time_point until = Clock::time_point::max();
  const CancelToken* cancel = nullptr;

  static Wait seconds(double seconds) { return {Clock::now() + duration_of(seconds), nullptr}; }
};

// A descriptor, closed with it.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// A connection, for one thread at a time, but for shut_down(). Every call throws Unavailable when the other side has
// closed it, or its host does not answer for two seconds; and Cancelled as `wait` says.
class Socket {
 public:
  // `peer`: for messages.
  Socket(Descriptor fd, std::string peer, bool local);

  void write(std::span<const std::byte> bytes, const Wait& wait);
  void read(std::span<std::byte> bytes, const Wait& wait);
  // Until there are some to read.
  void await_bytes(const Wait& wait) const;
  // Bytes, and a descriptor with the first of them. Of local sockets.
  void write_with(std::span<const std::byte> bytes, const Descriptor& passed, const Wait& wait);
  Descriptor read_with(std::span<std::byte> bytes, const Wait& wait);
  // Ends what another thread waits for.
  void shut_down() noexcept;

  const std::string& peer() const { return peer_; }
  bool local() const { return local_; }

 private:
  void await(short events, const Wait& wait) const;
  // Of a call that failed with errno, or was told that the connection has ended: waits where it would block.
  void failed(short events, const Wait& wait) const;
  [[noreturn]] void lost(int error) const;

  Descriptor fd_;
  std::string peer_;
  bool local_;
};

// Throws Unavailable when nobody listens there.
Socket connect_to(const Address& address, const Wait& wait);

// Accepts connections at an address.
class Listener {
 public:
  // Replaces a Unix socket that nobody listens at; only its owner can connect to it. Throws SystemError when the
  // address cannot be had, InvalidArgument for a host that is not known.
  explicit Listener(const Address& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // With the port that was chosen where 0 was asked for.
  const Address& address() const { return address_; }
  // The next connection. Throws Cancelled when `stop` becomes readable.
  Socket accept(int stop);

 private:
  Address address_;
  Descriptor fd_;
};

}  // namespace graft::stage
