#include "serve/v2/infer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "serve/v2/tensors.h"

namespace graft::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MethodInfo two_inputs() {
  MethodInfo method;
  method.name = "forward";
  method.inputs = {{"x", Value::Kind::tensor, DType::f32, {{1, 8, "b"}, {2, 2, ""}}},
                   {"n", Value::Kind::integer, DType::f32, {}}};
  method.outputs = {{"y", Value::Kind::tensor, DType::f32, {{1, 8, "b"}, {2, 2, ""}}},
                    {"", Value::Kind::tensor, DType::f16, {{1, 1, ""}}}};
  return method;
}

InferRequest read(const std::string& body, const std::string& header = "") {
  static const MethodInfo method = two_inputs();
  return read_infer(body, header, method);
}

std::string refused(const std::string& body, const std::string& header = "") {
  try {
    read(body, header);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.what();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<float> floats(const Value& value) {
  const auto* data = static_cast<const float*>(value.tensor.data);
  return {data, data + value.tensor.shape.numel()};
}

const std::string kN = R"({"name": "n", "shape": [1], "datatype": "INT64", "data": [7]})";
const std::string kX = R"({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, -3, 4e2]})";

TEST(Infer, ReadsJson) {
  const InferRequest request = read(R"({"id": "a", "inputs": [)" + kN + "," + kX + "]}");
  EXPECT_TRUE(is_text(request.id, "a"));
  EXPECT_THAT(floats(request.inputs[0]), ElementsAre(1, 2.5f, -3, 400));
  EXPECT_EQ(request.inputs[0].tensor.shape, (Shape{2, 2}));
  EXPECT_EQ(request.inputs[1].i, 7);
  ASSERT_EQ(request.outputs.size(), 2u);
  EXPECT_FALSE(request.outputs[0].binary);
  const InferRequest nested =
      read(R"({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}, )" + kN + "]}");
  EXPECT_THAT(floats(nested.inputs[0]), ElementsAre(1, 2, 3, 4));
}

TEST(Infer, ReadsBytesBehindTheJson) {
  const std::string json = R"({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32",
      "parameters": {"binary_data_size": 8}}, {"name": "n", "shape": [1], "datatype": "INT64",
      "parameters": {"binary_data_size": 8}}], "parameters": {"binary_data_output": true},
      "outputs": [{"name": "output_1"}, {"name": "y", "parameters": {"binary_data": false}}]})";
  const float x[] = {1.5f, std::numeric_limits<float>::infinity()};
  const std::int64_t n = -2;
  std::string body = json;
  body.append(reinterpret_cast<const char*>(x), sizeof x);
  body.append(reinterpret_cast<const char*>(&n), sizeof n);
  const std::string size = std::to_string(json.size());
  const InferRequest request = read(body, size);
  EXPECT_THAT(floats(request.inputs[0]), ElementsAre(1.5f, std::numeric_limits<float>::infinity()));
  EXPECT_EQ(request.inputs[1].i, -2);
  EXPECT_EQ(request.outputs[0].index, 1u);
  EXPECT_TRUE(request.outputs[0].binary);
  EXPECT_FALSE(request.outputs[1].binary);
  EXPECT_THAT(refused(body + "x", size), HasSubstr("1 bytes that no input takes"));
  EXPECT_THAT(refused(body.substr(0, body.size() - 1), size), HasSubstr("only 7 bytes of the body are left"));
  for (const char* wrong : {"x", "-1", "99999", "1.5", " 3"})
    EXPECT_THAT(refused(body, wrong), HasSubstr("Inference-Header-Content-Length must be")) << wrong;
}

