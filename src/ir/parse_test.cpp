#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "graft/error.h"
#include "ir/test_blob.h"

namespace graft::ir {
namespace {

using test::BlobOptions;
using test::make_blob;
using ::testing::HasSubstr;

std::string error_of(std::span<const std::byte> blob) {
  try {
    verify(parse(blob));
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "";
}

TEST(Parse, KeepsWhatTheBlobSays) {
  const Program program = parse(make_blob());
  verify(program);
  EXPECT_EQ(program.major, 1);
  ASSERT_EQ(program.producers.size(), 1U);
  EXPECT_EQ(program.producers[0].name, "test");
  ASSERT_EQ(program.weights.size(), 1U);
  EXPECT_EQ(program.weights[0].key, "w");
  EXPECT_EQ(program.weights[0].shape, (Shape{4, 4}));
  EXPECT_EQ(program.weights[0].byte_size, 64U);
  ASSERT_EQ(program.states.size(), 1U);
  EXPECT_TRUE(program.states[0].persistent);
  const Method& method = program.method("forward");
  EXPECT_EQ(method.in_spec, "in");
  EXPECT_EQ(method.out_spec, "out");
  EXPECT_EQ(method.user_input_names, std::vector<std::string>{"x"});
  ASSERT_EQ(method.values.size(), 4U);
  EXPECT_EQ(method.values[0].str(), "f32[s0 in 0..16, 4]");
  ASSERT_EQ(method.nodes.size(), 1U);
  EXPECT_EQ(program.op_of(method.nodes[0]).target, "aten.linear.default");
  EXPECT_EQ(method.nodes[0].args[1].value(), 1U);
  EXPECT_EQ(method.nodes[0].args[2].kind, Arg::Kind::none);
  EXPECT_EQ(method.nodes[0].outputs, std::vector<ValueId>{3});
  EXPECT_EQ(method.inputs[1].kind, InputKind::state);
  EXPECT_EQ(method.outputs[0].kind, OutputKind::state_mutation);
}

TEST(Parse, ValueText) {
  Value value;
  value.dims = {{1, 1, {}}, {2, 512, "s77"}, {3, kUnbounded, {}}};
  EXPECT_EQ(value.str(), "f32[1, s77 in 2..512, 3..]");
  value.kind = ValueKind::integer;
  value.dims = {{0, 9, "u0"}};
  EXPECT_EQ(value.str(), "int u0 in 0..9");
}

TEST(Parse, UnknownMethodListsThoseThereAre) {
  const Program program = parse(make_blob());
  try {
    program.method("decode");
    FAIL();
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), HasSubstr("'decode'; there are: forward"));
  }
}

TEST(Parse, ReadsFromAnyAddress) {
  const std::vector<std::byte> blob = make_blob();
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> moved(blob.size() + shift);
    std::copy(blob.begin(), blob.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(error_of(std::span(moved).subspan(shift)), "");
  }
}

TEST(Parse, VersionsAndFeatures) {
  BlobOptions newer;
  newer.minor = 9;
  EXPECT_EQ(error_of(make_blob(newer)), "");
  newer.major = 2;
  EXPECT_THAT(error_of(make_blob(newer)), HasSubstr("format version 2.9: graft " GRAFT_VERSION " reads version 1.x"));
  BlobOptions unknown;
  unknown.features = {"time-travel"};
  EXPECT_THAT(error_of(make_blob(unknown)), HasSubstr("needs feature 'time-travel'"));
}

TEST(Parse, OtherFiles) {
  EXPECT_THAT(error_of({}), HasSubstr("found 0"));
  std::vector<std::byte> blob = make_blob();
  blob[4] = std::byte{'X'};
  EXPECT_THAT(error_of(blob), HasSubstr("identifier is not 'GRFT'"));
}

TEST(Parse, ListsNestSoDeepAndNoDeeper) {
  BlobOptions options;
  options.list_depth = kMaxListDepth;
  EXPECT_EQ(error_of(make_blob(options)), "");
  ++options.list_depth;
  EXPECT_THAT(error_of(make_blob(options)), HasSubstr("nest at most 8 deep"));
  options.list_depth = 10000;
  EXPECT_THAT(error_of(make_blob(options)), HasSubstr("damaged"));
}

// A blob of some kilobytes where each list holds the next one 100 times.
TEST(Parse, SharedTablesDoNotMultiplyBeyondTheBudget) {
  flatbuffers::FlatBufferBuilder b;
  auto arg = fb::CreateArgDirect(b, fb::ArgKind::none);
  for (int i = 0; i < 5; ++i) {
    const std::vector<flatbuffers::Offset<fb::Arg>> items(100, arg);
    arg = fb::CreateArgDirect(b, fb::ArgKind::list, 0, 0, nullptr, &items);
  }
  const std::vector<flatbuffers::Offset<fb::Arg>> args = {arg};
  const std::vector<flatbuffers::Offset<fb::Node>> nodes = {fb::CreateNodeDirect(b, 0, "n", &args)};
  const std::vector<flatbuffers::Offset<fb::Method>> methods = {fb::CreateMethodDirect(b, "m", nullptr, &nodes)};
  const auto method_vector = b.CreateVector(methods);
  fb::ProgramBuilder program(b);
  program.add_major(kFormatMajor);
  program.add_methods(method_vector);
  fb::FinishProgramBuffer(b, program.Finish());
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  EXPECT_NE(error_of({data, b.GetSize()}), "");
}

// The same with one long string in many nodes: few tables, so only the budget of decoded bytes stops it.
TEST(Parse, SharedTextsDoNotMultiplyBeyondTheBudget) {
  flatbuffers::FlatBufferBuilder b;
  const auto text = b.CreateString(std::string(100'000, 'x'));
  std::vector<flatbuffers::Offset<fb::Node>> nodes;
  for (int i = 0; i < 1000; ++i) {
    fb::NodeBuilder node(b);
    node.add_name(text);
    nodes.push_back(node.Finish());
  }
  const std::vector<flatbuffers::Offset<fb::Method>> methods = {fb::CreateMethodDirect(b, "m", nullptr, &nodes)};
  const auto method_vector = b.CreateVector(methods);
  fb::ProgramBuilder program(b);
  program.add_major(kFormatMajor);
  program.add_methods(method_vector);
  fb::FinishProgramBuffer(b, program.Finish());
  const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  EXPECT_THAT(error_of({data, b.GetSize()}), HasSubstr("shared too often"));
}

// A damaged blob may only parse or throw InvalidProgram (anything else escapes error_of, or crashes).
TEST(Parse, TruncatedAnywhere) {
  const std::vector<std::byte> blob = make_blob();
  for (std::size_t length = 0; length < blob.size(); ++length) {
    const std::vector<std::byte> cut(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(length));
    error_of(cut);
  }
  const std::vector<std::byte> half(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(blob.size() / 2));
  EXPECT_NE(error_of(half), "");
}

TEST(Parse, EachBitFlipped) {
  const std::vector<std::byte> blob = make_blob();
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < blob.size() * 8; ++bit) {
    std::vector<std::byte> flipped = blob;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    refused += !error_of(flipped).empty();
  }
  EXPECT_GT(refused, blob.size());  // most bits are structure; names and unused bytes may change unnoticed
}

TEST(Parse, ManyBytesReplaced) {
  const std::vector<std::byte> blob = make_blob();
  std::mt19937 random(20);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> damaged = blob;
    const unsigned count = 1 + random() % 8;
    for (unsigned i = 0; i < count; ++i) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    error_of(damaged);
  }
}

}  // namespace
}  // namespace graft::ir
