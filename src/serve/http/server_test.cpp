#include "serve/http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "graft/error.h"

// Over real sockets, byte by byte: what a client library would hide.
namespace graft::serve {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kPatienceMs = 10'000;

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~Client() {
    if (socket_ >= 0) ::close(socket_);
  }
  bool connected() const { return connected_; }
  Client& send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return *this;
  }
  // Reads until the text ends like this, or the server closes the connection.
  std::string read_until(std::string_view end) {
    std::string text;
    pollfd wait{socket_, POLLIN, 0};
    while (!text.ends_with(end) && ::poll(&wait, 1, kPatienceMs) > 0) {
      char part[4096];
      const auto n = ::recv(socket_, part, sizeof part, 0);
      if (n <= 0) return text;
      text.append(part, static_cast<std::size_t>(n));
    }
    return text;
  }
  std::string read_all() { return read_until(std::string_view("\0never\0", 7)); }

 private:
  int socket_;
  bool connected_ = false;
};

// Answers "/echo" with method, query and body; "/parts" in two parts; "/wait" when told to; "/drop" never.
class Running {
 public:
  explicit Running(HttpOptions options = {}) : server_(with_free_port(options), handler(), error_body) {
    thread_ = std::thread([this] { server_.run(); });
  }
  ~Running() {
    server_.stop();
    thread_.join();
  }
  Client client() { return Client(server_.port()); }
  HttpServer& server() { return server_; }

  std::promise<std::shared_ptr<Exchange>> waiting;
  std::promise<void> gone;

 private:
  static HttpOptions with_free_port(HttpOptions options) {
    options.port = 0;
    return options;
  }
  static std::string error_body(int status, const std::string& message) {
    return std::to_string(status) + " " + message;
  }
  HttpServer::Handler handler() {
    return [this](Request request, std::shared_ptr<Exchange> exchange) {
      if (request.path == "/parts") {
        exchange->begin({.content_type = "text/plain"});
        exchange->send("one ");
        exchange->send("");
        exchange->send("two");
        return exchange->end();
      }
      if (request.path == "/wait") {
        exchange->on_gone([this] { gone.set_value(); });
        return waiting.set_value(std::move(exchange));
      }
      if (request.path == "/drop") return;
      exchange->respond({.body = request.method + " " + request.query + " " + request.body,
                         .content_type = "text/plain",
                         .headers = {{"x-agent", std::string(request.header("user-agent"))}}});
    };
  }

  HttpServer server_;
  std::thread thread_;
};

TEST(HttpServer, AnswersOneRequestAfterTheOther) {
  Running running;
  Client client = running.client();
  for (int i = 0; i < 3; ++i) {
    const std::string text =
        client.send("POST /echo?q HTTP/1.1\r\nHost: x\r\nUser-Agent: me\r\nContent-Length: 5\r\n\r\nhello")
            .read_until("hello");
    EXPECT_THAT(text, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Length: 12\r\n"),
                            HasSubstr("\r\nx-agent: me\r\n"), HasSubstr("\r\nConnection: keep-alive\r\n")));
    EXPECT_TRUE(text.ends_with("\r\n\r\nPOST q hello"));
  }
  EXPECT_EQ(running.server().connections(), 1u);
}

