#include "serve/form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=XY";

std::string part(const std::string& name, const std::string& content, const std::string& more = {}) {
  return "--XY\r\nContent-Disposition: form-data; name=\"" + name + "\"" + more + "\r\n\r\n" + content + "\r\n";
}

std::string refused(const std::string& type, const std::string& body) {
  try {
    form_fields(parse_form(type, body), {"text"});
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.what();
  }
  return "taken";
}

TEST(Form, PartsAndFiles) {
  const std::string content("\0\r\n--X\r\n--", 10);
  const std::string body = part("a", "1") +
                           part("file", content, "; filename=\"x; y.wav\"\r\nContent-Type: audio/wav") +
                           part("empty", "") + "--XY--\r\n";
  const auto parts = parse_form(kType, body);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].name, "a");
  EXPECT_EQ(parts[0].content, "1");
  EXPECT_EQ(parts[0].filename, std::nullopt);
  EXPECT_EQ(parts[1].name, "file");
  EXPECT_EQ(parts[1].filename, "x; y.wav");
  EXPECT_EQ(parts[1].content, content);
  EXPECT_EQ(parts[2].content, "");
}

TEST(Form, WhatRfc2046Allows) {
  const std::string body =
      "a preamble\r\n--X Y \t\r\ncontent-disposition:form-data;NAME=n\r\nX: y\r\n\r\nv\r\n--X Y--more";
  const auto parts = parse_form("Multipart/Form-Data; charset=utf-8; boundary=\"X Y\"", body);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].name, "n");
  EXPECT_EQ(parts[0].content, "v");
  EXPECT_TRUE(parse_form(kType, "--XY--").empty());
}

TEST(Form, Fields) {
  const std::string body = part("number", "0.5") + part("yes", "true") + part("text", "12") + part("word", "\"a\"") +
                           part("list[]", "1") + part("list[]", "x") + part("file", "f", "; filename=f") + "--XY--";
  EXPECT_EQ(form_fields(parse_form(kType, body), {"text"}),
            Json::parse(R"({"number": 0.5, "yes": true, "text": "12", "word": "\"a\"", "list": ["1", "x"]})"));
}

TEST(Form, WrongOnesAreRefused) {
  using testing::HasSubstr;
  const std::string good = part("a", "1");
  EXPECT_EQ(refused(kType, good + "--XY--"), "taken");
  EXPECT_THAT(refused("multipart/form-data", good), HasSubstr("must have a boundary"));
  EXPECT_THAT(refused("multipart/form-data; boundary=\"XY", good), HasSubstr("must have a boundary"));
  EXPECT_THAT(refused("multipart/form-data; boundary=" + std::string(71, 'x'), good),
              HasSubstr("must have a boundary"));
  EXPECT_THAT(refused(kType, ""), HasSubstr("does not contain its boundary"));
  EXPECT_THAT(refused(kType, good), HasSubstr("does not end with its boundary"));
  EXPECT_THAT(refused(kType, "--XY"), HasSubstr("is not the end of its line"));
  EXPECT_THAT(refused(kType, "--XYZ\r\n"), HasSubstr("is not the end of its line"));
  EXPECT_THAT(refused(kType, "--XY\r\nContent-Disposition: form-data\r\n\r\n\r\n--XY--"), HasSubstr("with a name"));
  EXPECT_THAT(refused(kType, "--XY\r\nContent-Disposition: other; name=a\r\n\r\n\r\n--XY--"), HasSubstr("form-data"));
  EXPECT_THAT(refused(kType, "--XY\r\nX: y\r\n\r\n\r\n--XY--"), HasSubstr("no Content-Disposition"));
  EXPECT_THAT(refused(kType, "--XY\r\nnothing\r\n\r\n\r\n--XY--"), HasSubstr("no ':'"));
  EXPECT_THAT(refused(kType, "--XY\r\nX: y\r\n--XY--"), HasSubstr("no end of its header"));
  EXPECT_THAT(refused(kType, good + good + "--XY--"), HasSubstr("'a' occurs twice"));
  EXPECT_THAT(refused(kType, part("a", "1") + part("a[]", "1") + "--XY--"), HasSubstr("'a' occurs twice"));
  EXPECT_THAT(refused(kType, part("a", "\xff") + "--XY--"), HasSubstr("'a' is not UTF-8"));
  EXPECT_THAT(refused(kType, part("\xff", "a") + "--XY--"), HasSubstr("is not UTF-8"));
  std::string many;
  for (std::size_t i = 0; i <= kMaxFormParts; ++i) many += part(std::to_string(i), "");
  EXPECT_THAT(refused(kType, many + "--XY--"), HasSubstr("more than 64 parts"));
}

TEST(Form, EveryBeginningIsRefusedOrTaken) {
  const std::string body = part("a", "1") + part("file", "content", "; filename=\"f\"") + "--XY--";
  for (std::size_t i = 0; i < body.size(); ++i) EXPECT_NE(refused(kType, body.substr(0, i)), "taken") << i;
}

}  // namespace
}  // namespace graft::serve
