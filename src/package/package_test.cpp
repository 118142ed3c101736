#include "package/open_package.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/sha256.h"
#include "graft/error.h"
#include "ir/test_blob.h"
#include "package/test_package.h"

namespace graft {
namespace {

using ir::test::BlobOptions;
using ir::test::make_blob;
using test::Blob;
using test::bytes_of;
using test::OpenPackage;
using test::PackageData;
using test::PteSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PackageTest : public ::testing::Test {
 protected:
  std::shared_ptr<OpenPackage> open(const PteSpec& spec, const std::vector<std::string>& data_files = {}) {
    return OpenPackage::open(folder_.write("model.pte", make_pte(spec)), data_files);
  }

  // The message of `Error`, or "" when the package opens.
  template <typename ErrorType>
  std::string error_of(const PteSpec& spec, const std::vector<std::string>& data_files = {}) {
    try {
      open(spec, data_files);
    } catch (const ErrorType& error) {
      return error.what();
    }
    return "";
  }

  static PteSpec simple() {
    PteSpec spec;
    spec.plans = {test::delegated_plan(make_blob())};
    spec.named = {{"w", bytes_of(64)}};
    return spec;
  }

  test::TemporaryFolder folder_;
};

TEST_F(PackageTest, FullyDelegatedMethod) {
  const auto package = open(simple());
  ASSERT_EQ(package->methods().size(), 1U);
  const PackageMethod& method = package->methods()[0];
  EXPECT_EQ(method.name, "forward");
  EXPECT_TRUE(method.fully_delegated);
  EXPECT_EQ(method.refusal, "");
  ASSERT_EQ(method.program.methods.size(), 1U);
  const ir::Method& graph = method.program.methods[0];
  EXPECT_EQ(graph.name, "forward");
  EXPECT_EQ(graph.in_spec, "et_in");
  EXPECT_EQ(graph.out_spec, "et_out");
  EXPECT_EQ(graph.user_input_names, std::vector<std::string>{"x"});
  EXPECT_EQ(graph.values[0].str(), "f32[s0 in 0..16, 4]");
  ASSERT_EQ(graph.outputs.size(), 2U);
  EXPECT_EQ(graph.outputs[0].kind, ir::OutputKind::state_mutation);
  EXPECT_EQ(graph.outputs[1].arg.value(), 3U);

  const PackageData data = package->data("w").value();
  EXPECT_EQ(Blob(data.bytes.begin(), data.bytes.end()), bytes_of(64));
  EXPECT_EQ(data.bytes.data(), package->file(data.file).bytes().data() + data.offset);
  EXPECT_FALSE(package->data("v"));
}

TEST_F(PackageTest, InlineBlobAndOldHeader) {
  PteSpec spec = simple();
  spec.plans[0].inline_blob = true;
  EXPECT_TRUE(open(spec)->methods()[0].fully_delegated);
  spec.leave_size_out = true;
  EXPECT_TRUE(open(spec)->methods()[0].fully_delegated);
}

TEST_F(PackageTest, BlobUnderTheMethodsName) {
  PteSpec spec = simple();
  spec.plans[0].name = "prefill";
  EXPECT_EQ(open(spec)->methods()[0].program.methods[0].name, "prefill");
}

TEST_F(PackageTest, WeightsInDataFiles) {
  PteSpec spec = simple();
  spec.named.clear();
  EXPECT_THAT(error_of<NotFound>(spec), AllOf(HasSubstr("model.pte"), HasSubstr("no weight 'w' (l.weight)")));
  const std::string ptd = folder_.write("w.ptd", test::make_ptd({{"v", bytes_of(3)}, {"w", bytes_of(64, 7)}}));
  const auto package = open(spec, {ptd});
  const PackageData data = package->data("w").value();
  EXPECT_EQ(data.file, 1U);
  EXPECT_EQ(data.bytes[0], std::byte{7});
  EXPECT_EQ(package->file(1).path(), ptd);

  EXPECT_THAT(error_of<NotFound>(spec, {ptd + "x"}), HasSubstr("w.ptdx"));
  EXPECT_THAT(error_of<InvalidProgram>(simple(), {ptd}), HasSubstr("data 'w' is in"));
  const std::string pte = folder_.write("again.pte", make_pte(simple()));
  EXPECT_THAT(error_of<InvalidProgram>(spec, {pte}), HasSubstr("again.pte': not a file of weights"));
  const std::string newer = folder_.write("newer.ptd", test::make_ptd({{"w", bytes_of(64)}}, 1));
  EXPECT_THAT(error_of<InvalidProgram>(spec, {newer}), HasSubstr("schema version 1"));
}

TEST_F(PackageTest, WeightOfAnotherSize) {
  PteSpec spec = simple();
  spec.named[0].second = bytes_of(60);
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("weight 'w' (l.weight) must have 64 bytes, '"));
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("has 60"));
}

