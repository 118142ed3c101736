#include "serve/cors.h"

#include <gtest/gtest.h>

#include "graft/error.h"

namespace graft::serve {
namespace {

std::string value_of(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

TEST(CrossOrigin, AllowsWhatItIsGiven) {
  const CrossOrigin none({}), all({"*"}), local({"localhost"}), one({"https://chat.example.org", "http://x:81"});
  for (const char* origin : {"http://localhost", "https://localhost:8080", "http://127.0.0.1", "http://127.0.0.1:3000",
                             "http://[::1]", "http://[::1]:3000"}) {
    EXPECT_TRUE(local.allows(origin)) << origin;
    EXPECT_TRUE(all.allows(origin)) << origin;
    EXPECT_FALSE(none.allows(origin)) << origin;
    EXPECT_FALSE(one.allows(origin)) << origin;
  }
  for (const char* origin : {"http://notlocalhost", "http://localhost.evil.com", "http://evil.com", "localhost", "null",
                             "http://localhost:80@evil.com", "http://localhost:", "http://localhost:8x", "http://[::1"})
    EXPECT_FALSE(local.allows(origin)) << origin;
  EXPECT_TRUE(one.allows("https://chat.example.org"));
  EXPECT_TRUE(one.allows("http://x:81"));
  for (const char* origin :
       {"http://chat.example.org", "https://chat.example.org:81", "https://a.chat.example.org", ""})
    EXPECT_FALSE(one.allows(origin)) << origin;
}

TEST(CrossOrigin, AnswersABrowserThatAsks) {
  const CrossOrigin one({"https://chat.example.org"});
  Request request;
  request.method = "OPTIONS";
  request.headers = {{"origin", "https://chat.example.org"},
                     {"access-control-request-method", "POST"},
                     {"access-control-request-headers", "authorization"}};
  const auto answer = one.preflight(request);
  ASSERT_TRUE(answer);
  EXPECT_EQ(value_of(answer->headers, "Access-Control-Allow-Headers"), "authorization");
  EXPECT_EQ(value_of(one.headers(request), "Access-Control-Allow-Origin"), "https://chat.example.org");
  EXPECT_EQ(value_of(one.headers(request), "Vary"), "Origin");
  EXPECT_FALSE(CrossOrigin({}).preflight(request));
  EXPECT_TRUE(CrossOrigin({}).headers(request).empty());
  request.headers[0].second = "https://evil.com";
  EXPECT_TRUE(one.preflight(request)->headers.empty());
  EXPECT_EQ(value_of(one.headers(request), "Access-Control-Allow-Origin"), "");
  request.method = "POST";
  EXPECT_FALSE(one.preflight(request));
}

TEST(CrossOrigin, OriginsThatAreNone) {
  for (const char* origin : {"*", "localhost", "https://a", "http://a:80"}) EXPECT_NO_THROW(check_origin(origin));
  for (const char* origin : {"", "a", "a.org", "https://", "://a", "https://a/", "https://a?b", "**"})
    EXPECT_THROW(check_origin(origin), InvalidArgument) << origin;
}

}  // namespace
}  // namespace graft::serve
