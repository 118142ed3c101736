#include "serve/http/server.h"

// Boost 1.74 needs it before its own headers.
#include <utility>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <csignal>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <unordered_set>

#include "base/check.h"
#include "serve/http/target.h"

namespace graft::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr std::size_t kReadAtOnce = 8 << 10;
constexpr std::size_t kReadAhead = 64 << 10;  // of requests behind the one that is being answered
constexpr std::size_t kDiscard = 4 << 20;  // bytes of a refused body that are read, so that the client sees the answer
constexpr double kDiscardSeconds = 2;
constexpr double kAcceptAgainSeconds = 0.1;  // when the process has no descriptor left
constexpr int kPostTries = 10;               // a millisecond apart, when there is no memory

std::string head_of(const Response& response, bool keep_alive, std::optional<std::size_t> length, bool chunked) {
  std::string out = str("HTTP/1.1 ", response.status, ' ');
  out += http::obsolete_reason(static_cast<http::status>(response.status)).to_string();
  out += "\r\nServer: graft\r\n";
  if (!response.content_type.empty()) out += "Content-Type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) out += name + ": " + value + "\r\n";
  if (length) out += str("Content-Length: ", *length, "\r\n");
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  out += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

std::string chunk_of(const std::string& part) {
  std::ostringstream out;
  out << std::hex << part.size() << "\r\n" << part << "\r\n";
  return std::move(out).str();
}

class Connection;

// The connection may end first: then nothing is sent.
class ConnectionExchange : public Exchange {
 public:
  ConnectionExchange(asio::io_context& io, std::weak_ptr<Connection> connection)
      : io_(io), connection_(std::move(connection)) {}
  ~ConnectionExchange() override;
  void respond(Response response) override;
  void begin(Response head) override;
  void send(std::string part) override;
  void end() override;
  void on_gone(std::function<void()> call) override;
  void client_has_gone();

 private:
  template <typename Call>
  void post(Call call);

  asio::io_context& io_;
  std::weak_ptr<Connection> connection_;
  std::mutex mutex_;
  bool ended_ = false, gone_ = false;
  std::function<void()> call_;
};

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(const HttpOptions& http_options, Handler on_request, ErrorBody body)
      : options(http_options),
        handler(std::move(on_request)),
        error_body(std::move(body)),
        acceptor_(io),
        signals_(io) {
    error_code error;
    const asio::ip::address address = asio::ip::make_address(options.host, error);
    GRAFT_CHECK(InvalidArgument, !error, "the host must be an address such as 127.0.0.1, 0.0.0.0 or ::1, got '",
                options.host, "'");
    const tcp::endpoint endpoint(address, options.port);
    const auto check = [&](const char* what) {
      GRAFT_CHECK(SystemError, !error, "cannot ", what, ' ', options.host, ':', options.port, ": ", error.message());
    };
    acceptor_.open(endpoint.protocol(), error);
    check("open");
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    check("open");
    acceptor_.bind(endpoint, error);
    check("bind");
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    check("listen on");
    port_ = acceptor_.local_endpoint().port();
  }

  std::uint16_t port() const { return port_; }
  void run();
  void accept();
  void drain();
  void stop();
  void wait_for_signal(std::function<void()> call);
  void add_signals() {
    error_code error;
    for (const int signal : {SIGTERM, SIGINT}) {
      signals_.add(signal, error);
      GRAFT_CHECK(SystemError, !error, "cannot wait for signals: ", error.message());
    }
  }

  const HttpOptions options;
  const Handler handler;
  const ErrorBody error_body;
  asio::io_context io{1};
  std::unordered_set<std::shared_ptr<Connection>> connections;  // those that are open
  std::atomic<std::size_t> count{0};
  std::size_t buffered = 0;  // bytes of bodies
  bool draining = false;

 private:
  void take(tcp::socket socket);
  bool make_room();

  bool accepting_ = false;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  std::uint16_t port_ = 0;
};

