#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace graft {
namespace {

TEST(Utf8, WhatIsAndWhatIsNot) {
  for (const std::string good : {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBF",
                                 "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "a\xC3\xA9z"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const std::string bad :
       {"\x80", "\xC3", "\xC3z", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "good\xFE", "\xE2\x28\xA1"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

// Every code point in its valid encoding.
TEST(Utf8, EveryCodePoint) {
  for (unsigned code = 0; code <= 0x10FFFF; ++code) {
    std::string text;
    const auto add = [&](unsigned byte) { text += static_cast<char>(byte); };
    if (code < 0x80) {
      add(code);
    } else if (code < 0x800) {
      add(0xC0 | code >> 6), add(0x80 | (code & 63));
    } else if (code < 0x10000) {
      add(0xE0 | code >> 12), add(0x80 | (code >> 6 & 63)), add(0x80 | (code & 63));
    } else {
      add(0xF0 | code >> 18), add(0x80 | (code >> 12 & 63)), add(0x80 | (code >> 6 & 63)), add(0x80 | (code & 63));
    }
    ASSERT_EQ(is_utf8(text), code < 0xD800 || code > 0xDFFF) << code;
  }
}

}  // namespace
}  // namespace graft
