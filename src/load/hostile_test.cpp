#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/test_errors.h"
#include "graft/graft.h"
#include "graft_generated.h"
#include "load/test_graph.h"
#include "package/test_package.h"

// Failures found with mutated files: programs that no exporter writes end with an error.
namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::expect_error;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::of_list;
using test::tensor;

// Loads the program and runs it on x = four zeros.
void load_and_run(GraphBuilder& graph) {
  Session session(graph.build());
  std::vector<float> data(4);
  session.run("forward", std::vector{tensor(data, {4})});
}

TEST(Hostile, AMutationOfAnotherSizeIsAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {dynamic(0, 8, "n")});
  const auto part = graph.node(
      "aten.slice.Tensor",
      {{"self", Arg::of_value(x)}, {"dim", of_int(0)}, {"start", of_int(0)}, {"end", of_int(1)}, {"step", of_int(1)}},
      DType::f32, {dynamic(0, 8, "n")});
  graph.output(part);
  ir::Output out;
  out.kind = ir::OutputKind::input_mutation;
  out.arg = Arg::of_value(part);
  graph.method().outputs.push_back(out);
  expect_error<InvalidProgram>([&] { load_and_run(graph); }, "writes f32[1] to input 0, which is f32[4]");
}

TEST(Hostile, AnotherNumberOfOutputsIsAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  graph.output(graph.node("aten.relu.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(4)}));
  graph.method().values.push_back({"more", ir::ValueKind::tensor, DType::f32, {fixed(4)}});
  graph.method().nodes[0].outputs.push_back(static_cast<ir::ValueId>(graph.method().values.size() - 1));
  expect_error<InvalidProgram>([&] { load_and_run(graph); }, "has 1 outputs");
}

TEST(Hostile, ANumberInThePlaceOfATensorIsAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  graph.output(graph.node("aten.relu.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(4)}));
  graph.method().values.back().kind = ir::ValueKind::integer;
  graph.method().values.back().dims.clear();
  expect_error<Error>([&] { load_and_run(graph); }, "n0");
}

TEST(Hostile, DtypesBetweenWhichNothingConvertsAreAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  graph.output(graph.node("aten.abs.default", {{"self", Arg::of_value(x)}}, DType::b8, {fixed(4)}));
  expect_error<Error>([&] { load_and_run(graph); }, "n0");
}

// Each constant is twice as large as the one before: folding all of them would take 2^30 times the weight.
TEST(Hostile, FoldingIsBounded) {
  GraphBuilder graph;
  constexpr std::int64_t kBytes = 64 * 1024;
  std::int64_t size = kBytes / 4;
  auto x = graph.weight("w", DType::f32, {size});
  for (int i = 0; i < 30; ++i) {
    size *= 2;
    x = graph.node("aten.cat.default", {{"tensors", of_list({Arg::of_value(x), Arg::of_value(x)})}, {"dim", of_int(0)}},
                   DType::f32, {fixed(size)});
  }
  graph.output(x);
  LoadOptions options;
  options.max_plan_bytes = INT64_C(1) << 30;
  const auto program = graph.build(options);
  EXPECT_LE(program->stats().constant_bytes, 10u * kBytes + 1024 * 1024);
  Session session(program);
  expect_error<Unsupported>([&] { session.output_values("forward", {}); }, "at most 1073741824 are allowed");
}

TEST(Hostile, ANumberThatNoIntegerHoldsIsAnError) {
  for (const double value : {-std::numeric_limits<double>::infinity(), 1e19, std::nan("")}) {
    GraphBuilder graph;
    graph.output(graph.node("aten.scalar_tensor.default", {{"s", test::of_real(value)}}, DType::i64, {}));
    expect_error<InvalidArgument>([&] { graph.build(); }, "cannot be converted to i64 without overflow");
  }
}

TEST(Hostile, ANodeWithoutOutputsIsAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  graph.node("aten.sqrt.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(4)});
  graph.output(x);
  graph.method().nodes[0].outputs.clear();
  expect_error<Error>([&] { load_and_run(graph); }, "without outputs");
}

// For a slice of one element the step does not matter, however large.
TEST(Hostile, StepsOfASliceDoNotOverflow) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  graph.output(graph.node("aten.slice.Tensor",
                          {{"self", Arg::of_value(x)},
                           {"dim", of_int(0)},
                           {"start", of_int(1)},
                           {"end", of_int(4)},
                           {"step", of_int(INT64_C(1) << 62)}},
                          DType::f32, {fixed(1)}));
  Session session(graph.build());
  std::vector<float> data{0, 1, 2, 3};
  EXPECT_EQ(test::floats(session.run("forward", std::vector{tensor(data, {4})})[0]), std::vector<float>{1});
}

TEST(Hostile, AListOfOneTableOverAndOverIsAnError) {
  flatbuffers::FlatBufferBuilder b;
  const auto value = fb::CreateValueDirect(b, "x");
  const std::vector<flatbuffers::Offset<fb::Value>> values(300000, value);
  const std::vector<flatbuffers::Offset<fb::Method>> methods = {fb::CreateMethodDirect(b, "forward", &values)};
  const auto list = b.CreateVector(methods);
  fb::ProgramBuilder program(b);
  program.add_major(ir::kFormatMajor);
  program.add_methods(list);
  fb::FinishProgramBuffer(b, program.Finish());
  expect_error<InvalidProgram>([&] { ir::parse(std::as_bytes(std::span(b.GetBufferPointer(), b.GetSize()))); },
                               "a list of 300000 items");
}

// A result of another type than the operator's: kernels write elements of the type that they compute.
TEST(Hostile, DtypesOfDistancesAndProductsAreChecked) {
  for (const DType left : {DType::f32, DType::f16, DType::f64, DType::i8})
    for (const DType right : {DType::f32, DType::bf16, DType::f64, DType::u8})
      for (const DType result : {DType::f32, DType::f16, DType::f64, DType::i8, DType::i64, DType::b8})
        for (const char* target : {"aten._cdist_forward.default", "aten.mm.default", "aten.bmm.default",
                                   "aten.linear.default", "aten.matmul.default"}) {
          if (left == right && right == result) continue;
          GraphBuilder graph;
          const bool cdist = std::string_view(target).find("cdist") != std::string_view::npos;
          const bool batch = std::string_view(target).find("bmm") != std::string_view::npos;
          const std::vector<ir::Dim> dims =
              batch ? std::vector{fixed(2), fixed(4), fixed(4)} : std::vector{fixed(4), fixed(4)};
          const Shape shape = batch ? Shape{2, 4, 4} : Shape{4, 4};
          const auto a = graph.input("a", left, dims), b = graph.input("b", right, dims);
          const Arg x = Arg::of_value(a), y = Arg::of_value(b);
          const bool linear = std::string_view(target).find("linear") != std::string_view::npos;
          const bool matmul = std::string_view(target).find("matmul") != std::string_view::npos;
          const GraphBuilder::Args args =
              cdist
                  ? GraphBuilder::Args{{"x1", x}, {"x2", y}, {"p", test::of_real(2)}, {"compute_mode", test::of_none()}}
              : linear ? GraphBuilder::Args{{"input", x}, {"weight", y}, {"bias", test::of_none()}}
              : matmul ? GraphBuilder::Args{{"self", x}, {"other", y}}
                       : GraphBuilder::Args{{"self", x}, {"mat2", y}};
          graph.output(graph.node(target, args, result, dims));
          const std::string what = std::string(target) + " " + std::string(name(left)) + " " +
                                   std::string(name(right)) + " -> " + std::string(name(result));
          try {
            Session session(graph.build());
            std::vector<double> first(32, 0.5), second(32, 0.5);
            const std::vector<Value> outputs =
                session.run("forward", std::vector{tensor(first, left, shape), tensor(second, right, shape)});
            ADD_FAILURE() << what << " ran";
          } catch (const Error& error) {
            EXPECT_STRNE(error.what(), "") << what;
          }
        }
}

// What moves elements writes those of its input's type, whatever the program declares.
TEST(Hostile, DtypesOfWhatMovesElementsAreChecked) {
  const std::vector<ir::Dim> dims = {fixed(1), fixed(4), fixed(8)};
  for (const DType from : {DType::f32, DType::i8, DType::i64, DType::b8})
    for (const DType to : {DType::f32, DType::f16, DType::f64, DType::i8, DType::i64, DType::b8})
      for (const char* target : {"aten.replication_pad1d.default", "aten.reflection_pad1d.default", "aten.triu.default",
                                 "aten.tril.default", "aten.masked_scatter.default"}) {
        GraphBuilder graph;
        const auto x = graph.input("x", from, dims);
        const bool masked = std::string_view(target).find("masked") != std::string_view::npos;
        const bool pad = std::string_view(target).find("pad") != std::string_view::npos;
        GraphBuilder::Args args = {{"self", Arg::of_value(x)}};
        if (pad) args.emplace_back("padding", test::of_ints({0, 0}));
        if (masked) {
          args.emplace_back("mask", Arg::of_value(graph.input("mask", DType::b8, dims)));
          args.emplace_back("source", Arg::of_value(x));
        } else if (!pad) {
          args.emplace_back("diagonal", test::of_int(0));
        }
        graph.output(graph.node(target, args, to, dims));
        const std::string what = str(target, ' ', name(from), " -> ", name(to));
        std::vector<std::int64_t> elements(32, 0), mask(4, 0);
        std::vector<Value> inputs = {tensor(elements, from, {1, 4, 8})};
        if (masked) inputs.push_back(tensor(mask, DType::b8, {1, 4, 8}));
        try {
          Session session(graph.build());
          session.run("forward", inputs);
          EXPECT_EQ(from, to) << what << " ran";
        } catch (const Error& error) {
          EXPECT_NE(from, to) << what << ": " << error.what();
        }
      }
}

TEST(Hostile, DtypesOfFurtherResultsAreChecked) {
  const auto boolean = [](bool value) { return Arg{Arg::Kind::boolean, value ? 1 : 0, 0, {}, {}}; };
  const std::vector<ir::Dim> dims = {fixed(2), fixed(4), fixed(8)}, channels = {fixed(4)};
  for (const DType to : {DType::f32, DType::f16, DType::f64, DType::i8, DType::i32, DType::i64, DType::b8}) {
    struct Case {
      const char* target;
      GraphBuilder::Args args;
      std::vector<ir::Dim> result, further;
      DType right;
    };
    const auto no = boolean(false);
    for (const Case& c :
         {Case{"aten.max_pool1d_with_indices.default",
               {{"kernel_size", test::of_ints({1})},
                {"stride", test::of_ints({1})},
                {"padding", test::of_ints({0})},
                {"dilation", test::of_ints({1})},
                {"ceil_mode", no}},
               dims,
               dims,
               DType::i64},
          Case{"aten.sort.default", {{"dim", test::of_int(1)}, {"descending", no}}, dims, dims, DType::i64},
          Case{"aten._native_batch_norm_legit.no_stats",
               {{"weight", test::of_none()},
                {"bias", test::of_none()},
                {"training", boolean(true)},
                {"momentum", test::of_real(0.1)},
                {"eps", test::of_real(1e-5)}},
               dims,
               channels,
               DType::f32}}) {
      GraphBuilder graph;
      const bool norm = std::string_view(c.target).find("norm") != std::string_view::npos;
      const auto x = graph.input("x", DType::f32, dims);
      GraphBuilder::Args args = {{norm ? "input" : "self", Arg::of_value(x)}};
      args.insert(args.end(), c.args.begin(), c.args.end());
      graph.output(graph.node(c.target, args, DType::f32, c.result));
      for (int i = 0; i < (norm ? 2 : 1); ++i) graph.output(graph.further_result(to, c.further));
      const std::string what = str(c.target, " -> ", name(to));
      std::vector<float> elements(64, 0.5F);
      try {
        Session session(graph.build());
        session.run("forward", std::vector{tensor(elements, DType::f32, {2, 4, 8})});
        EXPECT_TRUE(to == c.right || (norm && is_float(to))) << what << " ran";
      } catch (const Error& error) {
        EXPECT_NE(to, c.right) << what << ": " << error.what();
      }
    }
  }
}

// What mutated packages had in the place of the bounds of hardtanh.
TEST(Hostile, ArgumentsOfOtherKindsAreAnError) {
  const std::vector<Arg> others = {test::of_none(), test::of_list({}), test::of_list({of_int(1)}),
                                   Arg{Arg::Kind::string, 0, 0, "x", {}}, test::of_real(std::nan(""))};
  for (const char* target : {"aten.hardtanh.default", "aten.clamp.default", "aten.leaky_relu.default",
                             "aten.elu.default", "aten.threshold.default", "aten.pow.Tensor_Scalar", "aten.add.Tensor"})
    for (const Arg& first : others)
      for (const Arg& second : others) {
        GraphBuilder graph;
        const auto x = graph.input("x", DType::f32, {fixed(4)});
        const std::string_view name = target;
        GraphBuilder::Args args = {{"self", Arg::of_value(x)}};
        const auto add = [&](const char* argument, const Arg& arg) { args.emplace_back(argument, arg); };
        if (name.find("hardtanh") != std::string_view::npos) add("min_val", first), add("max_val", second);
        if (name.find("clamp") != std::string_view::npos) add("min", first), add("max", second);
        if (name.find("leaky") != std::string_view::npos) add("negative_slope", first);
        if (name == "aten.elu.default") add("alpha", first), add("scale", second), add("input_scale", second);
        if (name.find("threshold") != std::string_view::npos) add("threshold", first), add("value", second);
        if (name.find("pow") != std::string_view::npos) add("exponent", first);
        if (name.find("add") != std::string_view::npos) add("other", first), add("alpha", second);
        graph.output(graph.node(target, args, DType::f32, {fixed(4)}));
        try {
          load_and_run(graph);  // some have a meaning
        } catch (const Error& error) {
          EXPECT_STRNE(error.what(), "") << target;
        }
      }
}

TEST(Hostile, APipeIsNotWaitedFor) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "pipe.pte";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error<SystemError>([&] { Program::load(path); }, "not a regular file");
}

}  // namespace
}  // namespace graft
