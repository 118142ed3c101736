#include "kernel/matmul/moe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/aligned.h"
#include "kernel/kernel_test_util.h"
#include "kernel/matmul/block_matmul.h"
#include "kernel/matmul/block_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using test::all_block_types;
using test::quantized;
using test::random_values;

std::size_t size(i64 count) { return static_cast<std::size_t>(count); }

struct Experts {
  static constexpr i64 kCount = 5, kOut = 80, kIn = 512;  // of the last step of columns half is there
  BlockType type;
  i64 tokens, per_token;
  bool one_row, bias;
  std::vector<float> rows, biases;
  std::vector<i64> chosen;
  std::vector<std::byte> panels;

  Experts(BlockType t, i64 n, i64 k, bool one, bool has_bias)
      : type(t), tokens(n), per_token(k), one_row(one), bias(has_bias) {
    rows = random_values(tokens * (one_row ? 1 : per_token) * kIn, 1);
    biases = random_values(kCount * kOut, 2);
    std::mt19937 random(3);
    // Expert 2 has no rows, and expert 4 most.
    for (i64 i = 0; i < tokens * per_token; ++i)
      chosen.push_back(std::array<i64, 8>{0, 1, 3, 4, 4, 4, 4, 4}[random() % 8]);
    const std::vector<std::byte> blocks = quantized(type, random_values(kCount * kOut * kIn, 4), kIn);
    panels.resize(size(panels_bytes(format(), kCount * kOut, kIn)));
    pack_panels(format(), blocks.data(), kCount * kOut, kIn, panels.data(), 2);
  }

  PanelFormat format() const { return *readable_panels(type); }
  i64 pairs() const { return tokens * per_token; }

  std::vector<float> run(int threads) const {
    ExpertLinearAttrs attrs{kCount, kOut, kIn, type, static_cast<std::int16_t>(bias ? 1 : 0), 1};
    const TensorDesc rows_desc(DType::f32, Shape{tokens, one_row ? 1 : per_token, kIn});
    const TensorDesc chosen_desc(DType::i64, Shape{tokens, per_token});
    const AlignedMemory scratch(size(expert_linear_scratch_bytes(attrs, rows_desc, chosen_desc, threads)));
    std::vector<float> out(size(pairs() * kOut), std::nanf(""));
    std::vector<TestOperand> inputs = {{rows_desc, rows.data()},
                                       {chosen_desc, chosen.data()},
                                       {TensorDesc(DType::u8, Shape{static_cast<i64>(panels.size())}), panels.data()}};
    if (bias) inputs.push_back({TensorDesc(DType::f32, Shape{kCount, kOut}), biases.data()});
    EXPECT_EQ(run_kernel(kExpertLinear, inputs, {TensorDesc(DType::f32, Shape{tokens, per_token, kOut}), out.data()},
                         threads, attrs, scratch.data()),
              "");
    return out;
  }

  // One product for each pair.
  std::vector<float> expected() const {
    BlockMatmulAttrs attrs;
    attrs.product.has_bias = bias ? 1 : 0;
    attrs.type = type;
    attrs.panels = 1;
    const AlignedMemory scratch(size(block_matmul_scratch_bytes(attrs, 1, kIn)));
    std::vector<float> out(size(pairs() * kOut));
    for (i64 i = 0; i < pairs(); ++i) {
      const i64 expert = chosen[size(i)], bytes = panels_bytes(format(), kOut, kIn);
      std::vector<TestOperand> inputs = {
          {TensorDesc(DType::f32, Shape{1, kIn}), rows.data() + (one_row ? i / per_token : i) * kIn},
          {TensorDesc(DType::u8, Shape{bytes}), panels.data() + expert * bytes}};
      if (bias) inputs.push_back({TensorDesc(DType::f32, Shape{1, kOut}), biases.data() + expert * kOut});
      EXPECT_EQ(run_kernel(kBlockMatmul, inputs, {TensorDesc(DType::f32, Shape{1, kOut}), out.data() + i * kOut}, 1,
                           attrs, scratch.data()),
                "");
    }
    return out;
  }
};

TEST(ExpertLinear, InPanelsTheBitsOfOneProductForEachPair) {
  int compared = 0;
  for (const BlockType type : all_block_types()) {
    if (!readable_panels(type)) continue;
    for (const i64 tokens : {1, 2, 7, 40, 150})
      for (const i64 per_token : {1, 3})
        for (const bool one_row : {false, true}) {
          const Experts experts(type, tokens, per_token, one_row, (tokens + per_token) % 2 == 0);
          const std::vector<float> expected = experts.expected();
          for (const int threads : {1, 2, 5}) {
            ASSERT_EQ(experts.run(threads), expected)
                << block_type_name(type) << ", " << tokens << " tokens, " << per_token << " each";
            ++compared;
          }
        }
  }
  EXPECT_EQ(compared, simd::panels() ? 12 * 5 * 2 * 2 * 3 : 0);
}

}  // namespace
}  // namespace graft
