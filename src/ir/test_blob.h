#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "graft_generated.h"
#include "ir/program.h"

// Small programs for tests, written with the generated builder.
namespace graft::ir::test {

struct BlobOptions {
  std::uint16_t major = kFormatMajor;
  std::uint16_t minor = kFormatMinor;
  std::vector<std::string> features;
  std::string method = "forward";
  std::string weight_key = "w";
  std::uint64_t weight_bytes = 64;  // f32[4, 4]
  std::int64_t weight_rows = 4;
  std::vector<std::uint8_t> sha256;
  std::int64_t state_size = 4;
  std::string initial_key;  // not empty: the state starts with this weight
  std::vector<std::uint8_t> initial_sha256;
  int list_depth = 0;  // > 0: wraps argument "b" of linear in that many lists
};

// forward(x: f32[s0 in 0..16, 4]) -> linear(x, w: f32[4, 4]); the state h: f32[4] is written back unchanged.
inline std::vector<std::byte> make_blob(const BlobOptions& options = {}) {
  flatbuffers::FlatBufferBuilder b;
  const auto dim = [&](std::int64_t min, std::int64_t max) { return fb::CreateDimDirect(b, min, max, "s0"); };
  const auto value = [&](const char* name, std::vector<flatbuffers::Offset<fb::Dim>> dims) {
    return fb::CreateValueDirect(b, name, fb::ValueKind::tensor, fb::DType::f32, &dims);
  };
  const std::vector<flatbuffers::Offset<fb::Value>> values = {
      value("x", {dim(0, 16), dim(4, 4)}), value("p_w", {dim(options.weight_rows, options.weight_rows), dim(4, 4)}),
      value("h", {dim(options.state_size, options.state_size)}), value("linear", {dim(0, 16), dim(4, 4)})};
  const auto use = [&](std::int64_t id) { return fb::CreateArgDirect(b, fb::ArgKind::value, id); };
  auto bias = fb::CreateArgDirect(b, fb::ArgKind::none);
  for (int i = 0; i < options.list_depth; ++i) {
    const std::vector<flatbuffers::Offset<fb::Arg>> items = {bias};
    bias = fb::CreateArgDirect(b, fb::ArgKind::list, 0, 0, nullptr, &items);
  }
  const std::vector<flatbuffers::Offset<fb::Arg>> args = {use(0), use(1), bias};
  const std::vector<std::uint32_t> node_outputs = {3};
  const std::vector<flatbuffers::Offset<fb::Node>> nodes = {
      fb::CreateNodeDirect(b, 0, "linear", &args, &node_outputs, "l")};
  const std::vector<flatbuffers::Offset<fb::Input>> inputs = {fb::CreateInput(b, 1, fb::InputKind::weight, 0),
                                                              fb::CreateInput(b, 2, fb::InputKind::state, 0),
                                                              fb::CreateInput(b, 0, fb::InputKind::user, 0)};
  const std::vector<flatbuffers::Offset<fb::Output>> outputs = {
      fb::CreateOutput(b, fb::OutputKind::state_mutation, use(2), 0),
      fb::CreateOutput(b, fb::OutputKind::user, use(3), 0)};
  const std::vector<flatbuffers::Offset<flatbuffers::String>> input_names = {b.CreateString("x")};
  const std::vector<flatbuffers::Offset<fb::Method>> methods = {
      fb::CreateMethodDirect(b, options.method.c_str(), &values, &nodes, &inputs, &outputs, "in", "out", &input_names)};
  const std::vector<flatbuffers::Offset<flatbuffers::String>> names = {
      b.CreateString("input"), b.CreateString("weight"), b.CreateString("bias")};
  const std::vector<flatbuffers::Offset<fb::Op>> ops = {fb::CreateOpDirect(b, "aten.linear.default", &names)};
  const std::vector<std::int64_t> sizes = {options.weight_rows, 4};
  std::vector<flatbuffers::Offset<fb::Weight>> weights = {
      fb::CreateWeightDirect(b, options.weight_key.c_str(), "l.weight", fb::DType::f32, &sizes, fb::Storage::plain,
                             nullptr, options.weight_bytes, &options.sha256)};
  const std::vector<std::int64_t> state_sizes = {options.state_size};
  if (!options.initial_key.empty())
    weights.push_back(
        fb::CreateWeightDirect(b, options.initial_key.c_str(), "h", fb::DType::f32, &state_sizes, fb::Storage::plain,
                               nullptr, static_cast<std::uint64_t>(options.state_size) * 4, &options.initial_sha256));
  const std::int32_t initial = options.initial_key.empty() ? -1 : 1;
  const std::vector<flatbuffers::Offset<fb::State>> states = {
      fb::CreateStateDirect(b, "h", fb::DType::f32, &state_sizes, initial, true)};
  const auto features = b.CreateVectorOfStrings(options.features);
  const std::vector<flatbuffers::Offset<fb::Producer>> producers = {fb::CreateProducerDirect(b, "test", "1")};
  const auto producer_vector = b.CreateVector(producers);
  const auto op_vector = b.CreateVector(ops);
  const auto weight_vector = b.CreateVector(weights);
  const auto state_vector = b.CreateVector(states);
  const auto method_vector = b.CreateVector(methods);
  fb::FinishProgramBuffer(b, fb::CreateProgram(b, options.major, options.minor, features, producer_vector, op_vector,
                                               weight_vector, state_vector, method_vector));
  std::vector<std::byte> out(b.GetSize());
  std::memcpy(out.data(), b.GetBufferPointer(), b.GetSize());
  return out;
}

}  // namespace graft::ir::test
