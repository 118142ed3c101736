#define GRAFT_ISA test_reference
#include "kernel/matmul/packed_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernel/simd/simd_test_util.h"

namespace graft {

#ifdef GRAFT_HAVE_AMX_MODEL
namespace simd::amxmodel {
extern const PackedPairTable kPackedPairs;
}
#endif

namespace {

using i64 = std::int64_t;

struct Case {
  i64 rows = 1, depth = 1, outputs = 1;
  i64 step = 1;  // stride of the numbers of a row
  bool bias = true, all = false;
  DType weight = DType::f32;
  int threads = 1;
};

// x [rows, depth] as the kernel takes it.
TensorDesc rows_of(i64 rows, i64 depth, i64 step) {
  TensorDesc desc(DType::f32, Shape{1, depth, 1, 1, rows});
  const i64 all = rows * depth * step;
  desc.strides = {all, step, all, all, depth * step};
  return desc;
}

// Reference: both operands rounded to bf16, their products summed in double precision.
void check(const Case& c, const simd::PackedPairTable& table) {
  std::mt19937 rng(1);
  TestTensor x(rows_of(c.rows, c.depth, c.step), c.rows * c.depth * c.step),
      w(TensorDesc(c.weight, Shape{c.outputs, c.depth})), bias(TensorDesc(DType::f32, Shape{c.outputs})),
      residual(rows_of(c.rows, c.outputs, 1)), out(rows_of(c.rows, c.outputs, 1));
  for (TestTensor* t : {&x, &w, &bias, &residual}) t->fill(rng, -1, 1);
  TestTensor packed(TensorDesc(DType::f32, Shape{packed_pair_words(c.outputs, c.depth, table)}));
  run_on_threads({&w}, {&packed}, PackConvAttrs{}, 0, c.threads,
                 [&](const KernelContext& ctx) { run_pack_pairs(ctx, table); });
  EXPECT_TRUE(packed.guards_intact());
  PackedConvAttrs attrs;
  std::vector<const TestTensor*> inputs = {&x, &packed};
  if (c.bias) inputs.push_back(&bias);
  attrs.conv.has_bias = c.bias ? 1 : 0;
  if (c.all) {
    inputs.push_back(&residual);
    attrs.has_residual = attrs.clamps = 1;
    attrs.activation = simd::Activation::silu;
    attrs.low = -0.1f;
    attrs.high = 0.75f;
  }
  run_on_threads(
      inputs, {&out}, attrs, packed_pair_scratch_bytes(x.desc), c.threads,
      [&](const KernelContext& ctx) { run_packed_pairs(ctx, table); }, kPackedPairs.phases);
  EXPECT_TRUE(out.guards_intact());
  int wrong = 0;
  for (i64 r = 0; r < c.rows; ++r)
    for (i64 j = 0; j < c.outputs; ++j) {
      double want = c.bias ? bias.get(j) : 0, size = std::fabs(want);
      for (i64 k = 0; k < c.depth; ++k) {
        const double term =
            rounded_to_bf16(x.get((r * c.depth + k) * c.step)) * rounded_to_bf16(w.get(j * c.depth + k));
        want += term;
        size += std::fabs(term);
      }
      const i64 at = r * c.outputs + j;
      if (c.all) {
        want += residual.get(at);
        want = std::min(std::max(want / (1 + std::exp(-want)), -0.1), 0.75);
      }
      if (std::fabs(out.get(at) - want) <= 8e-7 * size + 1e-6) continue;
      if (++wrong < 4)
        ADD_FAILURE() << c.rows << " x " << c.depth << " x " << c.outputs << " at (" << r << ", " << j << "): got "
                      << out.get(at) << ", expected " << want;
    }
  EXPECT_EQ(wrong, 0);
}

struct NamedTable {
  std::string name;
  const simd::PackedPairTable* table;
};
std::ostream& operator<<(std::ostream& out, const NamedTable& table) { return out << table.name; }

// The tables of every target available here, and of AMX on a model of its tiles.
std::vector<NamedTable> tables() {
  std::vector<NamedTable> out;
  for (const simd::Isa isa : simd::available_isas_of<simd::PackedPairTable>())
    out.push_back({std::string(simd::name(isa)), simd::packed_pairs(isa)});
#ifdef GRAFT_HAVE_AMX_MODEL
  const auto isas = simd::available_isas();
  if (std::find(isas.begin(), isas.end(), simd::Isa::avx512) != isas.end())
    out.push_back({"amxmodel", &simd::amxmodel::kPackedPairs});
#endif
  return out;
}

class PackedPairs : public testing::TestWithParam<NamedTable> {
 protected:
  const simd::PackedPairTable& table = *GetParam().table;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PackedPairs);
INSTANTIATE_TEST_SUITE_P(Tables, PackedPairs, testing::ValuesIn(tables()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(PackedPairs, TilesPanelsAndDepths) {
  for (const i64 rows : {1, 2, 11, 12, 13, 16, 17, 24, 25, 37})
    for (const i64 outputs : {1, 8, 15, 16, 17, 31, 32, 33, 70})
      for (const i64 depth : {1, 2, 7, 31, 32, 33, 100})
        check({.rows = rows,
               .depth = depth,
               .outputs = outputs,
               .all = rows % 2 == 0,
               .weight = outputs % 2 == 0 ? DType::bf16 : DType::f32},
              table);
}

TEST_P(PackedPairs, MoreDepthThanABlockAndRowsOfHalfAPage) {
  for (const i64 depth : {511, 512, 1023, 1024, 1025, 2048, 2051})
    check({.rows = 14, .depth = depth, .outputs = 40, .bias = false}, table);
}

TEST_P(PackedPairs, NumbersOfARowThatLieApart) {
  for (const i64 depth : {1, 63, 64, 65, 129})
    check({.rows = 20, .depth = depth, .outputs = 33, .step = 3, .all = true}, table);
}

TEST_P(PackedPairs, ThreadsDivideTilesAndPanels) {
  for (const int threads : {2, 3, 5})
    for (const i64 rows : {9, 100, 1200}) check({.rows = rows, .depth = 48, .outputs = 100, .threads = threads}, table);
}

}  // namespace
}  // namespace graft