namespace {

// One client. Everything runs on the server's thread. One read is always pending, so that a client that goes is noticed
// at once, unless it has sent further requests without waiting for the answer.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, tcp::socket socket)
      : server_(std::move(server)), socket_(std::move(socket)), timer_(server_->io) {
    ++server_->count;
  }
  ~Connection() {
    tell_gone();
    hold(0);
    --server_->count;
  }

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    guarded([&] {
      wait_for_request();
      read();
    });
  }

  // An exception, for want of memory mostly, ends this connection and no other.
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      close();
    }
  }

  bool idle() const { return state_ == State::idle && read_.empty(); }
  std::chrono::steady_clock::time_point since() const { return since_; }

  void close() {
    if (state_ == State::closed) return;
    state_ = State::closed;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    tell_gone();
    server_->connections.erase(shared_from_this());
  }

  // --- of the exchange ---

  void respond(Response response) {
    if (state_ != State::answering || begun_) return;
    const bool body = status_has_body(response.status);
    queue(head_of(response, keeps_alive(), body ? std::optional(response.body.size()) : std::nullopt, false));
    if (body && !head_only_) queue(std::move(response.body));
    finish();
  }

  void begin(const Response& head) {
    if (state_ != State::answering || begun_) return;
    begun_ = true;
    if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the answer
    queue(head_of(head, keeps_alive(), std::nullopt, chunked_));
  }

  void send(std::string part) {
    if (state_ != State::answering || !begun_ || head_only_ || part.empty()) return;
    queue(chunked_ ? chunk_of(part) : std::move(part));
  }

  void end() {
    if (state_ != State::answering || !begun_) return;
    if (chunked_ && !head_only_) queue("0\r\n\r\n");
    finish();
  }

  void abandoned() {
    if (state_ != State::answering) return;
    if (begun_) return close();
    keep_alive_ = false;
    respond({500, server_->error_body(500, "the request was not answered")});
  }

  void drain() {
    if (idle()) close();
  }

 private:
  enum class State { idle, reading, answering, discarding, closed };

  static bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }
  void tell_gone() {
    try {
      if (const auto exchange = std::exchange(exchange_, {}).lock()) exchange->client_has_gone();
    } catch (...) {  // then its work goes on for nobody
    }
  }
  bool keeps_alive() const { return keep_alive_ && !server_->draining; }

  // How much of the request is in memory.
  void hold(std::size_t bytes) {
    server_->buffered += bytes;
    server_->buffered -= std::exchange(held_, bytes);
  }

  void set_timer(double seconds) {
    timer_.expires_after(duration_of(seconds));
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self && self->timer_.expiry() <= std::chrono::steady_clock::now())
        self->guarded([&] { self->timed_out(); });
    });
  }

  void timed_out() {
    if (state_ == State::reading && !header_done_) return refuse(408, "the header of the request took too long");
    if (state_ == State::reading) return refuse(408, "the body of the request took too long");
    close();
  }

  void wait_for_request() {
    state_ = State::idle;
    since_ = std::chrono::steady_clock::now();
    begun_ = header_done_ = false;
    hold(0);
    exchange_.reset();
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_->options.max_header_bytes));
    parser_->body_limit(server_->options.max_body_bytes);
    parser_->eager(true);
    set_timer(server_->options.idle_seconds);
  }

  void read() {
    if (state_ == State::closed || reading_) return;
    if (state_ == State::answering && read_.size() >= kReadAhead) return;  // on with it after the answer
    reading_ = true;
    socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](error_code error, std::size_t n) {
      self->reading_ = false;
      if (error || self->state_ == State::closed) return self->close();
      self->guarded([&] {
        self->read_.append(self->chunk_.data(), n);
        self->take();
        self->read();
      });
    });
  }

  // What has been read.
  void take() {
    if (state_ == State::discarding) {
      discarded_ += read_.size();
      read_.clear();
      if (discarded_ > kDiscard) close();
      return;
    }
    if (state_ == State::idle && !read_.empty()) {
      state_ = State::reading;
      set_timer(server_->options.header_seconds);
    }
    while (state_ == State::reading && !read_.empty()) {
      error_code error;
      const std::size_t used = parser_->put(asio::buffer(read_), error);
      read_.erase(0, used);
      if (header_done_) hold(held_ + used);
      if (error && error != http::error::need_more) return refuse_parsed(error);
      if (parser_->is_header_done() && !header_done_) header_complete();
      if (parser_->is_done()) return dispatch();
      if (server_->buffered > server_->options.max_buffered_bytes)
        return refuse(503, "the server holds as many requests as it can; try again later");
      if (error == http::error::need_more || used == 0) return;
    }
  }

  void header_complete() {
    header_done_ = true;
    start_ = Clock::now();
    set_timer(server_->options.body_seconds);
    const auto& request = parser_->get();
    if (!parser_->is_done() && http_lower(std::string(request[http::field::expect])) == "100-continue")
      queue("HTTP/1.1 100 Continue\r\n\r\n");
  }

  void refuse_parsed(error_code error) {
    if (error == http::error::header_limit)
      return refuse(431, str("the header of the request is larger than ", server_->options.max_header_bytes, " bytes"));
    if (error == http::error::body_limit)
      return refuse(413, str("the body of the request is larger than ", server_->options.max_body_bytes, " bytes"));
    refuse(400, "the request is no HTTP/1.1: " + error.message());
  }

  void refuse(int status, const std::string& message) {
    state_ = State::answering;
    begun_ = false;
    keep_alive_ = false;
    head_only_ = false;
    respond({status, server_->error_body(status, message)});
  }

  void dispatch() {
    timer_.cancel();
    auto message = parser_->release();
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    Request request;
    request.method = std::string(message.method_string());
    head_only_ = request.method == "HEAD";
    request.start = start_;
    for (const auto& field : message)
      request.headers.emplace_back(http_lower(std::string(field.name_string())), std::string(field.value()));
    request.body = std::move(message.body());
    state_ = State::answering;
    if (!split_target(std::string(message.target()), request.path, request.query))
      return refuse(400, "the path of the request is no path");
    const auto exchange = std::make_shared<ConnectionExchange>(server_->io, weak_from_this());
    exchange_ = exchange;
    server_->handler(std::move(request), exchange);
  }

  void queue(std::string bytes) {
    out_ += bytes;
    if (!writing_) write();
  }

  void write() {
    if (state_ == State::closed) return;
    if (out_.empty()) {
      if (finished_) answered();
      return;
    }
    writing_ = true;
    sent_ = std::exchange(out_, {});
    set_timer(server_->options.send_seconds);
    asio::async_write(socket_, asio::buffer(sent_), [self = shared_from_this()](error_code error, std::size_t) {
      self->writing_ = false;
      if (error) return self->close();
      self->guarded([&] {
        self->timer_.cancel();
        if (self->state_ == State::reading)
          self->set_timer(self->header_done_ ? self->server_->options.body_seconds
                                             : self->server_->options.header_seconds);
        self->write();
      });
    });
  }

  void finish() {
    finished_ = true;
    exchange_.reset();
    if (!writing_) write();
  }

  void answered() {
    finished_ = false;
    if (keeps_alive()) {
      wait_for_request();
      take();
      read();
      return;
    }
    // Closing a socket with unread bytes resets the connection, and the client may lose the answer.
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    state_ = State::discarding;
    read_.clear();
    set_timer(kDiscardSeconds);
    read();
  }

  std::shared_ptr<HttpServer::Impl> server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::array<char, kReadAtOnce> chunk_{};
  std::string read_;  // and not yet parsed
  std::optional<http::request_parser<http::string_body>> parser_;
  std::weak_ptr<ConnectionExchange> exchange_;  // the handler's: the connection only tells it that the client has gone
  State state_ = State::idle;
  std::chrono::steady_clock::time_point since_;
  Clock::time_point start_;
  std::string out_, sent_;
  std::size_t discarded_ = 0, held_ = 0;
  bool reading_ = false, writing_ = false, finished_ = false;
  bool header_done_ = false, begun_ = false, keep_alive_ = false, chunked_ = true, head_only_ = false;
};

