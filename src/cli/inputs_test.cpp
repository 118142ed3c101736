#include "cli/inputs.h"

#include <gtest/gtest.h>

#include <limits>

#include "cli/text.h"

namespace graft::cli {
namespace {

constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();

MethodInfo example() {
  MethodInfo method;
  method.name = "forward";
  method.inputs = {{"x", Value::Kind::tensor, DType::f32, {{1, 16, "b"}, {4, 4, ""}}},
                   {"n", Value::Kind::integer, DType::i64, {{0, kOpen, "n"}}},
                   {"flag", Value::Kind::none, DType::f32, {}},
                   {"scale", Value::Kind::real, DType::f64, {}},
                   {"w", Value::Kind::tensor, DType::i64, {{3, 3, ""}}}};
  return method;
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Inputs, ShapesByNameAndIndex) {
  const std::vector<Value> values = shaped_inputs(example(), {"x=7,4", "1=-3", "scale=0.5"});
  ASSERT_EQ(values.size(), 5U);
  EXPECT_EQ(values[0].tensor.shape, (Shape{7, 4}));
  EXPECT_EQ(values[1].i, -3);
  EXPECT_EQ(values[2].kind, Value::Kind::none);
  EXPECT_EQ(values[3].f, 0.5);
  EXPECT_EQ(values[4].tensor.shape, (Shape{3}));  // fixed by the program
}

TEST(Inputs, MistakesAreNamed) {
  const MethodInfo method = example();
  const auto error = [&](const std::vector<std::string>& shapes) {
    return error_of([&] { shaped_inputs(method, shapes); });
  };
  EXPECT_NE(error({"x=7,4"}).find("missing input 1 ('n', integer n=0..), input 3 ('scale', float)"), std::string::npos);
  EXPECT_NE(error({"y=7,4"}).find("no input 'y' in method 'forward'; it takes 0 'x', 1 'n', 3 'scale', 4 'w'"),
            std::string::npos);
  EXPECT_NE(error({"5=7"}).find("no input '5'"), std::string::npos);
  EXPECT_NE(error({"x=7,4", "0=7,4"}).find("is given twice"), std::string::npos);
  EXPECT_NE(error({"flag=1"}).find("was fixed when the program was exported"), std::string::npos);
  EXPECT_NE(error({"x"}).find("must have the form"), std::string::npos);
  for (const char* bad : {"x=7,", "x=,7", "x=7;4", "x=-7,4", "x=7,99999999999999999999"})
    EXPECT_NE(error({bad}).find("sizes with commas"), std::string::npos) << bad;
  EXPECT_NE(error({"x=0,9000000000000000000,9"}).find("does not fit"), std::string::npos);
  EXPECT_NE(error({"x=1,1,1,1,1,1,1,1,1"}).find("at most 8"), std::string::npos);
  EXPECT_NE(error({"n=1.5"}).find("must be integer, got '1.5'"), std::string::npos);
}

TEST(Inputs, OutputNamesAreSafeAndDifferent) {
  MethodInfo method;
  for (const char* name : {"../../etc/passwd", "a", "a", "", ".hidden", "a_2"}) {
    ValueInfo info;
    info.name = name;
    method.outputs.push_back(info);
  }
  EXPECT_EQ(output_names(method), (std::vector<std::string>{"output_0", "a", "a_2", "output_3", "output_4", "a_2_5"}));
}

TEST(Inputs, OutputNamesFromTheSpec) {
  MethodInfo method;
  method.outputs.resize(3);
  for (ValueInfo& info : method.outputs) info.name = "node";
  const std::string leaf = R"({"type": null, "context": null, "children_spec": []})";
  method.out_spec = R"([1, {"type": "builtins.dict", "context": "[\"y\", \"z\"]", "children_spec": [)" + leaf +
                    R"(, {"type": "builtins.tuple", "context": "null", "children_spec": [)" + leaf + ", " + leaf +
                    "]}]}]";
  EXPECT_EQ(output_names(method), (std::vector<std::string>{"y", "z.0", "z.1"}));
  method.out_spec = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [)" + leaf + "," + leaf +
                    "," + leaf + "]}]";
  EXPECT_EQ(output_names(method), (std::vector<std::string>{"node", "node_1", "node_2"}));
  for (const char* other : {"", "[]", "[1, 7]", "{", "[1, {\"type\": null}]"}) {
    method.out_spec = other;
    EXPECT_EQ(output_names(method)[0], "node") << other;
  }
}

TEST(Text, PreviewConvertsHalves) {
  const std::uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00};
  EXPECT_EQ(preview({const_cast<std::uint16_t*>(halves), DType::f16, Shape{4}}), "1 -2 5.96046e-08 inf");
  const std::uint16_t brains[] = {0x3f80, 0xc000};
  EXPECT_EQ(preview({const_cast<std::uint16_t*>(brains), DType::bf16, Shape{2}}, 1), "1 ...");
}

TEST(Text, TablesAlignAndHideControlCharacters) {
  Table table({{"name"}, {"n", Table::Align::right}});
  table.add({"\x1b[31mred", "1"});
  table.add({"gr\xc3\xbcn", "100"});
  EXPECT_EQ(table.text(1), " name        n\n ?[31mred    1\n gr\xc3\xbcn      100\n");
}

}  // namespace
}  // namespace graft::cli
