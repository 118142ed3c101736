#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "graft/error.h"
#include "ir/test_blob.h"

namespace graft::ir {
namespace {

using ::testing::HasSubstr;

std::string error_of(const Program& program) {
  try {
    verify(program);
  } catch (const InvalidProgram& error) {
    return error.what();
  } catch (const Unsupported& error) {  // beyond a limit
    return error.what();
  }
  return "";
}

struct Case {
  const char* name;
  std::function<void(Program&, Method&)> spoil;
  const char* message;
};

Arg nested(int depth) {
  Arg arg;
  for (int i = 0; i < depth; ++i) {
    Arg list;
    list.kind = Arg::Kind::list;
    list.items.push_back(std::move(arg));
    arg = std::move(list);
  }
  return arg;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"ValueUsedBeforeItIsDefined", [](Program&, Method& m) { m.nodes[0].args[0] = Arg::of_value(3); },
       "node 0 'linear' (aten.linear.default): argument 'input': value 'linear' is used before it is defined"},
      {"ValueIdOutOfRange", [](Program&, Method& m) { m.nodes[0].args[0] = Arg::of_value(4); },
       "value ids end at 4, found 4"},
      {"NegativeValueId", [](Program&, Method& m) { m.nodes[0].args[0].i = -1; }, "value ids end at 4, found -1"},
      {"ValueDefinedTwice", [](Program&, Method& m) { m.nodes[0].outputs = {0}; },
       "value 'x' is defined a second time"},
      {"OutputIdOutOfRange", [](Program&, Method& m) { m.nodes[0].outputs = {9}; }, "value ids end at 4, found 9"},
      {"OutputNeverDefined", [](Program&, Method& m) { m.nodes.clear(); }, "'linear' is used before it is defined"},
      {"OpOutOfRange", [](Program&, Method& m) { m.nodes[0].op = 1; }, "there are 1 ops, found index 1"},
      {"OpWithoutTarget", [](Program& p, Method&) { p.ops[0].target = ""; }, "op 0 has no target"},
      {"TooFewArguments", [](Program&, Method& m) { m.nodes[0].args.pop_back(); }, "expected 3 arguments, found 2"},
      {"NodeWithoutName", [](Program&, Method& m) { m.nodes[0].name = ""; }, "it has an empty name"},
      {"ListsTooDeep", [](Program&, Method& m) { m.nodes[0].args[2] = nested(9); }, "nest at most 8 deep"},
      {"ItemsOutsideAList", [](Program&, Method& m) { m.nodes[0].args[2].items.resize(1); },
       "is not a list but has 1 items"},
      {"ValueInsideAListIsChecked",
       [](Program&, Method& m) {
         m.nodes[0].args[2] = nested(1);
         m.nodes[0].args[2].items[0] = Arg::of_value(3);
       },
       "used before it is defined"},
      {"BoolOfTwo",
       [](Program&, Method& m) {
         m.nodes[0].args[2] = {Arg::Kind::boolean, 2, 0, {}, {}};
       },
       "a bool is 0 or 1, found 2"},
      {"UnknownDTypeArgument",
       [](Program&, Method& m) {
         m.nodes[0].args[2] = {Arg::Kind::dtype, 10, 0, {}, {}};
       },
       "dtype 10 is not known"},
      {"UnknownDType", [](Program&, Method& m) { m.values[0].dtype = static_cast<DType>(10); },
       "value 'x': dtype 10 is not known"},
      {"RankNine", [](Program&, Method& m) { m.values[0].dims.resize(9); }, "at most 8 dimensions, found 9"},
      {"MinAboveMax",
       [](Program&, Method& m) {
         m.values[0].dims[0] = {5, 4, {}};
       },
       "a range must be 0 <= min <= max, found 5 to 4"},
      {"NegativeSize",
       [](Program&, Method& m) {
         m.values[0].dims[0] = {-1, 4, {}};
       },
       "found -1 to 4"},
      {"HugeValue",
       [](Program&, Method& m) {
         m.values[0].dims.assign(2, {std::int64_t{1} << 40, std::int64_t{1} << 40, {}});
       },
       "its smallest size does not fit 64 bits"},
      {"NumberWithTwoRanges", [](Program&, Method& m) { m.values[0].kind = ValueKind::integer; },
       "a number has at most 1 range, found 2"},
      {"ValueWithoutName", [](Program&, Method& m) { m.values[2].name = ""; }, "value 2 has an empty name"},
      {"UserPositionTwice",
       [](Program&, Method& m) {
         m.values.push_back(m.values[0]);
         m.user_input_names = {"x", "y"};
         m.inputs.push_back({4, InputKind::user, 0});
       },
       "user inputs index 0 appears twice"},
      {"UserPositionMissing", [](Program&, Method& m) { m.inputs[2].index = 1; },
       "there are 1 user inputs, found index 1"},
      {"MoreUserInputsThanNames",
       [](Program&, Method& m) {
         m.values.push_back(m.values[0]);
         m.inputs.push_back({4, InputKind::user, 1});
       },
       "1 names for 2 user inputs"},
      {"WeightInputOutOfRange", [](Program&, Method& m) { m.inputs[0].index = 1; },
       "there are 1 weights, found index 1"},
      {"StateInputOutOfRange", [](Program&, Method& m) { m.inputs[1].index = 1; }, "there are 1 states, found index 1"},
      {"WeightOfAnotherType", [](Program&, Method& m) { m.values[1].dtype = DType::f16; },
       "its weight 'w' is f32[4, 4]"},
      {"StateOfAnotherShape",
       [](Program&, Method& m) {
         m.values[2].dims[0] = {5, 5, {}};
       },
       "its state 'h' is f32[4]"},
      {"StateWrittenTwice", [](Program&, Method& m) { m.outputs.push_back(m.outputs[0]); },
       "states index 0 appears twice"},
      {"StateWrittenWithAnotherShape", [](Program&, Method& m) { m.outputs[0].arg = Arg::of_value(0); },
       "the state 'h' it is written to is f32[4]"},
      {"MutationByAConstant", [](Program&, Method& m) { m.outputs[0].arg = {}; }, "found a constant"},
      {"UserOutputTwice", [](Program&, Method& m) { m.outputs.push_back(m.outputs[1]); },
       "user outputs index 0 appears twice"},
      {"OutputOfAList", [](Program&, Method& m) { m.outputs[1].arg = nested(1); }, "it must be a value or a constant"},
      {"InputMutationOutOfRange",
       [](Program&, Method& m) {
         m.outputs[1] = {OutputKind::input_mutation, Arg::of_value(3), 1};
       },
       "there are 1 user inputs, found index 1"},
      {"InputMutationOfAnotherRank",
       [](Program&, Method& m) {
         m.outputs[1] = {OutputKind::input_mutation, Arg::of_value(2), 0};
       },
       "the input 'x' it is written to is"},
      {"WrongByteSize", [](Program& p, Method&) { p.weights[0].byte_size = 60; },
       "weight 'w': f32[4, 4] takes 64 bytes, found 60"},
      {"WeightSizesOverflow",
       [](Program& p, Method&) {
         p.weights[0].shape = Shape{std::int64_t{1} << 40, std::int64_t{1} << 40};
       },
       "does not fit 64 bits"},
      {"EmptyWeightWithHugeStrides",
       [](Program& p, Method&) {
         p.weights[0].shape = Shape{0, std::int64_t{1} << 40, std::int64_t{1} << 40};
       },
       "does not fit 64 bits"},
      {"ShortHash", [](Program& p, Method&) { p.weights[0].sha256.resize(31); },
       "must have 32 bytes or none, found 31"},
      {"WeightWithoutKey", [](Program& p, Method&) { p.weights[0].key = ""; }, "has an empty key"},
      {"KeyWithTwoContents",
       [](Program& p, Method&) {
         p.weights.push_back(p.weights[0]);
         p.weights[1].sha256.assign(32, 1);
       },
       "different hashes"},
      {"UnknownStorage", [](Program& p, Method&) { p.weights[0].storage = static_cast<Storage>(2); },
       "storage 2 is not known"},
      {"BlockWithoutType", [](Program& p, Method&) { p.weights[0].storage = Storage::ggml_block; },
       "without a block type"},
      {"BlocksOfIntegers",
       [](Program& p, Method&) {
         p.weights[0].storage = Storage::ggml_block;
         p.weights[0].block_type = "q8_0";
         p.weights[0].dtype = DType::i8;
       },
       "values stored in blocks must be f32, found i8"},
      {"InitialOutOfRange", [](Program& p, Method&) { p.states[0].initial = 1; },
       "must be one of the 1 weights or -1, found 1"},
      {"InitialOfAnotherShape", [](Program& p, Method&) { p.states[0].initial = 0; },
       "its initial value must be f32[4], weight 'w' is f32[4, 4]"},
      {"StateTwice", [](Program& p, Method&) { p.states.push_back(p.states[0]); }, "state 'h' appears twice"},
      {"MethodTwice", [](Program& p, Method&) { p.methods.push_back(p.methods[0]); }, "'forward' appears twice"},
      {"MethodWithoutName", [](Program&, Method& m) { m.name = ""; }, "method 0 has an empty name"},
  };
  return all;
}

