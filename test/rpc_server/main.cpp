// A ggml RPC server on the loopback interface with this machine's CPU as its device: for tests of programs on a device
// with its own memory. Prints "port N" and serves until it is killed or its parent dies.
#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "ggml-backend.h"

namespace {

// A port that was free a moment ago; ggml's server takes no port 0.
int free_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = sizeof(address);
  if (socket < 0 || ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return 0;
  ::close(socket);
  return ntohs(address.sin_port);
}

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  using StartServer = void (*)(const char*, const char*, std::size_t, std::size_t, ggml_backend_dev_t*);
  ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  const int port = free_port();
  if (!rpc || !cpu || port == 0) {
    std::printf("port 0\n");
    return 1;
  }
  const auto start =
      reinterpret_cast<StartServer>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_start_server"));
  std::printf("port %d\n", port);
  std::fflush(stdout);
  start(("127.0.0.1:" + std::to_string(port)).c_str(), nullptr, 1, 1, &cpu);
  return 1;
}