TEST(Infer, RefusesByName) {
  const auto with_x = [](const std::string& x) { return R"({"inputs": [)" + x + "," + kN + "]}"; };
  const std::pair<std::string, const char*> cases[] = {
      {R"({})", "'inputs' is required"},
      {R"({"inputs": 1})", "'inputs' must be an array"},
      {R"({"inputs": [)" + kX + "]}", "input 'n' is missing"},
      {R"({"inputs": [)" + kX + "," + kX + "]}", "input 'x' is given twice"},
      {with_x(R"({"name": "z"})"), "the model has no input 'z'"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1, 2]})"), "must be FP32, found 'FP64'"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2, 3]})"),
       "has 3 elements, the shape says 2"},
      {with_x(R"({"name": "x", "shape": [1, -2], "datatype": "FP32", "data": []})"), "sizes from 0 on, found -2"},
      {with_x(R"({"name": "x", "shape": [1,1,1,1,1,1,1,1,1], "datatype": "FP32", "data": []})"), "at most 8 sizes"},
      {with_x(R"({"name": "x", "shape": [4611686018427387904, 4611686018427387904], "datatype": "FP32", "data": []})"),
       "64 bits"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, "a"]})"), "must hold numbers"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1e39]})"), "which FP32 cannot"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32"})"), "an input needs 'data'"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], "extra": 1})"),
       "'inputs[0].extra'"},
      {with_x(R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 7}})"),
       "is 7, type and shape say 8"},
      {R"({"inputs": [)" + kX + R"(, {"name": "n", "shape": [2], "datatype": "INT64", "data": [1, 2]}]})",
       "must be [1]: the input is a number"},
      {R"({"inputs": [)" + kX + "," + kN + R"(], "outputs": [{"name": "z"}]})", "the model has no output 'z'"},
      {R"({"inputs": [)" + kX + "," + kN + R"(], "outputs": [{"name": "y"}, {"name": "y"}]})", "asked for twice"},
      {R"({"inputs": [)" + kX + "," + kN + R"(], "parameters": {"priority": 1}})", "'parameters.priority'"},
      {R"({"inputs": [)" + kX + "," + kN + R"(], "x": 1})", "unknown parameter 'x'"},
  };
  for (const auto& [body, message] : cases) EXPECT_THAT(refused(body), HasSubstr(message)) << body;
}

TEST(Infer, WritesJsonAndBytes) {
  const MethodInfo method = two_inputs();
  float y[] = {1, 0.5f};
  std::uint16_t half[] = {0x3C00};
  const std::vector<Value> outputs = {Value::of(TensorView{y, DType::f32, {1, 2}}),
                                      Value::of(TensorView{half, DType::f16, {1}})};
  InferRequest request;
  request.outputs = {{0, false}};
  EXPECT_EQ(write_infer(request, "m", method, outputs).body,
            R"({"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],)"
            R"("data":[1.0,0.5]}]})");
  request.outputs = {{1, true}, {0, true}};
  const Response response = write_infer(request, "m", method, outputs);
  EXPECT_EQ(response.content_type, "application/octet-stream");
  ASSERT_EQ(response.headers.size(), 1u);
  const auto json_bytes = static_cast<std::size_t>(std::stoul(response.headers[0].second));
  const Json json = parse_object(std::string_view(response.body).substr(0, json_bytes));
  EXPECT_EQ(json["outputs"][0]["parameters"]["binary_data_size"], 2);
  ASSERT_EQ(response.body.size(), json_bytes + 2 + 8);
  EXPECT_EQ(std::memcmp(response.body.data() + json_bytes + 2, y, 8), 0);
  request.outputs = {{1, false}};
  EXPECT_THROW(write_infer(request, "m", method, outputs), ApiError);
  y[1] = std::numeric_limits<float>::quiet_NaN();
  request.outputs = {{0, false}};
  EXPECT_THROW(write_infer(request, "m", method, outputs), ApiError);
}

TEST(Infer, ElementsOfAllTypes) {
  EXPECT_EQ(bytes_of(Json::parse("[255, 0]"), DType::u8, 2, "d"), (std::vector{std::byte{255}, std::byte{0}}));
  EXPECT_THROW(bytes_of(Json::parse("[256]"), DType::u8, 1, "d"), ApiError);
  EXPECT_THROW(bytes_of(Json::parse("[-1]"), DType::u8, 1, "d"), ApiError);
  EXPECT_THROW(bytes_of(Json::parse("[1.0]"), DType::i32, 1, "d"), ApiError);
  EXPECT_THROW(bytes_of(Json::parse("[18446744073709551615]"), DType::i64, 1, "d"), ApiError);
  EXPECT_EQ(bytes_of(Json::parse("[true]"), DType::b8, 1, "d"), (std::vector{std::byte{1}}));
  EXPECT_THROW(bytes_of(Json::parse("[1]"), DType::b8, 1, "d"), ApiError);
  EXPECT_THROW(bytes_of(Json::parse("[1]"), DType::f16, 1, "d"), ApiError);
  for (std::size_t i = 0; i < kDTypeCount; ++i)
    EXPECT_EQ(v2_dtype(v2_name(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(v2_dtype("fp32"), std::nullopt);
}

}  // namespace
}  // namespace graft::serve
