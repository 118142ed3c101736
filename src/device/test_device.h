#pragma once

// Test only: a ggml RPC server in its own process, as device "rpc0".

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ggml-backend.h"

namespace graft::test {

class RpcServer {
 public:
  RpcServer() {
    int out[2];
    if (pipe(out) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      close(out[0]);
      close(out[1]);
      execl(GRAFT_RPC_SERVER, GRAFT_RPC_SERVER, nullptr);
      _exit(127);
    }
    close(out[1]);
    // Nobody reads its later output: 64 KiB fit the pipe.
    std::string line;
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    out_ = out[0];
    if (line.rfind("port ", 0) == 0) port_ = std::atoi(line.c_str() + 5);
    for (int i = 0; port_ > 0 && i < 1000 && !listens(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ~RpcServer() { stop(); }
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  void stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(out_);
    pid_ = -1;
  }
  int port() const { return port_; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  bool listens() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool ok = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    ::close(socket);
    return ok;
  }

  pid_t pid_ = -1;
  int out_ = -1;
  int port_ = 0;
};

// Starts the server once for all tests of the process and names it in GRAFT_RPC. It outlives them: ggml ends the
// process if a server that it talks to dies.
inline const RpcServer& rpc_server() {
  static const RpcServer* const server = [] {
    auto* started = new RpcServer;
    setenv("GRAFT_RPC", started->endpoint().c_str(), 1);
    return started;
  }();
  return *server;
}

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ggml_backend_reg_by_name("RPC")) GTEST_SKIP() << "this ggml was built without RPC";
    ASSERT_GT(rpc_server().port(), 0);
  }
};

}  // namespace graft::test