TEST_F(PackageTest, Hashes) {
  const auto digest = sha256(bytes_of(64));
  BlobOptions options;
  options.sha256.assign(digest.begin(), digest.end());
  PteSpec spec = simple();
  spec.plans[0].blob = make_blob(options);
  open(spec)->verify_hashes();
  spec.named[0].second[5] = std::byte{99};
  const auto package = open(spec);  // reading weights is not part of opening
  EXPECT_THROW(package->verify_hashes(), InvalidProgram);
}

TEST_F(PackageTest, TwoMethodsShareWeightsAndStates) {
  PteSpec spec = simple();
  spec.plans.push_back(test::delegated_plan(make_blob(), "decode"));
  EXPECT_EQ(open(spec)->methods().size(), 2U);

  BlobOptions other_state;
  other_state.state_size = 5;
  spec.plans[1].blob = make_blob(other_state);
  EXPECT_THAT(error_of<InvalidProgram>(spec),
              HasSubstr("state 'h' is f32[4] in method 'forward' and f32[5] in method 'decode'"));

  BlobOptions other_content;
  other_content.sha256.assign(32, 1);
  spec.plans[1].blob = make_blob(other_content);
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("weight 'w' has 64 bytes in method 'forward'"));

  spec.plans[1] = spec.plans[0];
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("method 'forward' appears twice"));
}

TEST_F(PackageTest, MethodsAgreeOnHowAStateStarts) {
  PteSpec spec = simple();
  spec.named.push_back({"h0", bytes_of(16)});
  spec.named.push_back({"h1", bytes_of(16)});
  BlobOptions options;
  options.initial_key = "h0";
  options.initial_sha256.assign(32, 5);
  spec.plans = {test::delegated_plan(make_blob(options)), test::delegated_plan(make_blob(), "decode")};
  EXPECT_THAT(error_of<InvalidProgram>(spec),
              HasSubstr("state 'h' starts with other values in method 'decode' than in method 'forward'"));
  options.initial_key = "h1";  // equal content under another key
  spec.plans[1].blob = make_blob(options);
  EXPECT_EQ(open(spec)->methods().size(), 2U);
  options.initial_sha256.assign(32, 6);
  spec.plans[1].blob = make_blob(options);
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("starts with other values"));
}

// Everything that the plan routes around the delegate is part of the graph.
TEST_F(PackageTest, OutputsThatTheDelegateDoesNotMake) {
  PteSpec spec = simple();
  test::PlanSpec& plan = spec.plans[0];
  plan.values = {test::tensor({16, 4}),
                 test::tensor({16, 4}),
                 test::tensor({2, 3}),
                 test::number(test::fbe::KernelTypes::Int, 7),
                 test::number(test::fbe::KernelTypes::Bool, 1),
                 test::number(test::fbe::KernelTypes::Double, 0, 0.5),
                 {},
                 test::tensor({2}, 1)};
  plan.values[7].scalar_type = test::fbe::ScalarType::LONG;
  test::EValueSpec text;
  text.type = test::fbe::KernelTypes::String;
  text.text = "hello";
  plan.values.push_back(text);
  plan.inputs = {2, 6, 0, 3};                        // an unread tensor, None, x, an unread number
  plan.outputs = {6, 1, 2, 1, 3, 4, 5, 7, 8, 0, 7};  // results, inputs, constants
  plan.instructions[0].args = {0, 1};
  spec.constants = {bytes_of(16, 40)};
  const auto package = open(spec);
  ASSERT_TRUE(package->methods()[0].fully_delegated) << package->methods()[0].refusal;
  const ir::Program& program = package->methods()[0].program;
  const ir::Method& graph = program.methods[0];
  EXPECT_EQ(graph.user_input_names, (std::vector<std::string>{"input_0", "input_1", "x", "input_3"}));
  std::vector<const ir::Value*> users(4);
  for (const ir::Input& input : graph.inputs)
    if (input.kind == ir::InputKind::user) users[input.index] = &graph.values[input.value];
  EXPECT_EQ(users[0]->str(), "f32[2, 3]");
  EXPECT_EQ(users[1], nullptr);
  EXPECT_EQ(users[2]->name, "x");
  EXPECT_EQ(users[3]->str(), "int 7");

  ASSERT_EQ(graph.outputs.size(), 12U);  // one writes the state
  const auto output = [&](std::size_t i) -> const ir::Arg& { return graph.outputs[i + 1].arg; };
  EXPECT_EQ(output(0).kind, ir::Arg::Kind::none);
  EXPECT_EQ(output(1).value(), 3U);
  EXPECT_EQ(&graph.values[output(2).value()], users[0]);
  EXPECT_EQ(output(3).value(), 3U);
  EXPECT_EQ(&graph.values[output(4).value()], users[3]);
  EXPECT_EQ(output(5).kind, ir::Arg::Kind::boolean);
  EXPECT_EQ(output(5).i, 1);
  EXPECT_EQ(output(6).f, 0.5);
  EXPECT_EQ(graph.values[output(7).value()].str(), "i64[2]");
  EXPECT_EQ(output(8).s, "hello");
  EXPECT_EQ(&graph.values[output(9).value()], users[2]);
  EXPECT_EQ(output(10).value(), output(7).value());
  const PackageData constant = package->data(program.weights[1].key).value();
  EXPECT_EQ(Blob(constant.bytes.begin(), constant.bytes.end()), bytes_of(16, 40));
}

