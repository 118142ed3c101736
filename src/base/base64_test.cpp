#include "base/base64.h"

#include <gtest/gtest.h>

namespace graft {
namespace {

// RFC 4648, section 10.
TEST(Base64, Texts) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(from_base64(text), bytes);
  EXPECT_EQ(from_base64("Zm9vYg"), "foob");
  EXPECT_EQ(from_base64("//+/"), "\xff\xff\xbf");
}

TEST(Base64, OtherTexts) {
  for (const char* text : {"Zm9v\n", "Zm 9v", "Zm9-", "Zg==Zg==", "\xff"}) EXPECT_FALSE(from_base64(text)) << text;
}

}  // namespace
}  // namespace graft
