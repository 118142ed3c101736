#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace graft::test {

// The call throws an Error whose message contains the text.
template <typename Error>
void expect_error(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error: expected '" << text << "'";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr(text));
  }
}

}  // namespace graft::test