class VerifyRule : public ::testing::TestWithParam<Case> {};

TEST_P(VerifyRule, IsEnforced) {
  Program program = parse(test::make_blob());
  ASSERT_EQ(error_of(program), "");
  GetParam().spoil(program, program.methods[0]);
  const std::string message = error_of(program);
  ASSERT_NE(message, "");
  EXPECT_THAT(message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Rules, VerifyRule, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Valid programs that a too strict reader might refuse.
TEST(Verify, AcceptsWhatExportsHold) {
  Program program = parse(test::make_blob());
  Method& method = program.methods[0];
  method.user_input_names = {"none", "x"};  // a None input has a name and no value
  method.inputs[2].index = 1;
  EXPECT_EQ(error_of(program), "");

  program.weights.push_back(program.weights[0]);  // equal bytes as another tensor
  program.weights[1].dtype = DType::i32;
  EXPECT_EQ(error_of(program), "");

  Arg number;  // the same value twice, an input, and a constant as outputs
  number.kind = Arg::Kind::integer;
  method.outputs.push_back({OutputKind::user, Arg::of_value(3), 1});
  method.outputs.push_back({OutputKind::user, Arg::of_value(0), 2});
  method.outputs.push_back({OutputKind::user, number, 3});
  EXPECT_EQ(error_of(program), "");

  method.outputs.push_back({OutputKind::input_mutation, Arg::of_value(3), 1});
  EXPECT_EQ(error_of(program), "");
  method.outputs.back().index = 0;  // None cannot be written to
  EXPECT_THAT(error_of(program), HasSubstr("user input 0 has no value to write to"));
}

// A graph with one value that calls the given graphs.
Method subgraph(Program& program, std::string name, const std::vector<std::int64_t>& callees) {
  Method graph;
  graph.name = std::move(name);
  graph.values = {program.methods[0].values[3], program.methods[0].values[3]};
  graph.inputs = {{0, InputKind::user, 0}};
  graph.outputs = {{OutputKind::user, Arg::of_value(0), 0}};
  Node node;
  node.op = static_cast<std::uint32_t>(program.ops.size());
  node.name = "call";
  node.outputs = {1};
  Op op{"higher_order.cond", {}};
  for (const std::int64_t callee : callees) {
    op.arg_names.push_back("graph");
    node.args.push_back({Arg::Kind::graph, callee, 0, {}, {}});
  }
  if (callees.empty()) return graph;
  program.ops.push_back(op);
  graph.nodes.push_back(node);
  return graph;
}

TEST(Verify, SubgraphsCallThoseBeforeThem) {
  Program program = parse(test::make_blob());
  program.subgraphs.push_back(subgraph(program, "a", {}));
  program.subgraphs.push_back(subgraph(program, "b", {0, 0}));
  EXPECT_EQ(error_of(program), "");
  for (const std::int64_t callee : {1, 2, -1}) {  // itself, one that does not exist
    Program bad = program;
    bad.subgraphs[1].nodes[0].args[0].i = callee;
    EXPECT_THAT(error_of(bad), HasSubstr("the sub-graphs that it may call end at 1, found " + std::to_string(callee)));
  }
  program.methods[0].nodes[0].args[2] = {Arg::Kind::graph, 2, 0, {}, {}};
  EXPECT_THAT(error_of(program), HasSubstr("the sub-graphs that it may call end at 2, found 2"));
}

TEST(Verify, SubgraphsHaveUserInputsAndOutputsAlone) {
  Program program = parse(test::make_blob());
  program.subgraphs.push_back(subgraph(program, "a", {}));
  Program bad = program;
  bad.subgraphs[0].values[0] = bad.methods[0].values[2];
  bad.subgraphs[0].inputs[0].kind = InputKind::state;
  EXPECT_THAT(error_of(bad), HasSubstr("a sub-graph has user inputs and weights only"));
  bad = program;
  bad.subgraphs[0].outputs[0].kind = OutputKind::input_mutation;
  EXPECT_THAT(error_of(bad), HasSubstr("a sub-graph has user outputs only"));
  bad = program;
  bad.subgraphs[0].name = "forward";
  EXPECT_THAT(error_of(bad), HasSubstr("'forward' appears twice"));
}

TEST(Verify, SubgraphsNestSoDeepAndMultiplySoOften) {
  Program program = parse(test::make_blob());
  program.subgraphs.push_back(subgraph(program, "0", {}));
  for (int i = 1; i <= kMaxGraphDepth; ++i) program.subgraphs.push_back(subgraph(program, std::to_string(i), {i - 1}));
  EXPECT_EQ(error_of(program), "");
  Program deep = program;
  deep.subgraphs.push_back(subgraph(deep, "deep", {kMaxGraphDepth}));
  EXPECT_THAT(error_of(deep), HasSubstr("call one another at most 8 deep"));

  // Each calls the one before it four times: 4^8 calls in a small file.
  Program wide = parse(test::make_blob());
  wide.subgraphs.push_back(subgraph(wide, "0", {}));
  for (int i = 1; i <= kMaxGraphDepth; ++i)
    wide.subgraphs.push_back(subgraph(wide, std::to_string(i), {i - 1, i - 1, i - 1, i - 1}));
  EXPECT_THAT(error_of(wide), HasSubstr("at most 4096 are allowed (max_graph_calls)"));
}

TEST(Verify, EmptyProgram) { EXPECT_EQ(error_of(Program{}), ""); }

}  // namespace
}  // namespace graft::ir
