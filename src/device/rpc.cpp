#include "device/rpc.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"

namespace graft {
namespace {

using AddServer = ggml_backend_reg_t (*)(const char* endpoint);

// A ggml server serves one connection at a time and queues few: beyond these, a connection attempt would block for
// minutes.
constexpr int kConnectMilliseconds = 5000;

std::string why_not_connected(int socket, const addrinfo& address) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd waiting{socket, POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, kConnectMilliseconds);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return "no answer within 5 seconds: the server may be busy with another process";
  int error = 0;
  socklen_t size = sizeof(error);
  if (ready < 0 || ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? "" : std::strerror(error);
}

// Whether a server listens there; an error text otherwise. ggml resolves IPv4 addresses only.
std::string why_unreachable(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) return gai_strerror(error);
  std::string why = "no address";
  for (const addrinfo* a = found; a && !why.empty(); a = a->ai_next) {
    const int socket = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (socket < 0) {
      why = std::strerror(errno);
    } else {
      why = why_not_connected(socket, *a);
    }
    if (socket >= 0) ::close(socket);
  }
  freeaddrinfo(found);
  return why;
}

void check_endpoint(const std::string& endpoint) {
  const std::size_t colon = endpoint.find(':');
  int port = 0;
  bool fits = colon != std::string::npos && colon > 0;
  if (fits) {
    const char* const end = endpoint.data() + endpoint.size();
    const auto [rest, error] = std::from_chars(endpoint.data() + colon + 1, end, port);
    fits = error == std::errc() && rest == end && port > 0 && port < 65536;
  }
  GRAFT_CHECK(InvalidArgument, fits, "GRAFT_RPC must be HOST:PORT, several with commas between; got '", endpoint, "'");
  const std::string why = why_unreachable(endpoint.substr(0, colon), endpoint.substr(colon + 1));
  GRAFT_CHECK(SystemError, why.empty(), "no RPC server at ", endpoint, " (from GRAFT_RPC): ", why);
}

}  // namespace

std::vector<ggml_backend_dev_t> rpc_devices() {
  std::vector<ggml_backend_dev_t> out;
  const char* environment = std::getenv("GRAFT_RPC");
  if (!environment || !*environment) return out;
  ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  const auto add_server =
      rpc ? reinterpret_cast<AddServer>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"))
          : nullptr;
  GRAFT_CHECK(Unsupported, add_server, "GRAFT_RPC is set, but this ggml was built without RPC (GGML_RPC)");
  std::string_view rest = environment;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string endpoint(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    check_endpoint(endpoint);
    ggml_backend_reg_t server = add_server(endpoint.c_str());
    GRAFT_CHECK(SystemError, server, "the RPC server at ", endpoint, " has no devices");
    for (std::size_t i = 0; i < ggml_backend_reg_dev_count(server); ++i)
      out.push_back(ggml_backend_reg_dev_get(server, i));
  }
  return out;
}

}  // namespace graft
