#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/http/message.h"

// HTTP/1.1 on one thread: connections that are idle or slow cost memory, never a thread.
namespace graft::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: a free one
  std::size_t max_header_bytes = 16 << 10;
  std::size_t max_body_bytes = 32 << 20;
  std::size_t max_buffered_bytes = 512 << 20;  // of all bodies that are being read or answered: beyond, 503
  std::size_t max_connections = 4096;          // beyond, the one that is idle longest is closed
  // Seconds that a client may take: to send a header, to send a body, to take what is sent to it, and between requests.
  double header_seconds = 15, body_seconds = 120, send_seconds = 30, idle_seconds = 75;
};

// The answer to one request. Functions may be called from any thread; what is sent after the client has gone, or after
// the end, is dropped. One that is dropped before its end is answered with status 500, or cut off.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The whole answer, and its end.
  virtual void respond(Response response) = 0;
  // An answer in parts: the head (its body is not used), the parts, the end.
  virtual void begin(Response head) = 0;
  virtual void send(std::string part) = 0;
  virtual void end() = 0;
  // Called once, on the server's thread, when the client goes before the end; at once when it has gone.
  virtual void on_gone(std::function<void()> call) = 0;
};

class HttpServer {
 public:
  // Called on the server's thread: it must hand over what takes time.
  using Handler = std::function<void(Request request, std::shared_ptr<Exchange> exchange)>;
  // The body of an answer to a request that is no HTTP or too large, by status and message.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  // Binds and listens; connections are accepted once run() is called. Throws InvalidArgument for a host that is no
  // address, SystemError when the address is in use or may not be used.
  HttpServer(const HttpOptions& options, Handler handler, ErrorBody error_body);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  // Serves until stop().
  void run();
  // The rest may be called from any thread. Calls a function on the server's thread.
  void post(std::function<void()> call);
  void post_after(double seconds, std::function<void()> call);
  // Calls this on the server's thread for each SIGTERM and SIGINT of the process, from now on.
  void on_signal(std::function<void()> call);
  // No new connections; those between requests are closed, the others after their answer.
  void drain();
  void stop();
  std::size_t connections() const;

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace graft::serve
