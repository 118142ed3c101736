#include "serve/keys.h"

#include <gtest/gtest.h>

#include <fstream>

#include "graft/error.h"

namespace graft::serve {
namespace {

Request with(const std::string& name, const std::string& value) {
  Request request;
  request.headers = {{name, value}};
  return request;
}

TEST(ApiKeys, AllowWhoHasOne) {
  EXPECT_TRUE(ApiKeys().allows({}));
  const ApiKeys keys = ApiKeys::of({"first", "second"});
  EXPECT_FALSE(keys.allows({}));
  EXPECT_TRUE(keys.allows(with("authorization", "Bearer second")));
  EXPECT_TRUE(keys.allows(with("authorization", "bearer first")));
  EXPECT_TRUE(keys.allows(with("x-api-key", "first")));
  for (const char* wrong :
       {"Bearer ", "Bearer", "Bearer firs", "Bearer first ", "Basic first", "first", "Bearer FIRST"})
    EXPECT_FALSE(keys.allows(with("authorization", wrong))) << wrong;
  EXPECT_NE(keys.salt(with("x-api-key", "first")), keys.salt(with("x-api-key", "second")));
  EXPECT_NE(keys.salt(with("x-api-key", "first")), 0u);
  // Whatever other keys there are.
  EXPECT_EQ(ApiKeys::of({"new", "first"}).salt(with("x-api-key", "first")), keys.salt(with("x-api-key", "first")));
}

TEST(ApiKeys, OfAFile) {
  const std::string path = ::testing::TempDir() + "/graft-keys.txt";
  std::ofstream(path) << "# ours\n\nfirst\r\nsecond\n";
  EXPECT_TRUE(ApiKeys::load(path).allows(with("x-api-key", "second")));
  EXPECT_TRUE(ApiKeys::load(path).allows(with("x-api-key", "first")));
  EXPECT_FALSE(ApiKeys::load(path).allows(with("x-api-key", "# ours")));
  std::ofstream(path) << "# none\n";
  EXPECT_THROW(ApiKeys::load(path), InvalidArgument);
  std::ofstream(path) << "a b\n";
  EXPECT_THROW(ApiKeys::load(path), InvalidArgument);
  EXPECT_THROW(ApiKeys::load(path + "-not-there"), NotFound);
}

}  // namespace
}  // namespace graft::serve