TEST(HttpServer, TakesRequestsInPiecesAndInAdvance) {
  Running running;
  Client client = running.client();
  const std::string_view chunked =
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  for (const char byte : chunked) client.send({&byte, 1});
  EXPECT_TRUE(client.read_until("abcde").ends_with("POST  abcde"));
  client.send(
      "GET /echo?1 HTTP/1.1\r\n\r\nGET /parts HTTP/1.1\r\n\r\nGET /echo?3 HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string all = client.read_all();
  const auto first = all.find("GET 1 "), second = all.find("two"), third = all.find("GET 3 ");
  EXPECT_TRUE(first < second && second < third && third != std::string::npos) << all;
}

TEST(HttpServer, SendsPartsAsTheyCome) {
  Running running;
  EXPECT_THAT(
      running.client().send("GET /parts HTTP/1.1\r\n\r\n").read_until("0\r\n\r\n"),
      AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"), HasSubstr("\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")));
  // HTTP/1.0 knows no chunks: the end of the connection is the end.
  EXPECT_THAT(running.client().send("GET /parts HTTP/1.0\r\n\r\n").read_all(),
              AllOf(Not(HasSubstr("chunked")), HasSubstr("Connection: close\r\n\r\none two")));
  EXPECT_THAT(running.client().send("HEAD /parts HTTP/1.1\r\nConnection: close\r\n\r\n").read_all(),
              AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("one"))));
  const std::string head = running.client().send("HEAD /echo HTTP/1.1\r\nConnection: close\r\n\r\n").read_all();
  EXPECT_THAT(head, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

TEST(HttpServer, AsksForTheBodyWhereTheClientWaits) {
  Running running;
  Client client = running.client();
  client.send("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_TRUE(client.send("ok").read_until("ok").ends_with("POST  ok"));
}

TEST(HttpServer, RefusesWhatIsNoRequest) {
  Running running({.max_header_bytes = 1024, .max_body_bytes = 100});
  const std::pair<std::string, const char*> cases[] = {
      {"\x16\x03\x01 TLS\r\n\r\n", "400"},
      {"GET\r\n\r\n", "400"},
      {"GET /echo HTTP/9.9\r\n\r\n", "400"},
      {"GET /echo HTTP/1.1\r\nno colon\r\n\r\n", "400"},
      {"GET /% HTTP/1.1\r\n\r\n", "400"},
      {"GET http://elsewhere/ HTTP/1.1\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'x') + "\r\n0\r\n\r\n",
       "413"},
      {"GET /echo HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n", "431"},
      {"GET /" + std::string(5000, 'x'), "431"},
  };
  for (const auto& [request, status] : cases) {
    const std::string text = running.client().send(request).read_all();
    EXPECT_THAT(text, AllOf(StartsWith(std::string("HTTP/1.1 ") + status), HasSubstr("Connection: close"),
                            HasSubstr(std::string("\r\n\r\n") + status)))
        << request.substr(0, 60);
  }
  EXPECT_THAT(running.client().send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  "), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, BoundsTheBytesOfAllBodies) {
  Running running({.max_buffered_bytes = 1 << 20});
  Client holding = running.client();
  holding.send("POST /wait HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + std::string(1'000'000, 'x'));
  const auto exchange = running.waiting.get_future().get();
  const std::string large = "POST /echo HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + std::string(500'000, 'y');
  EXPECT_THAT(running.client().send(large).read_all(), StartsWith("HTTP/1.1 503"));
  exchange->respond({.body = "done"});
  EXPECT_TRUE(holding.read_until("done").ends_with("done"));
  EXPECT_THAT(running.client().send(large).read_until("yyyy"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, SaysAtOnceThatAClientHasGone) {
  Running running;
  auto client = std::make_unique<Client>(running.client());
  client->send("GET /wait HTTP/1.1\r\n\r\n");
  const auto exchange = running.waiting.get_future().get();
  client.reset();
  ASSERT_EQ(running.gone.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  exchange->begin({});
  exchange->send("nobody hears it");
  exchange->end();
  bool told = false;
  exchange->on_gone([&] { told = true; });
  EXPECT_TRUE(told);
}

TEST(HttpServer, AnAnswerThatIsNotGivenIsAnError) {
  Running running;
  EXPECT_THAT(running.client().send("GET /drop HTTP/1.1\r\n\r\n").read_all(), StartsWith("HTTP/1.1 500"));
}

TEST(HttpServer, SlowAndIdleClientsDoNotStopOthers) {
  Running running({.header_seconds = 60});
  std::vector<Client> others;
  for (int i = 0; i < 400; ++i) {
    others.push_back(running.client());
    if (i % 2 == 0) others.back().send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nx");  // and no more
  }
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(running.client().send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  "), StartsWith("HTTP/1.1 200"));
  EXPECT_GE(running.server().connections(), 400u);
}

TEST(HttpServer, ClosesTheLongestIdleConnectionForANewOne) {
  Running running({.max_connections = 3});
  std::vector<Client> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(running.client());
    EXPECT_THAT(idle.back().send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  "), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(running.client().send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  "), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(idle[0].read_all(), "");
  EXPECT_THAT(idle[2].send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  "), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, EndsRequestsThatTakeTooLong) {
  Running running({.header_seconds = 0.05, .body_seconds = 0.05, .idle_seconds = 0.05});
  EXPECT_THAT(running.client().send("GET /echo HTT").read_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(running.client().send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nx").read_all(),
              StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(running.client().read_all(), "");
}

TEST(HttpServer, DrainsAnswersThatHaveBegun) {
  Running running;
  Client idle = running.client(), busy = running.client();
  idle.send("GET /echo HTTP/1.1\r\n\r\n").read_until("GET  ");
  busy.send("GET /wait HTTP/1.1\r\n\r\n");
  const auto exchange = running.waiting.get_future().get();
  running.server().drain();
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_FALSE(running.client().connected());
  exchange->respond({.body = "late"});
  EXPECT_THAT(busy.read_all(), AllOf(HasSubstr("Connection: close"), HasSubstr("late")));
}

TEST(HttpServer, AddressesThatCannotBe) {
  const auto handler = [](Request, std::shared_ptr<Exchange>) {};
  const auto body = [](int, const std::string&) { return std::string(); };
  EXPECT_THROW(HttpServer({.host = "nowhere"}, handler, body), InvalidArgument);
  Running running;
  EXPECT_THROW(HttpServer({.port = running.server().port()}, handler, body), SystemError);
}

}  // namespace
}  // namespace graft::serve
