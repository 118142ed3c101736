#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "feed.h"
#include "graft/error.h"
#include "graft/tokenizer.h"
#include "llm/test_model.h"
#include "load/test_graph.h"
#include "serve/app.h"
#include "serve/http/server.h"
#include "serve/router.h"

// Requests over real sockets to the server but for its process.
namespace graft::fuzz {
namespace {

using serve::ServedModel;

constexpr double kPartSeconds = 0.1;  // that a client may take for each part of a request: mutants lack parts
constexpr int kPatienceMs = 20'000;
constexpr std::size_t kQueue = 64;

serve::ServeOptions options() {
  serve::ServeOptions out;
  out.http.port = 0;
  out.http.max_body_bytes = 1 << 20;
  out.http.header_seconds = out.http.body_seconds = out.http.send_seconds = out.http.idle_seconds = kPartSeconds;
  out.limits.seconds = 2;
  out.log_requests = false;
  return out;
}

// A language model "words", a text encoder "vectors" and a program "sums", on a free port of this machine. Endpoints
// run on the server's thread.
class Server {
 public:
  Server()
      : app_(options()),
        http_(
            app_.options.http,
            [this](serve::Request request, std::shared_ptr<serve::Exchange> exchange) {
              route(app_, std::make_shared<serve::Call>("id", std::move(request), std::move(exchange), app_.metrics,
                                                        app_.options.log_requests, [] {}));
            },
            [](int status, const std::string& message) { return serve::error_body(status, message); }) {
    app_.models.add(language_model());
    app_.models.add(text_encoder());
    app_.models.add(program());
    app_.phase = serve::Phase::ready;
    thread_ = std::thread([this] { http_.run(); });
  }
  ~Server() {
    http_.stop();
    thread_.join();
    app_.models.clear();
  }

  // What comes back on a connection of their own until the server closes it.
  std::string exchange(std::string_view bytes) const;

 private:
  static std::shared_ptr<const Tokenizer> tokenizer() {
    constexpr std::string_view kTokens = "?bcde{}[]:,123.-atrunls\"";
    static_assert(kTokens.size() == test::SmallLanguageModel::kVocabulary);
    Json vocabulary = Json::object();
    for (std::size_t i = 0; i < kTokens.size(); ++i) vocabulary[std::string(1, kTokens[i])] = i;
    return Tokenizer::from_json(
        R"({"pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "unk_token": "?", "vocab": )" +
            vocabulary.dump() + "}}",
        R"({"chat_template": "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %})"
        R"({% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"})");
  }
  std::shared_ptr<ServedModel> language_model() {
    auto model = std::make_shared<ServedModel>();
    model->name = "words";
    model->language = std::make_shared<const LanguageModel>(small_.model->program(), small_.model->info(), tokenizer());
    model->grammars = std::make_unique<serve::Grammars>(model->language);
    DecoderOptions decoder;
    decoder.threads = 1;
    decoder.rows = 2;
    model->engine = std::make_unique<serve::Lanes>(model->language, decoder, kQueue);
    return model;
  }
  std::shared_ptr<ServedModel> text_encoder() {
    const std::vector<ir::Dim> dims = {test::fixed(1), test::dynamic(1, 16, "t")};
    const auto tokens = vectors_.input("input_ids", DType::i64, dims);
    constexpr std::int64_t kRows = test::SmallLanguageModel::kVocabulary;
    const auto table = vectors_.weight("table", test::counting(kRows * 4, 1), {kRows, 4});
    const ir::Arg no{ir::Arg::Kind::boolean, 0, 0, {}, {}};
    vectors_.output(vectors_.node("aten.embedding.default",
                                  {{"weight", ir::Arg::of_value(table)},
                                   {"indices", ir::Arg::of_value(tokens)},
                                   {"padding_idx", test::of_int(-1)},
                                   {"scale_grad_by_freq", no},
                                   {"sparse", no}},
                                  DType::f32, {dims[0], dims[1], test::fixed(4)}));
    const auto built = vectors_.build();
    auto model = std::make_shared<ServedModel>();
    model->name = "vectors";
    model->runner = std::make_unique<serve::Runner>(built, one_thread(), kQueue, serve::BatchOptions{});
    model->embedder = std::make_unique<serve::Embedder>(built, tokenizer(), one_thread(), kQueue);
    return model;
  }
  std::shared_ptr<ServedModel> program() {
    const std::vector<ir::Dim> dims = {test::dynamic(1, 64, "b"), test::fixed(2)};
    const auto x = sums_.input("x", DType::f32, dims), y = sums_.input("y", DType::i64, dims);
    sums_.output(
        sums_.node("aten.add.Tensor",
                   {{"self", ir::Arg::of_value(x)}, {"other", ir::Arg::of_value(y)}, {"alpha", test::of_int(1)}},
                   DType::f32, dims));
    auto model = std::make_shared<ServedModel>();
    model->name = "sums";
    model->runner = std::make_unique<serve::Runner>(sums_.build(), one_thread(), kQueue, serve::BatchOptions{});
    return model;
  }
  static SessionOptions one_thread() {
    SessionOptions out;
    out.threads = 1;
    return out;
  }

  test::SmallLanguageModel small_;
  test::GraphBuilder vectors_, sums_;
  serve::App app_;
  serve::HttpServer http_;
  std::thread thread_;
};

