#include "serve/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http/target.h"
#include "serve/openapi/open_api.h"

namespace graft::serve {
namespace {

using ::testing::ElementsAre;

TEST(Router, MatchesWholePaths) {
  PathParts parts;
  EXPECT_TRUE(matches("/v1/models", "/v1/models", parts));
  EXPECT_FALSE(matches("/v1/models", "/v1/models/", parts));
  EXPECT_FALSE(matches("/v1/models", "/v1/model", parts));
  EXPECT_FALSE(matches("/v1/models", "/v1/models/a", parts));
  EXPECT_FALSE(matches("/v1/models", "/", parts));
  EXPECT_TRUE(matches("/v1/models/{model}", "/v1/models/a.b", parts));
  EXPECT_THAT(parts, ElementsAre("a.b"));
  EXPECT_FALSE(matches("/v1/models/{model}", "/v1/models/", parts));
  EXPECT_FALSE(matches("/v1/models/{model}", "/v1/models/a/b", parts));
  EXPECT_TRUE(matches("/v2/models/{m}/versions/{v}/infer", "/v2/models/x/versions/1/infer", parts));
  EXPECT_THAT(parts, ElementsAre("x", "1"));
}

TEST(Router, TheOpenApiDocumentHasAllRoutes) {
  std::set<std::string> served, described;
  for (const Route& route : routes()) served.insert(http_lower(route.method) + " " + route.path);
  const Json document = open_api_document();
  for (const auto& [path, operations] : document["paths"].items())
    for (const auto& [method, operation] : operations.items()) described.insert(method + " " + path);
  EXPECT_EQ(described, served);
}

TEST(Router, AliasesAreOfRoutes) {
  for (const char* alias : {"/models", "/chat/completions", "/chat/completions/input_tokens", "/responses",
                            "/embeddings", "/rerank", "/reranking", "/v1/reranking", "/completions"}) {
    const std::string_view path = path_without_alias(alias);
    EXPECT_NE(path, alias);
    EXPECT_TRUE(std::ranges::any_of(routes(), [&](const Route& route) { return route.path == path; })) << alias;
  }
  EXPECT_EQ(path_without_alias("/v1/models"), "/v1/models");
  EXPECT_EQ(path_without_alias("/nowhere"), "/nowhere");
}

TEST(Target, PathAndQuery) {
  std::string path, query;
  EXPECT_TRUE(split_target("/a%20b/c?x=%20&y", path, query));
  EXPECT_EQ(path, "/a b/c");
  EXPECT_EQ(query, "x=%20&y");
  for (const char* bad : {"", "a", "http://host/a", "*", "/%", "/%4", "/%zz", "/%00", "/a%0d%0ab", "/\x7f"})
    EXPECT_FALSE(split_target(bad, path, query)) << bad;
}

}  // namespace
}  // namespace graft::serve
