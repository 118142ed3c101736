#include "stage/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace graft::stage {
namespace {

constexpr int kHostMilliseconds = 2000;  // that a host may be silent although it owes an answer to TCP
constexpr int kBacklog = 64;
constexpr auto kCancelCheck = std::chrono::milliseconds(20);
// How long a thread stays awake for bytes, giving way to others: a core that sleeps is back 20 to 40 us late.
constexpr auto kAwake = std::chrono::microseconds(500);

std::string reason(int error) { return std::strerror(error); }

void set(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// A host that is gone says nothing: TCP asks it every second, and gives up after two.
void watch(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kHostMilliseconds);
}

sockaddr_un unix_address(const Address& address) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  GRAFT_CHECK(InvalidArgument, address.path.size() < sizeof(out.sun_path), "'", address.str(), "': a path of at most ",
              sizeof(out.sun_path) - 1, " bytes was expected, found ", address.path.size());
  std::ranges::copy(address.path, out.sun_path);
  return out;
}

using Resolved = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Resolved resolve(const Address& address, bool listening) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (code != 0) throw Unavailable(str("'", address.str(), "': ", ::gai_strerror(code)));
  return {found, ::freeaddrinfo};
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

// Polls until something happens. False: the time is over.
bool poll_until(std::span<pollfd> fds, const Wait& wait) {
  while (true) {
    if (wait.cancel && wait.cancel->cancelled()) throw Cancelled("the run was cancelled");
    int left = wait.until == Clock::time_point::max() ? -1 : milliseconds_until(wait.until);
    const bool slice = wait.cancel && (left < 0 || left > kCancelCheck.count());
    if (slice) left = static_cast<int>(kCancelCheck.count());
    const int ready = uninterrupted([&] { return ::poll(fds.data(), fds.size(), left); });
    if (ready > 0) return true;
    GRAFT_CHECK(SystemError, ready == 0, "cannot wait for a connection: ", reason(errno));
    if (!slice) return false;
  }
}

Descriptor connected(int family, const sockaddr* address, socklen_t size, const std::string& name, const Wait& wait) {
  Descriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  GRAFT_CHECK(SystemError, fd, "cannot make a socket: ", reason(errno));
  int error = 0;
  if (::connect(fd.get(), address, size) != 0) error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    pollfd one{fd.get(), POLLOUT, 0};
    if (!poll_until({&one, 1}, wait)) throw Unavailable(str("'", name, "' does not answer"));
    socklen_t length = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) throw Unavailable(str("cannot connect to '", name, "': ", reason(error)));
  return fd;
}

std::string name_of(const sockaddr_storage& peer, socklen_t size) {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&peer), size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "?";
  return Address{host, port, {}}.str();
}

}  // namespace