// --- ConnectionExchange ---

template <typename Call>
void ConnectionExchange::post(Call call) {
  asio::post(io_, [connection = connection_, call = std::move(call)]() mutable {
    if (const auto alive = connection.lock()) alive->guarded([&] { call(*alive); });
  });
}

ConnectionExchange::~ConnectionExchange() {
  for (int tried = 0; !ended_ && tried < kPostTries; ++tried) {
    try {
      post([](Connection& connection) { connection.abandoned(); });
      return;
    } catch (...) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void ConnectionExchange::respond(Response response) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  post([response = std::move(response)](Connection& connection) mutable { connection.respond(std::move(response)); });
  ended_ = true;
}

void ConnectionExchange::begin(Response head) {
  const std::lock_guard lock(mutex_);
  if (!ended_) post([head = std::move(head)](Connection& connection) { connection.begin(head); });
}

void ConnectionExchange::send(std::string part) {
  const std::lock_guard lock(mutex_);
  if (!ended_) post([part = std::move(part)](Connection& connection) mutable { connection.send(std::move(part)); });
}

void ConnectionExchange::end() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  post([](Connection& connection) { connection.end(); });
  ended_ = true;
}

void ConnectionExchange::on_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      call_ = std::move(call);
      return;
    }
  }
  call();
}

