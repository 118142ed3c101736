#include "cli/http_client.h"

// Boost 1.74 needs it before its own headers.
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/check.h"

namespace graft::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::string_view kScheme = "http://";
constexpr std::chrono::milliseconds kCancelCheck{20};

// Runs the operation that was begun until it ends, which sets `done`, or until the token is cancelled. Whether it
// ended.
bool ended(asio::io_context& io, const std::optional<error_code>& done, const CancelToken& cancel) {
  io.restart();
  while (!done && !cancel.cancelled()) io.run_for(kCancelCheck);
  return done.has_value();
}

}  // namespace

HttpUrl parse_http_url(const std::string& url) {
  GRAFT_CHECK(InvalidArgument, url.starts_with(kScheme), "the server's URL must begin with http://, got '", url,
              "' (TLS is a proxy's)");
  HttpUrl out;
  std::string_view rest = std::string_view(url).substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  out.path = rest.substr(slash);
  while (out.path.ends_with('/')) out.path.pop_back();
  std::string_view where = rest.substr(0, slash);
  // [::1]:8080
  const std::size_t bracket = where.starts_with('[') ? where.find(']') : std::string_view::npos;
  const std::size_t colon = where.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    out.port = where.substr(colon + 1);
    where = where.substr(0, colon);
  }
  if (bracket != std::string_view::npos) where = where.substr(1, bracket - 1);
  out.host = where;
  const bool port_is_number = !out.port.empty() && out.port.find_first_not_of("0123456789") == std::string::npos;
  GRAFT_CHECK(InvalidArgument, !out.host.empty() && port_is_number, "expected http://HOST:PORT, got '", url, "'");
  return out;
}

int post(const HttpUrl& server, const HttpRequest& request, const std::function<void(std::string_view)>& on_part,
         const CancelToken& cancel) {
  asio::io_context io;
  tcp::socket socket(io);
  std::optional<error_code> done;
  const auto check = [&](const char* what) {
    GRAFT_CHECK(SystemError, !*done, "cannot ", what, " the server at ", server.host, ':', server.port, ": ",
                done->message());
    done.reset();
  };

  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(server.host, server.port, error);
  done = error;
  check("find");
  asio::async_connect(socket, found, [&](error_code e, const tcp::endpoint&) { done = e; });
  if (!ended(io, done, cancel)) return 0;
  check("connect to");

  std::string text =
      str("POST ", server.path, request.path, " HTTP/1.1\r\nHost: ", server.host, ':', server.port,
          "\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ", request.body.size(), "\r\n");
  for (const auto& [name, value] : request.headers) text += name + ": " + value + "\r\n";
  text += "\r\n" + request.body;
  asio::async_write(socket, asio::buffer(text), [&](error_code e, std::size_t) { done = e; });
  if (!ended(io, done, cancel)) return 0;
  check("write to");

  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // Boost 1.74 takes none for 0
  while (!parser.is_done()) {
    http::async_read_some(socket, buffer, parser, [&](error_code e, std::size_t) { done = e; });
    if (!ended(io, done, cancel)) return 0;
    check("read the answer of");
    std::string& body = parser.get().body();
    if (!body.empty()) on_part(body);
    body.clear();
  }
  return static_cast<int>(parser.get().result_int());
}

}  // namespace graft::cli
