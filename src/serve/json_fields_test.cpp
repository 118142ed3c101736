#include "serve/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace graft::serve {
namespace {

using ::testing::HasSubstr;

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ParseJson, RefusesWhatIsNone) {
  EXPECT_EQ(parse_object(R"({"a": 1})").dump(), R"({"a":1})");
  EXPECT_THAT(refused([] { parse_object(""); }), HasSubstr("empty"));
  EXPECT_THAT(refused([] { parse_object("[1]"); }), HasSubstr("must be a JSON object, found an array"));
  for (const char* text : {"{", "{\"a\": 1} x", "{\"a\": 1,}", "nan", "{\"a\": NaN}", "{'a': 1}", "\xff", "{\"a\": 01}",
                           "{\"a\": \"\xc3\x28\"}", "{\"a\": \"\\ud800\"}", "{\"a\": 1e999}", "{\"a\": \"\n\"}"})
    EXPECT_THAT(refused([&] { parse_object(text); }), HasSubstr("no valid JSON")) << text;
  EXPECT_THAT(refused([] { parse_object(R"({"a": {"b": 1, "b": 2}})"); }), HasSubstr("the key 'b' twice"));
  EXPECT_NO_THROW(parse_object(R"({"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]})"));
}

TEST(ParseJson, BoundsTheDepth) {
  const auto nested = [](int depth) {
    const auto times = static_cast<std::size_t>(depth);
    return "{\"a\": " + std::string(times - 1, '[') + std::string(times - 1, ']') + "}";
  };
  EXPECT_NO_THROW(parse_object(nested(kMaxJsonDepth)));
  EXPECT_THAT(refused([&] { parse_object(nested(kMaxJsonDepth + 2)); }), HasSubstr("nested deeper"));
  EXPECT_THAT(refused([&] { parse_object(nested(1'000'000)); }), HasSubstr("nested deeper"));
}

TEST(ParseJson, BoundsTheMembersOfAnObject) {
  const auto members = [](std::size_t count) {
    std::string text = "{";
    for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\": 0";
    return text + "}";
  };
  EXPECT_EQ(parse_object(members(kMaxJsonMembers)).size(), kMaxJsonMembers);
  EXPECT_THAT(refused([&] { parse_object(members(kMaxJsonMembers + 1)); }), HasSubstr("more than 4096 members"));
}

TEST(Fields, ReadsTypesAndRanges) {
  const Json json = parse_object(R"({"n": 3, "x": 0.5, "b": true, "s": "text", "z": null, "l": [], "o": {},
                                     "big": 18446744073709551615, "i": -4})");
  Fields fields(json);
  EXPECT_EQ(fields.integer("n", 1, 3), 3);
  EXPECT_EQ(fields.number("n", 0, 5), 3.0);
  EXPECT_EQ(fields.number("x", 0, 1), 0.5);
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.text("s"), "text");
  EXPECT_EQ(fields.text("z"), std::nullopt);
  EXPECT_EQ(fields.text("absent"), std::nullopt);
  EXPECT_TRUE(fields.array("l"));
  EXPECT_TRUE(fields.object("o"));
  EXPECT_THAT(refused([&] { fields.integer("n", 4, 5); }), HasSubstr("'n' must be from 4 to 5, found 3"));
  EXPECT_THAT(refused([&] { fields.integer("x", 0, 5); }), HasSubstr("must be an integer, found a number"));
  EXPECT_THAT(refused([&] { fields.integer("big", INT64_MIN, INT64_MAX); }), HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(refused([&] { fields.integer("b", 0, 5); }), HasSubstr("found a boolean"));
  EXPECT_THAT(refused([&] { fields.number("s", 0, 5); }), HasSubstr("found a string"));
  EXPECT_THAT(refused([&] { fields.boolean("n"); }), HasSubstr("found an integer"));
  EXPECT_THAT(refused([&] { fields.text("o"); }), HasSubstr("found an object"));
  EXPECT_THAT(refused([&] { fields.need("z"); }), HasSubstr("'z' is required"));
  EXPECT_THAT(refused([&] { fields.refuse("s"); }), HasSubstr("'s' is not supported"));
  EXPECT_NO_THROW(fields.refuse("z"));
  EXPECT_NO_THROW(fields.refuse_unless("b", true));
  EXPECT_THAT(refused([&] { fields.refuse_unless("b", false); }), HasSubstr("not supported"));
  EXPECT_THAT(refused([&] { fields.end(); }), HasSubstr("unknown parameter 'i'"));
  fields.integer("i", -4, 0);
  EXPECT_NO_THROW(fields.end());
}

TEST(Fields, NamesThePath) {
  const Json json = parse_object(R"({"role": 3})");
  Fields fields(json, "messages[0].");
  try {
    fields.text("role");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param, "messages[0].role");
  }
}

TEST(ErrorBody, IsOpenAIs) {
  EXPECT_EQ(error_body(ApiError(400, "no \xff", "n", "")),
            "{\"error\":{\"message\":\"no \xEF\xBF\xBD\",\"type\":\"invalid_request_error\",\"param\":\"n\","
            "\"code\":null}}");
}

TEST(ErrorBody, HidesWhatIsNotOfTheRequest) {
  const auto of = [](auto error) {
    std::string detail;
    const ApiError shown = api_error_of(std::make_exception_ptr(error), detail);
    EXPECT_EQ(detail, error.what());
    return std::pair(shown.status, std::string(shown.what()));
  };
  EXPECT_EQ(of(InvalidArgument("n is 3")), std::pair(400, std::string("n is 3")));
  EXPECT_EQ(of(InvalidProgram("'/home/me/model.pte' changed")), std::pair(500, std::string("internal error")));
  EXPECT_EQ(of(SystemError("/secret")), std::pair(500, std::string("internal error")));
  EXPECT_EQ(of(std::logic_error("x")).first, 500);
  EXPECT_EQ(of(Busy("x")).first, 429);
  EXPECT_EQ(of(OutOfMemory("x")).first, 503);
}

}  // namespace
}  // namespace graft::serve