TEST_F(PackageTest, ConstantsOutsideThePte) {
  PteSpec spec = simple();
  spec.plans[0].values.push_back(test::tensor({4}));
  spec.plans[0].values.back().external = "c";
  spec.plans[0].outputs = {2};
  EXPECT_THAT(error_of<NotFound>(spec), HasSubstr("no weight 'c'"));
  const std::string ptd = folder_.write("c.ptd", test::make_ptd({{"c", bytes_of(16)}}));
  EXPECT_TRUE(open(spec, {ptd})->methods()[0].fully_delegated);
}

TEST_F(PackageTest, ConstantsHandedToTheDelegate) {
  PteSpec spec = simple();
  test::PlanSpec& plan = spec.plans[0];
  plan.values[0].dynamism = test::fbe::TensorShapeDynamism::STATIC;
  plan.values[0].buffer = 1;
  plan.inputs.clear();
  spec.constants = {bytes_of(16 * 4 * 4)};
  const auto package = open(spec);
  ASSERT_TRUE(package->methods()[0].fully_delegated) << package->methods()[0].refusal;
  const ir::Program& program = package->methods()[0].program;
  EXPECT_EQ(program.methods[0].inputs.back().kind, ir::InputKind::weight);
  EXPECT_EQ(package->data(program.weights[1].key)->bytes.size(), 256U);
  spec.constants = {bytes_of(16)};
  EXPECT_THAT(error_of<InvalidProgram>(spec), HasSubstr("constant 1 (256 bytes at 0) reaches beyond"));
}

TEST_F(PackageTest, MethodWithoutACall) {
  PteSpec spec;
  spec.plans.resize(1);
  spec.plans[0].name = "get_max_seq_len";
  spec.plans[0].values = {test::number(test::fbe::KernelTypes::Int, 128)};
  spec.plans[0].outputs = {0};
  spec.plans[0].inline_blob = true;  // no segment at all: a file without extended header
  const auto package = open(spec);
  ASSERT_TRUE(package->methods()[0].fully_delegated);
  EXPECT_EQ(package->methods()[0].program.methods[0].outputs[0].arg.i, 128);
}

// ExecuTorch copies a mutated input back with a kernel and returns the input in front of the outputs.
TEST_F(PackageTest, MutatedInputs) {
  PteSpec spec = simple();
  test::PlanSpec& plan = spec.plans[0];
  plan.values.push_back(test::number(test::fbe::KernelTypes::Bool, 0));
  plan.operators = {{"aten::copy_", ""}};
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {0, 1, 2, 0}});
  plan.outputs = {0, 1};
  const auto package = open(spec);
  ASSERT_TRUE(package->methods()[0].fully_delegated) << package->methods()[0].refusal;
  const ir::Method& graph = package->methods()[0].program.methods[0];
  ASSERT_EQ(graph.outputs.size(), 3U);
  EXPECT_EQ(graph.outputs[1].kind, ir::OutputKind::input_mutation);
  EXPECT_EQ(graph.outputs[1].index, 0U);
  EXPECT_EQ(graph.outputs[1].arg.value(), 3U);
  EXPECT_EQ(graph.outputs[2].kind, ir::OutputKind::user);

  plan.instructions[1].args = {1, 0, 2, 1};  // writes to a value that is no input
  EXPECT_FALSE(open(spec)->methods()[0].fully_delegated);
  EXPECT_EQ(open(spec)->methods()[0].refusal, "aten::copy_");
}

