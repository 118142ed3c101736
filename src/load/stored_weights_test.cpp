// Programs whose weights are stored in another type than their values.
#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/aligned.h"
#include "graft/quantize.h"
#include "kernel/matmul/block_test_util.h"
#include "kernel/matmul/blocks_vec.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using test::tensor;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 24, kDepth = 256;

struct StoredData {
  Stored stored;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

StoredData stored_data(const Stored& stored) {
  const std::vector<float> values = test::random_values(kRows * kDepth, 5);
  StoredData out{stored, {}, {}};
  if (!stored.is_plain()) {
    out.bytes = test::quantized(stored.block, values, kDepth);
    out.values = test::dequantized(stored.block, out.bytes, kDepth);
    return out;
  }
  out.bytes.resize(values.size() * 2);
  out.values.resize(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  if (stored.dtype == DType::bf16) {
    auto* to = reinterpret_cast<ggml_bf16_t*>(out.bytes.data());
    ggml_fp32_to_bf16_row(values.data(), to, count);
    ggml_bf16_to_fp32_row(to, out.values.data(), count);
  } else {
    auto* to = reinterpret_cast<ggml_fp16_t*>(out.bytes.data());
    ggml_fp32_to_fp16_row(values.data(), to, count);
    ggml_fp16_to_fp32_row(to, out.values.data(), count);
  }
  return out;
}

// embedding, linear and, with `other`, w + w of a tied weight.
struct Graph : GraphBuilder {
  explicit Graph(bool other) {
    const auto w = weight("w", std::vector<float>(kRows * kDepth), {kRows, kDepth});
    const auto ids = input("ids", DType::i64, {fixed(3)});
    const auto rows = node("aten.embedding.default",
                           {{"weight", Arg::of_value(w)},
                            {"indices", Arg::of_value(ids)},
                            {"padding_idx", test::of_int(-1)},
                            {"scale_grad_by_freq", test::of_int(0)},
                            {"sparse", test::of_int(0)}},
                           DType::f32, {fixed(3), fixed(kDepth)});
    output(rows);
    output(node("aten.linear.default",
                {{"input", Arg::of_value(rows)}, {"weight", Arg::of_value(w)}, {"bias", test::of_none()}}, DType::f32,
                {fixed(3), fixed(kRows)}));
    if (other)
      output(node("aten.add.Tensor",
                  {{"self", Arg::of_value(w)}, {"other", Arg::of_value(w)}, {"alpha", test::of_int(1)}}, DType::f32,
                  {fixed(kRows), fixed(kDepth)}));
  }

  std::shared_ptr<const Program> build_with(const StoredData& data, bool pack = true) {
    return build_with(data, data.bytes, pack);
  }
  std::shared_ptr<const Program> build_with(const StoredData& data, std::span<const std::byte> bytes, bool pack) {
    const auto find = [&data, bytes](const ir::Weight&) {
      return FoundWeight{bytes, FoundWeight::Origin::file, "the test", data.stored};
    };
    const auto again = [this](std::size_t) { return program(); };
    LoadOptions options;
    options.pack_weights = pack;
    return Internal::program(build_program({program()}, find, again, options, "test"));
  }
};

std::vector<Stored> all_stored() {
  std::vector<Stored> out = {Stored::as(DType::f16), Stored::as(DType::bf16)};
  for (const BlockType type : test::all_block_types()) out.push_back(Stored::as_blocks(type));
  return out;
}

class StoredWeightsRun : public ::testing::Test {
 protected:
  void expect_results(const std::shared_ptr<const Program>& program, const StoredData& data, bool other) {
    Session session(program);
    const std::vector<Value> out = session.run("forward", std::vector{tensor(ids_, DType::i64, {3})});
    const auto at = [](const Value& v, std::int64_t i) { return static_cast<const float*>(v.tensor.data)[i]; };
    for (std::int64_t r = 0; r < 3; ++r) {
      const float* row = data.values.data() + ids_[static_cast<std::size_t>(r)] * kDepth;
      for (std::int64_t k = 0; k < kDepth; ++k) ASSERT_EQ(at(out[0], r * kDepth + k), row[k]) << data.stored.str();
      for (std::int64_t n = 0; n < kRows; ++n) {
        double sum = 0, sizes = 0;
        for (std::int64_t k = 0; k < kDepth; ++k) {
          const double product = static_cast<double>(row[k]) * static_cast<double>(data.values[n * kDepth + k]);
          sum += product;
          sizes += std::abs(product);
        }
        ASSERT_NEAR(at(out[1], r * kRows + n), sum, (data.stored.is_plain() ? 1e-6 : 0.02) * sizes)
            << data.stored.str();
      }
    }
    if (!other) return;
    for (std::int64_t i = 0; i < kRows * kDepth; ++i) ASSERT_EQ(at(out[2], i), 2 * data.values[i]) << data.stored.str();
  }
  std::vector<std::int64_t> ids_ = {23, 0, 5};
};

TEST_F(StoredWeightsRun, NothingIsConvertedWhereProductsAndLookupsReadIt) {
  Graph graph(false);
  for (const Stored& stored : all_stored()) {
    const StoredData data = stored_data(stored);
    const auto program = graph.build_with(data);
    expect_results(program, data, false);
    const ProgramStats stats = program->stats();
    EXPECT_EQ(stats.weight_bytes, data.bytes.size());
    EXPECT_EQ(stats.converted_bytes + stats.copied_bytes + stats.constant_bytes, 0U) << stored.str();
    EXPECT_THAT(program->describe(), HasSubstr("\"" + stored.str() + "\": {\n          \"count\": 1"));
    program->shrink();
    Session(program).run("forward", std::vector{tensor(ids_, DType::i64, {3})});
    expect_results(program, data, false);
  }
}

TEST_F(StoredWeightsRun, PanelsTakeThePlaceOfBlocks) {
  Graph graph(false);
  std::uint64_t packed = 0;
  for (const BlockType type : test::all_block_types()) {
    const StoredData data = stored_data(Stored::as_blocks(type));
    EXPECT_EQ(graph.build_with(data, false)->stats().packed_bytes, 0U);
    expect_results(graph.build_with(data, false), data, false);
    const ProgramStats stats = graph.build_with(data)->stats();
    packed += stats.packed_count;
    // 24 rows are padded to 32; scales of 6 bits take 8 (q3_K has the most of them), digits to the base of 3 two bits.
    const std::size_t percent = block_type_name(type) == "tq1_0" ? 123 : 104;
    EXPECT_LE(stats.packed_bytes, data.bytes.size() * 32 / 24 * percent / 100);
  }
  EXPECT_EQ(packed > 0, simd::panels() != nullptr);
}

// A package's panels are read in place, and unpacked to blocks for operators that read blocks.
TEST_F(StoredWeightsRun, PanelsOfThePackage) {
  for (const BlockType type : test::all_block_types()) {
    if (!panel_format_of(type)) continue;
    const StoredData blocks = stored_data(Stored::as_blocks(type));
    const Shape shape{kRows, kDepth};
    const std::size_t count = packed_byte_count(block_type_name(type), shape);
    const AlignedMemory memory(count + kAlignment);
    for (const std::size_t shift : {std::size_t{0}, std::size_t{2}}) {
      const std::span<std::byte> panels(memory.data() + shift, count);
      pack_blocks(blocks.bytes, block_type_name(type), shape, panels);
      StoredData packed = blocks;
      packed.stored.kind = Stored::Kind::panels;
      for (const bool other : {false, true}) {
        Graph graph(other);
        for (const bool pack : {true, false}) {
          const auto program = graph.build_with(packed, panels, pack);
          expect_results(program, blocks, other);
          const ProgramStats stats = program->stats();
          const bool in_panels = pack && simd::panels() != nullptr;
          EXPECT_EQ(stats.packed_count, in_panels && shift > 0 ? 1U : 0U);
          EXPECT_EQ(stats.copied_count, in_panels && !other ? 0U : 1U);
          program->shrink();
          expect_results(program, blocks, other);  // the graph is read again
        }
      }
    }
  }
}

// The activation that alone reads a product becomes its epilogue, as with f32 weights.
TEST_F(StoredWeightsRun, ActivationsBecomePartOfTheProduct) {
  GraphBuilder graph;
  const StoredData data = stored_data(Stored::as_blocks(*find_block_type("q8_0")));
  const auto w = graph.weight("w", std::vector<float>(kRows * kDepth), {kRows, kDepth});
  const auto x = graph.input("x", DType::f32, {fixed(2), fixed(kDepth)});
  const auto sum = graph.node("aten.linear.default",
                              {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", test::of_none()}},
                              DType::f32, {fixed(2), fixed(kRows)});
  graph.output(graph.node("aten.relu.default", {{"self", Arg::of_value(sum)}}, DType::f32, {fixed(2), fixed(kRows)}));
  const auto find = [&data](const ir::Weight&) {
    return FoundWeight{data.bytes, FoundWeight::Origin::file, "the test", data.stored};
  };
  const auto again = [&graph](std::size_t) { return graph.program(); };
  Session session(Internal::program(build_program({graph.program()}, find, again, {}, "test")));
  std::vector<float> rows = test::random_values(2 * kDepth, 6);
  const std::vector<Value> out = session.run("forward", std::vector{tensor(rows, {2, kDepth})});
  EXPECT_EQ(session.counters().kernels_launched, 1U);
  int zeros = 0;
  for (std::int64_t i = 0; i < 2 * kRows; ++i) {
    double dot = 0;
    for (std::int64_t k = 0; k < kDepth; ++k)
      dot +=
          static_cast<double>(rows[i / kRows * kDepth + k]) * static_cast<double>(data.values[i % kRows * kDepth + k]);
    const float found = static_cast<const float*>(out[0].tensor.data)[i];
    EXPECT_NEAR(found, std::max(dot, 0.0), 0.5);
    zeros += found == 0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 5);
}

TEST_F(StoredWeightsRun, AnyOtherUseReadsOneConversion) {
  Graph graph(true);
  for (const Stored& stored : all_stored()) {
    const StoredData data = stored_data(stored);
    const auto program = graph.build_with(data);
    expect_results(program, data, true);
    const ProgramStats stats = program->stats();
    EXPECT_EQ(stats.converted_count, 1U);
    EXPECT_EQ(stats.converted_bytes, kRows * kDepth * sizeof(float));
    Session session(program);
    program->shrink();
    expect_results(program, data, true);  // the graph is read again
  }
}

}  // namespace
}  // namespace graft