void ConnectionExchange::client_has_gone() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(gone_, true)) return;
    call = std::exchange(call_, {});
  }
  if (call) call();
}

}  // namespace

// --- HttpServer ---

// Exceptions come here from what belongs to no connection, for want of memory mostly. The others are served on.
void HttpServer::Impl::run() {
  for (;;) {
    try {
      if (!accepting_) accept();
      io.run();
      return;
    } catch (...) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void HttpServer::Impl::accept() {
  if (!acceptor_.is_open()) return;
  acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    self->accepting_ = false;
    if (error == asio::error::operation_aborted || !self->acceptor_.is_open()) return;
    if (error) {  // no descriptors, or a client that has gone already
      const auto timer = std::make_shared<asio::steady_timer>(self->io, duration_of(kAcceptAgainSeconds));
      timer->async_wait([self, timer](error_code) {
        self->accepting_ = false;
        self->accept();
      });
      self->accepting_ = true;
      return;
    }
    self->take(std::move(socket));
    self->accept();
  });
  accepting_ = true;
}

void HttpServer::Impl::take(tcp::socket socket) {
  if (count >= options.max_connections && !make_room()) return;
  const auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
  connections.insert(connection);
  connection->start();
}

bool HttpServer::Impl::make_room() {
  std::shared_ptr<Connection> longest;
  for (const auto& connection : connections)
    if (connection->idle() && (!longest || connection->since() < longest->since())) longest = connection;
  if (!longest) return false;
  longest->close();
  return true;
}

void HttpServer::Impl::drain() {
  draining = true;
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& connection : std::vector(connections.begin(), connections.end())) connection->drain();
}

void HttpServer::Impl::stop() {
  error_code ignored;
  acceptor_.close(ignored);
  signals_.cancel(ignored);
  for (const auto& connection : std::vector(connections.begin(), connections.end())) connection->close();
  io.stop();
}

void HttpServer::Impl::wait_for_signal(std::function<void()> call) {
  signals_.async_wait([self = shared_from_this(), call = std::move(call)](error_code error, int) mutable {
    if (error) return;
    call();
    self->wait_for_signal(std::move(call));
  });
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, ErrorBody error_body)
    : impl_(std::make_shared<Impl>(options, std::move(handler), std::move(error_body))) {}

HttpServer::~HttpServer() {
  impl_->stop();
  // Handlers that were not called yet hold connections, and these the server.
  impl_->io.restart();
  impl_->io.poll();
}

std::uint16_t HttpServer::port() const { return impl_->port(); }

void HttpServer::run() { impl_->run(); }

void HttpServer::post(std::function<void()> call) { asio::post(impl_->io, std::move(call)); }

void HttpServer::post_after(double seconds, std::function<void()> call) {
  asio::post(impl_->io, [impl = impl_, seconds, call = std::move(call)]() mutable {
    const auto timer = std::make_shared<asio::steady_timer>(impl->io, duration_of(seconds));
    timer->async_wait([timer, call = std::move(call)](error_code error) {
      if (!error) call();
    });
  });
}

void HttpServer::on_signal(std::function<void()> call) {
  impl_->add_signals();
  impl_->wait_for_signal(std::move(call));
}

void HttpServer::drain() {
  post([impl = impl_] { impl->drain(); });
}
void HttpServer::stop() {
  post([impl = impl_] { impl->stop(); });
}
std::size_t HttpServer::connections() const { return impl_->count; }

}  // namespace graft::serve