std::string Address::str() const {
  if (is_unix()) return "unix:" + path;
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

Address Address::parse(const std::string& text) {
  if (text.starts_with("unix:") && text.size() > 5) return {{}, {}, text.substr(5)};
  const std::size_t colon = text.rfind(':');
  Address out;
  if (colon != std::string::npos) {
    out.host = text.substr(0, colon);
    out.port = text.substr(colon + 1);
    if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
      out.host = out.host.substr(1, out.host.size() - 2);
    else if (out.host.find(':') != std::string::npos)
      out.host.clear();
  }
  const bool number = !out.port.empty() && out.port.size() <= 5 &&
                      std::ranges::all_of(out.port, [](char c) { return c >= '0' && c <= '9'; }) &&
                      std::stoi(out.port) <= 65535;
  GRAFT_CHECK(InvalidArgument, number && !out.host.empty(), "'", text,
              "' is no address of a stage: HOST:PORT, [IPV6]:PORT or unix:PATH was expected");
  return out;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Socket::Socket(Descriptor fd, std::string peer, bool local)
    : fd_(std::move(fd)), peer_(std::move(peer)), local_(local) {}

void Socket::lost(int error) const {
  if (error == 0) throw Unavailable(str("'", peer_, "' closed the connection"));
  throw Unavailable(str("the connection to '", peer_, "' is lost: ", reason(error)));
}

void Socket::await(short events, const Wait& wait) const {
  pollfd one{fd_.get(), events, 0};
  for (const auto asleep = Clock::now() + kAwake; Clock::now() < asleep; ::sched_yield())
    if (uninterrupted([&] { return ::poll(&one, 1, 0); }) != 0) break;  // an error: poll_until() finds it again
  if (!poll_until({&one, 1}, wait)) throw Cancelled(str("'", peer_, "' has not answered in time"));
}

void Socket::failed(short events, const Wait& wait) const {
  if (errno != EAGAIN && errno != EWOULDBLOCK) lost(errno);
  await(events, wait);
}

void Socket::write(std::span<const std::byte> bytes, const Wait& wait) {
  while (!bytes.empty()) {
    const ssize_t n = uninterrupted([&] { return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (n < 0)
      failed(POLLOUT, wait);
    else
      bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void Socket::read(std::span<std::byte> bytes, const Wait& wait) {
  while (!bytes.empty()) {
    const ssize_t n = uninterrupted([&] { return ::recv(fd_.get(), bytes.data(), bytes.size(), 0); });
    if (n == 0) lost(0);
    if (n < 0)
      failed(POLLIN, wait);
    else
      bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void Socket::write_with(std::span<const std::byte> bytes, const Descriptor& passed, const Wait& wait) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = passed.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ssize_t n = -1;
  while ((n = uninterrupted([&] { return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL); })) < 0) failed(POLLOUT, wait);
  write(bytes.subspan(static_cast<std::size_t>(n)), wait);
}

Descriptor Socket::read_with(std::span<std::byte> bytes, const Wait& wait) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = -1;
  while ((n = uninterrupted([&] { return ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC); })) < 0)
    failed(POLLIN, wait);
  if (n == 0) lost(0);
  Descriptor passed;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    passed = Descriptor(fd);
  }
  read(bytes.subspan(static_cast<std::size_t>(n)), wait);
  return passed;
}

void Socket::await_bytes(const Wait& wait) const { await(POLLIN, wait); }

void Socket::shut_down() noexcept { ::shutdown(fd_.get(), SHUT_RDWR); }

Socket connect_to(const Address& address, const Wait& wait) {
  if (address.is_unix()) {
    const sockaddr_un to = unix_address(address);
    return {connected(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof(to), address.str(), wait), address.str(),
            true};
  }
  const Resolved found = resolve(address, false);
  for (const addrinfo* one = found.get();; one = one->ai_next) {
    try {
      Descriptor fd = connected(one->ai_family, one->ai_addr, one->ai_addrlen, address.str(), wait);
      watch(fd.get());
      return {std::move(fd), address.str(), false};
    } catch (const Unavailable&) {
      if (one->ai_next == nullptr) throw;
    }
  }
}

Listener::Listener(const Address& address) : address_(address) {
  const auto check = [&](bool good) {
    GRAFT_CHECK(SystemError, good, "cannot listen at '", address.str(), "': ", reason(errno));
  };
  const auto open = [&](int family) {
    fd_ = Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    check(static_cast<bool>(fd_));
  };
  if (address.is_unix()) {
    const sockaddr_un at = unix_address(address);
    open(AF_UNIX);
    bool taken = true;
    try {
      connect_to(address, Wait::seconds(1));
    } catch (const Unavailable&) {
      taken = false;
    }
    GRAFT_CHECK(SystemError, !taken, "cannot listen at '", address.str(), "': another process does");
    struct stat there {};
    if (::lstat(address.path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) ::unlink(address.path.c_str());
    check(::fchmod(fd_.get(), 0600) == 0);  // before it has a name: nobody else may connect
    check(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
    check(::chmod(address.path.c_str(), 0600) == 0);
  } else {
    const Resolved found = resolve(address, true);
    open(found->ai_family);
    set(fd_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    check(::bind(fd_.get(), found->ai_addr, found->ai_addrlen) == 0);
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    check(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
    const auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                  : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
    address_.port = std::to_string(ntohs(port));
  }
  check(::listen(fd_.get(), kBacklog) == 0);
}

Listener::~Listener() {
  if (address_.is_unix()) ::unlink(address_.path.c_str());
}

Socket Listener::accept(int stop) {
  while (true) {
    pollfd both[] = {{fd_.get(), POLLIN, 0}, {stop, POLLIN, 0}};
    poll_until(both, {});
    if (both[1].revents != 0) throw Cancelled("the listener was stopped");
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    Descriptor fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      // Whoever was there has gone; without descriptors others must end first.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        pollfd only{stop, POLLIN, 0};
        poll_until({&only, 1}, Wait::seconds(0.1));
      }
      continue;
    }
    if (address_.is_unix()) return {std::move(fd), address_.str(), true};
    watch(fd.get());
    return {std::move(fd), name_of(peer, size), false};
  }
}

}  // namespace graft::stage