TEST_F(PackageTest, WhatIsLeftToExecuTorchIsNamed) {
  PteSpec spec = simple();
  test::PlanSpec& plan = spec.plans[0];
  plan.operators = {{"aten::add", "out"}, {"aten::mul", "out"}};
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 1, {}});
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {}});
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {}});
  EXPECT_FALSE(open(spec)->methods()[0].fully_delegated);
  EXPECT_EQ(open(spec)->methods()[0].refusal, "aten::add.out, aten::mul.out");
  EXPECT_TRUE(open(spec)->methods()[0].program.methods.empty());

  plan.instructions.resize(1);
  plan.delegate = "XnnpackBackend";
  EXPECT_EQ(open(spec)->methods()[0].refusal, "delegate XnnpackBackend");

  plan.delegate = "GraftBackend";
  plan.instructions.push_back(plan.instructions[0]);
  EXPECT_EQ(open(spec)->methods()[0].refusal, "2 calls of GraftBackend instead of one");

  plan.instructions[1].type = test::fbe::InstructionArguments::MoveCall;
  EXPECT_EQ(open(spec)->methods()[0].refusal, "MoveCall");

  plan.instructions.resize(1);
  plan.values.push_back(test::tensor({4}));
  plan.values.back().planned = true;
  plan.outputs.push_back(2);
  EXPECT_EQ(open(spec)->methods()[0].refusal, "output 1 is a buffer that ExecuTorch owns");
}

TEST_F(PackageTest, CallsThatDoNotFitTheBlob) {
  const auto spoiled = [&](const std::function<void(test::PlanSpec&)>& spoil) {
    PteSpec spec = simple();
    spoil(spec.plans[0]);
    return error_of<InvalidProgram>(spec);
  };
  EXPECT_THAT(spoiled([](auto& p) { p.instructions[0].args = {0}; }),
              HasSubstr("method 'forward': the delegate's program has 1 inputs and 1 outputs, its call has 1"));
  EXPECT_THAT(spoiled([](auto& p) {
                p.instructions[0].args = {0, 5};
              }),
              HasSubstr("there are 2 values, found index 5"));
  EXPECT_THAT(spoiled([](auto& p) { p.instructions[0].args = {-1, 1}; }), HasSubstr("found index -1"));
  EXPECT_THAT(spoiled([](auto& p) { p.instructions[0].args = {0, 0}; }), HasSubstr("is an input of the method"));
  EXPECT_THAT(spoiled([](auto& p) { p.instructions[0].index = 1; }), HasSubstr("there are 1 delegates, found index 1"));
  EXPECT_THAT(spoiled([](auto& p) { p.inputs = {9}; }), HasSubstr("input 0: there are 2 values, found index 9"));
  EXPECT_THAT(spoiled([](auto& p) { p.inputs = {0, 0}; }), HasSubstr("input 1 is the same tensor as input 0"));
  EXPECT_THAT(spoiled([](auto& p) { p.outputs = {9}; }), HasSubstr("output 0: there are 2 values"));
  EXPECT_THAT(spoiled([](auto& p) { p.values[0].sizes = {4}; }),
              HasSubstr("the graph expects f32[s0 in 0..16, 4], the package passes a tensor of rank 1"));
  EXPECT_THAT(spoiled([](auto& p) { p.values[0].scalar_type = test::fbe::ScalarType::LONG; }),
              HasSubstr("scalar type LONG"));
  EXPECT_THAT(spoiled([](auto& p) { p.values[0] = test::number(test::fbe::KernelTypes::Int, 1); }),
              HasSubstr("the package passes Int"));
  EXPECT_THAT(spoiled([](auto& p) { p.blob[4] = std::byte{0}; }),
              HasSubstr("the delegate's program: not a graft program"));
}

TEST_F(PackageTest, OtherFiles) {
  EXPECT_THROW(OpenPackage::open((folder_.path() / "none.pte").string()), NotFound);
  EXPECT_THROW(OpenPackage::open(folder_.path().string()), SystemError);
  EXPECT_THROW(OpenPackage::open(folder_.write("empty.pte", {})), InvalidProgram);
  EXPECT_THROW(OpenPackage::open(folder_.write("other.pte", bytes_of(200))), InvalidProgram);
  PteSpec newer = simple();
  newer.version = 1;
  EXPECT_THAT(error_of<InvalidProgram>(newer), HasSubstr("schema version 1"));
}

// Named data at offset 5 GB of a sparse file.
TEST_F(PackageTest, Above4GB) {
  PteSpec spec = simple();
  spec.named_gap = std::uint64_t{5} << 30;
  const auto [head, segments] = make_pte_parts(spec);
  const std::string path = folder_.write("large.pte", head);
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  for (const test::Segment& segment : segments) {
    const auto at = static_cast<off_t>(head.size() + segment.offset);
    ASSERT_EQ(::pwrite(file, segment.bytes.data(), segment.bytes.size(), at),
              static_cast<ssize_t>(segment.bytes.size()));
  }
  ::close(file);
  const auto package = OpenPackage::open(path);
  const PackageData data = package->data("w").value();
  EXPECT_GT(data.offset, std::uint64_t{5} << 30);
  EXPECT_EQ(Blob(data.bytes.begin(), data.bytes.end()), bytes_of(64));

  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(std::int64_t{5} << 30)), 0);
  EXPECT_THROW(OpenPackage::open(path), InvalidProgram);
}

}  // namespace
}  // namespace graft