class Socket {
 public:
  explicit Socket(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw InternalError("the server takes no connection");
    // Closed with a reset: the ports of 100,000 connections would wait for late packets.
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string Server::exchange(std::string_view bytes) const {
  const Socket socket(http_.port());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  std::string out;
  for (;;) {
    pollfd wait{socket.fd(), static_cast<short>(bytes.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    const int ready = ::poll(&wait, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;  // a signal: libFuzzer has a clock
    if (ready <= 0 || std::chrono::steady_clock::now() > end)
      throw InternalError("the server neither answers nor closes the connection");
    if ((wait.revents & POLLOUT) != 0) {
      const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      bytes.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : bytes.size());
    }
    if ((wait.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      char part[16384];
      const auto received = ::recv(socket.fd(), part, sizeof part, 0);
      if (received <= 0) return out;
      out.append(part, static_cast<std::size_t>(received));
    }
  }
}

struct Answer {
  int status = 0;
  std::string type, body;
  bool whole = false;
};

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find("\r\n"), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 2, text.size()));
  return line;
}

std::size_t number(std::string_view text, int base) { return std::strtoull(std::string(text).c_str(), nullptr, base); }

// Takes one answer off the front.
Answer take_answer(std::string_view& text) {
  Answer out;
  const std::string_view line = take_line(text);
  if (!line.starts_with("HTTP/1.1 ") || line.size() < 12)
    throw InternalError("the server sent '" + std::string(line.substr(0, 80)) + "', expected a status line");
  out.status = static_cast<int>(number(line.substr(9, 3), 10));
  std::size_t bytes = std::string_view::npos;  // an answer in parts to HTTP/1.0 ends with the connection
  bool chunked = false;
  for (;;) {
    const std::string_view header = take_line(text);
    if (header.empty()) break;
    std::string name(header.substr(0, std::min(header.find(':'), header.size())));
    std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    const std::string_view value = header.substr(std::min(name.size() + 2, header.size()));
    if (name == "content-length") bytes = number(value, 10);
    if (name == "content-type") out.type = value;
    chunked |= name == "transfer-encoding" && value == "chunked";
  }
  if (out.status < 200 || out.status == 204 || text.starts_with("HTTP/1.1 ")) return out;  // the last one: of HEAD
  while (chunked) {
    bytes = number(take_line(text), 16);
    if (text.size() < bytes + 2) return text = {}, out;
    out.body += text.substr(0, bytes);
    text.remove_prefix(bytes + 2);
    if (bytes == 0) return out.whole = true, out;
  }
  if (bytes == std::string_view::npos) bytes = text.size();
  out.whole = text.size() >= bytes;  // not for HEAD
  out.body = text.substr(0, bytes);
  text.remove_prefix(std::min(bytes, text.size()));
  return out;
}

void check(const Answer& answer) {
  // 503: busy; 505: another version of HTTP.
  if (answer.status >= 500 && answer.status != 503 && answer.status != 505)
    throw InternalError("the server answered with status " + std::to_string(answer.status) + ": " + answer.body);
  if (answer.whole && answer.type.starts_with("application/json") && !Json::accept(answer.body))
    throw InternalError("the server answered with no JSON: " + answer.body);
}

}  // namespace

Fate feed_request(std::span<const std::byte> input) {
  static const Server server;
  const std::string text = server.exchange({reinterpret_cast<const char*>(input.data()), input.size()});
  Fate fate;
  for (std::string_view rest = text; !rest.empty();) {
    const Answer answer = take_answer(rest);
    check(answer);
    // Those of the HTTP parser are the other ones.
    fate.verified |=
        (answer.status >= 200 && answer.status < 300) || answer.body.find("\"error\"") != std::string::npos;
    fate.ran |= answer.status >= 200 && answer.status < 300;
  }
  fate.planned = fate.ran;
  return fate;
}

}  // namespace graft::fuzz
