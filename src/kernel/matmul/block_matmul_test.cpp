#include "kernel/matmul/block_matmul.h"

#include <ggml-cpu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/aligned.h"
#include "base/test_process.h"
#include "kernel/kernel_test_util.h"
#include "kernel/matmul/block_rows.h"
#include "kernel/matmul/block_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using test::all_block_types;
using test::dequantized;
using test::quantized;
using test::random_values;

struct Problem {
  BlockType type;
  i64 m, n, k;
  std::vector<float> a;
  std::vector<std::byte> weight;
  std::vector<float> values;  // the dequantized weight

  Problem(BlockType t, i64 rows, i64 columns, i64 depth) : type(t), m(rows), n(columns), k(depth) {
    a = random_values(m * k, 1);
    for (std::size_t i = 0; i < a.size(); i += 37) a[i] *= 8;  // outliers, as in real activations
    weight = quantized(type, random_values(n * k, 2), k);
    values = dequantized(type, weight, k);
  }

  // How far the product may be from that of the values in exact arithmetic. Activations are rounded to 8 bits relative
  // to the largest of their block (its scale, and the scale times the block's sum, to 16-bit floats), sums to f32.
  double bound(i64 r, i64 j) const { return bound_of_rounding(r, j) + 1e-5; }
  double bound_of_rounding(i64 r, i64 j) const {
    const auto dot_type = ggml_get_type_traits_cpu(static_cast<ggml_type>(type))->vec_dot_type;
    const i64 block = ggml_blck_size(dot_type);
    double sum = 0;
    for (i64 k0 = 0; k0 < k; k0 += block) {
      float largest = 0;
      for (i64 x = k0; x < k0 + block; ++x) largest = std::max(largest, std::abs(a[at(r * k + x)]));
      for (i64 x = k0; x < k0 + block; ++x)
        sum += std::abs(values[at(j * k + x)]) * largest * (1.01 / 254 + 1.0 / 2048);
    }
    return sum;
  }
  double exact(i64 r, i64 j) const {
    double sum = 0;
    for (i64 x = 0; x < k; ++x)
      sum += static_cast<double>(a[at(r * k + x)]) * static_cast<double>(values[at(j * k + x)]);
    return sum;
  }
  static std::size_t at(i64 i) { return static_cast<std::size_t>(i); }
};

struct Options {
  int threads = 1;
  bool bias = false;
  float alpha = 1, beta = 1;
  simd::Activation activation = simd::Activation::none;
  std::size_t shift = 0;           // bytes by which the weight is misaligned
  i64 a_gap = 0;                   // elements between rows of a
  const Kernel* panels = nullptr;  // kernel for a weight in panels; null: ggml's layout
};

template <simd::Isa isa>
const Kernel kPanelKernel = {"panels",
                             [](const KernelContext& ctx) noexcept { run_panel_product(ctx, *simd::panels(isa)); }, 0,
                             [](const KernelContext&) noexcept { return 2; }};

// A kernel for every instruction set of this machine that has panels.
std::vector<const Kernel*> panel_kernels() {
  std::vector<const Kernel*> out;
#define GRAFT_PANEL_KERNEL(target, ...) &kPanelKernel<simd::Isa::target>,
  const Kernel* const kernels[] = {GRAFT_TARGETS(GRAFT_PANEL_KERNEL)};
#undef GRAFT_PANEL_KERNEL
  for (const simd::Isa isa : simd::available_isas_of<simd::PanelTable>())
    out.push_back(kernels[static_cast<std::size_t>(isa)]);
  return out;
}

std::vector<BlockType> panel_types() {
  std::vector<BlockType> out;
  for (const BlockType type : all_block_types())
    if (readable_panels(type)) out.push_back(type);
  return out;
}

std::vector<std::byte> in_panels(const Problem& p) {
  const PanelFormat format = *readable_panels(p.type);
  std::vector<std::byte> out(static_cast<std::size_t>(panels_bytes(format, p.n, p.k)));
  pack_panels(format, p.weight.data(), p.n, p.k, out.data(), 2);
  return out;
}

std::vector<float> bias_of(const Problem& p) { return random_values(p.n, 3); }

std::vector<float> product(const Problem& p, const Options& o = {}) {
  const std::vector<std::byte> bytes = o.panels ? in_panels(p) : p.weight;
  AlignedMemory weight(bytes.size() + o.shift);
  std::memcpy(weight.data() + o.shift, bytes.data(), bytes.size());
  std::vector<float> a(static_cast<std::size_t>(p.m * (p.k + o.a_gap)));
  for (i64 r = 0; r < p.m; ++r) std::copy_n(p.a.data() + r * p.k, p.k, a.data() + r * (p.k + o.a_gap));
  TensorDesc a_desc(DType::f32, Shape{p.m, p.k});
  a_desc.strides[0] += o.a_gap;
  const std::vector<float> bias = bias_of(p);
  TensorDesc bias_desc(DType::f32, Shape{p.m, p.n});
  bias_desc.strides[0] = 0;
  BlockMatmulAttrs attrs;
  attrs.product = {o.alpha, o.beta, o.activation, o.bias ? 1 : 0};
  attrs.type = p.type;
  attrs.panels = o.panels ? 1 : 0;
  const AlignedMemory scratch(static_cast<std::size_t>(block_matmul_scratch_bytes(attrs, p.m, p.k)));
  std::vector<float> out(static_cast<std::size_t>(p.m * p.n), std::nanf(""));
  std::vector<TestOperand> inputs = {
      {a_desc, a.data()}, {TensorDesc(DType::u8, Shape{static_cast<i64>(bytes.size())}), weight.data() + o.shift}};
  if (o.bias) inputs.push_back({bias_desc, bias.data()});
  const std::string error =
      run_kernel(o.panels ? *o.panels : kBlockMatmul, inputs, {TensorDesc(DType::f32, Shape{p.m, p.n}), out.data()},
                 o.threads, attrs, scratch.data());
  EXPECT_EQ(error, "");
  return out;
}

// The reference: ggml's own product of the same operands.
std::vector<float> ggml_product(const Problem& p) {
  ggml_context* context = ggml_init({std::size_t{64} << 20, nullptr, false});
  ggml_tensor* weight = ggml_new_tensor_2d(context, static_cast<ggml_type>(p.type), p.k, p.n);
  ggml_tensor* a = ggml_new_tensor_2d(context, GGML_TYPE_F32, p.k, p.m);
  std::memcpy(weight->data, p.weight.data(), p.weight.size());
  std::memcpy(a->data, p.a.data(), p.a.size() * sizeof(float));
  ggml_tensor* out = ggml_mul_mat(context, weight, a);
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, out);
  ggml_graph_compute_with_ctx(context, graph, 1);
  std::vector<float> result(static_cast<std::size_t>(p.m * p.n));
  std::memcpy(result.data(), out->data, result.size() * sizeof(float));
  ggml_free(context);
  return result;
}

void check(const Problem& p, const std::vector<float>& out) {
  for (i64 r = 0; r < p.m; ++r)
    for (i64 j = 0; j < p.n; ++j)
      ASSERT_NEAR(out[Problem::at(r * p.n + j)], p.exact(r, j), p.bound(r, j))
          << block_type_name(p.type) << " M " << p.m << " N " << p.n << " K " << p.k << " at " << r << ", " << j;
}

// ggml's dot products read tables that ggml initializes when it first computes a graph.
TEST(BlockMatmulAlone, DISABLED_Computes) {
  const Problem p(*find_block_type("q4_0"), 1, 64, 1024);
  check(p, product(p));
}

TEST(BlockMatmulAlone, ComputesBeforeGgmlDoes) {
  EXPECT_THAT(test::run_in_own_process("BlockMatmulAlone.DISABLED_Computes"),
              ::testing::HasSubstr("[  PASSED  ] 1 test."));
}

TEST(BlockMatmul, EveryTypeIsWithinTheErrorOfQuantizedActivations) {
  EXPECT_GE(all_block_types().size(), 20U);
  for (const BlockType type : all_block_types()) {
    for (const i64 m : {1, 2, 3, 31}) {
      const Problem p(type, m, 37, 512);
      check(p, product(p, {.threads = 2}));
    }
  }
}

// The sum of squared errors is at most ggml's; where both use the same arithmetic the results nearly agree.
TEST(BlockMatmul, TheErrorIsNotLargerThanGgmls) {
  for (const BlockType type : all_block_types()) {
    for (const i64 m : {1, 33}) {
      const Problem p(type, m, 64, 1024);
      const std::vector<float> ours = product(p), theirs = ggml_product(p);
      double our_error = 0, their_error = 0;
      for (i64 i = 0; i < p.m * p.n; ++i) {
        const double exact = p.exact(i / p.n, i % p.n);
        our_error += std::pow(static_cast<double>(ours[Problem::at(i)]) - exact, 2);
        their_error += std::pow(static_cast<double>(theirs[Problem::at(i)]) - exact, 2);
      }
      EXPECT_LE(our_error, 1.02 * their_error) << block_type_name(type) << " M " << m;
    }
  }
}

TEST(BlockMatmul, SizesAroundTheBordersOfTiles) {
  for (const PanelLayout& layout : kPanelLayouts) {
    const auto type = static_cast<BlockType>(layout.type);
    for (const i64 m : {1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 33})
      for (const i64 n : {1, 15, 16, 17, 31, 32, 33, 65}) {
        const Problem p(type, m, n, block_elements(type) * (n % 2 == 0 ? 1 : 3));
        for (const int threads : {1, 2}) check(p, product(p, {.threads = threads}));
      }
  }
}

TEST(BlockMatmul, EpilogueGapsAndUnalignedWeights) {
  const Problem p(*find_block_type("q8_0"), 5, 40, 96);
  const std::vector<float> plain = product(p), bias = bias_of(p);
  EXPECT_EQ(product(p, {.shift = 2}), plain);
  EXPECT_EQ(product(p, {.shift = 34, .a_gap = 3}), plain);
  const std::vector<float> out =
      product(p, {.threads = 2, .bias = true, .alpha = 0.5f, .beta = 2, .activation = simd::Activation::relu});
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_NEAR(out[i], std::max(0.f, 0.5f * plain[i] + 2 * bias[i % 40]), 1e-5f);
}

// Scales of activations are not rounded to 16 bits as ggml's are, so the error is smaller.
TEST(Panels, TheErrorIsNotLargerThanGgmls) {
  for (const Kernel* kernel : panel_kernels())
    for (const BlockType type : panel_types())
      for (const i64 m : {1, 33}) {
        const Problem p(type, m, 64, 1024);
        const std::vector<float> ours = product(p, {.panels = kernel}), theirs = ggml_product(p);
        double our_error = 0, their_error = 0;
        for (i64 i = 0; i < p.m * p.n; ++i) {
          const double exact = p.exact(i / p.n, i % p.n);
          our_error += std::pow(static_cast<double>(ours[Problem::at(i)]) - exact, 2);
          their_error += std::pow(static_cast<double>(theirs[Problem::at(i)]) - exact, 2);
        }
        EXPECT_LE(our_error, 1.02 * their_error) << kernel->name << " " << block_type_name(type) << " M " << m;
        check(p, ours);
      }
}

// The smallest are denormal numbers; the bias of a block's sum times the largest would be infinite.
TEST(Panels, ScalesThatAreAnyPower) {
  const BlockType type = *find_block_type("mxfp4");
  for (const Kernel* kernel : panel_kernels())
    for (const int exponent : {0, 1, 2, 3, 127, 128, 231, 240}) {
      Problem p(type, 9, 40, 64);
      for (std::size_t at = 0; at < p.weight.size(); at += 17) p.weight[at] = static_cast<std::byte>(exponent);
      p.values = dequantized(type, p.weight, p.k);
      const std::vector<float> ours = product(p, {.panels = kernel});
      for (i64 i = 0; i < p.m * p.n; ++i) {
        const i64 r = i / p.n, j = i % p.n;
        const double rounded = 64 * static_cast<double>(std::numeric_limits<float>::denorm_min());
        EXPECT_NEAR(static_cast<double>(ours[Problem::at(i)]), p.exact(r, j), p.bound_of_rounding(r, j) + rounded)
            << kernel->name << " 2^" << exponent - 128;
      }
    }
}

// A block's sum is held in the low bits of a float: the largest possible sums are exact.
TEST(Panels, LargestSumsOfABlock) {
  for (const Kernel* kernel : panel_kernels())
    for (const BlockType type : panel_types())
      for (const float sign : {1.f, -1.f}) {
        Problem p(type, 7, 17, 256);
        p.a.assign(p.a.size(), sign);
        p.weight = quantized(type, std::vector<float>(static_cast<std::size_t>(p.n * p.k), -1), p.k);
        if (block_type_name(type) == "q8_0")
          for (std::size_t i = 0; i < p.weight.size(); i += 2 + 32)  // a scale, then 32 bytes
            std::fill_n(p.weight.begin() + static_cast<std::ptrdiff_t>(i) + 2, 32, std::byte{0x80});
        p.values = dequantized(type, p.weight, p.k);
        const std::vector<float> out = product(p, {.panels = kernel});
        for (i64 i = 0; i < p.m * p.n; ++i) {
          const double exact = p.exact(i / p.n, i % p.n);
          EXPECT_GT(std::abs(exact), 250);
          ASSERT_NEAR(out[Problem::at(i)], exact, 1e-6 * std::abs(exact))
              << kernel->name << " " << block_type_name(type);
        }
      }
}

TEST(Panels, SizesAroundTheBordersOfTiles) {
  for (const Kernel* kernel : panel_kernels())
    for (const BlockType type : panel_types())
      for (const i64 m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31, 33})
        for (const i64 n : {1, 7, 15, 16, 17, 31, 32, 33, 48, 65}) {
          const Problem p(type, m, n, block_elements(type) * (n % 2 == 0 ? 2 : 1 + n % 3));
          for (const int threads : {1, 2, 3}) check(p, product(p, {.threads = threads, .panels = kernel}));
        }
}

TEST(Panels, EpilogueGapsAndUnalignedWeights) {
  for (const Kernel* kernel : panel_kernels())
    for (const BlockType type : panel_types()) {
      const Problem p(type, 5, 40, 256);
      const std::vector<float> plain = product(p, {.panels = kernel}), bias = bias_of(p);
      EXPECT_EQ(product(p, {.shift = 2, .panels = kernel}), plain);
      EXPECT_EQ(product(p, {.shift = 33, .a_gap = 3, .panels = kernel}), plain);
      Options options{.threads = 2, .bias = true, .alpha = 0.5f, .beta = 2, .panels = kernel};
      options.activation = simd::Activation::relu;
      const std::vector<float> out = product(p, options);
      for (std::size_t i = 0; i < out.size(); ++i)
        EXPECT_NEAR(out[i], std::max(0.f, 0.5f * plain[i] + 2 * bias[i % 40]), 1e-5f);
    }
}

// Blocks of tq1_0 with the bytes that a quantizer writes for their numbers: five digits in 48, four in the next four.
std::vector<std::byte> digits_as_quantized(std::vector<std::byte> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t at = i % 54;
    unsigned digits = std::to_integer<unsigned>(blocks[i]) * 243 / 256;
    if (at >= 48) digits = digits / 3 * 3;
    if (at < 52) blocks[i] = static_cast<std::byte>((digits * 256 + 242) / 243);
  }
  return blocks;
}

TEST(Panels, BlocksComeBackBitForBit) {
  for (const BlockType type : test::all_block_types()) {
    const std::optional<PanelFormat> format = panel_format_of(type);
    if (!format) {
      EXPECT_NE(refuse_panels(type, Shape{16, 256}), "");
      continue;
    }
    for (const i64 rows : {1, 15, 16, 17, 48})
      for (const i64 blocks : {1, 2, 3}) {
        const i64 depth = blocks * block_elements(type);
        std::vector<std::byte> from(static_cast<std::size_t>(rows * block_row_bytes(type, depth)));
        std::mt19937 random(3);
        for (std::byte& byte : from) byte = static_cast<std::byte>(random());
        if (block_type_name(type) == "tq1_0") from = digits_as_quantized(from);
        std::vector<std::byte> packed(stored_bytes({Stored::Kind::panels, DType::f32, type}, Shape{rows, depth}));
        ASSERT_EQ(packed.size(), static_cast<std::size_t>(panels_bytes(*format, rows, depth)));
        pack_panels(*format, from.data(), rows, depth, packed.data(), 1);
        std::vector<std::byte> back(from.size());
        unpack_panels(*format, packed.data(), rows, depth, back.data(), 2);
        EXPECT_EQ(back, from) << block_type_name(type) << " of " << rows << " x " << depth;
      }
  }
}

// A file may hold bytes of tq1_0 that no quantizer writes; their numbers stay the same.
TEST(Panels, NumbersOfAnyByteOfDigitsComeBack) {
  const BlockType type = *find_block_type("tq1_0");
  Problem p(type, 1, 6, 256);
  std::size_t next = 0;
  for (std::size_t i = 0; i < p.weight.size(); ++i)
    if (i % 54 < 52) p.weight[i] = static_cast<std::byte>(next++);  // each of 256 bytes in every place of a block
  p.values = dequantized(type, p.weight, p.k);
  const std::vector<std::byte> panels = in_panels(p);
  std::vector<std::byte> back(p.weight.size());
  unpack_panels(*readable_panels(type), panels.data(), p.n, p.k, back.data(), 1);
  EXPECT_EQ(back, digits_as_quantized(p.weight));
  EXPECT_EQ(dequantized(type, back, p.k), p.values);
}

// The rows of `p` that begin at `row`.
Problem rows_of(const Problem& p, i64 row, i64 count) {
  Problem out = p;
  out.m = count;
  out.a.assign(p.a.begin() + row * p.k, p.a.begin() + (row + count) * p.k);
  return out;
}

TEST(Panels, BitsDoNotDependOnRowsThreadsOrInstructionSet) {
  const std::vector<const Kernel*> kernels = panel_kernels();
  if (kernels.empty()) GTEST_SKIP() << "this CPU has no kernel for panels";
  for (const BlockType type : panel_types()) {
    const Problem p(type, 33, 40, 768);
    const std::vector<float> all = product(p, {.panels = kernels[0]});
    for (const Kernel* kernel : kernels)
      for (const i64 m : {1, 2, 3, 6, 8, 33}) {
        const std::vector<float> some =
            product(rows_of(p, 33 - m, m), {.threads = 1 + static_cast<int>(m % 3), .panels = kernel});
        EXPECT_EQ(std::memcmp(some.data(), all.data() + (33 - m) * p.n, some.size() * sizeof(float)), 0)
            << kernel->name << " " << block_type_name(type) << " M " << m;
      }
  }
}

// Quants and scales of any bits, at the ends of their ranges too. Scales of activations are 1 and those of blocks a
// power of two, so that no step rounds.
TEST(Panels, FewBitsAreExact) {
  constexpr std::uint16_t kUnit = 0x2000;  // 2^-7
  for (const char* name : {"q2_K", "q3_K", "tq2_0", "tq1_0"}) {
    const BlockType type = *find_block_type(name);
    const auto block = static_cast<std::size_t>(block_row_bytes(type, 256));
    const std::size_t units = type == GGML_TYPE_Q2_K ? 2 : 1;  // f16 numbers at the end of a block
    std::mt19937 random(11);
    for (const int bits : {0x00, 0xff, 0x0f, 0xf0, -1}) {  // -1: random ones
      Problem p(type, 9, 33, 512);
      for (std::byte& b : p.weight) b = static_cast<std::byte>(bits < 0 ? random() : static_cast<unsigned>(bits));
      for (std::size_t at = block; at <= p.weight.size(); at += block)
        for (std::size_t u = 1; u <= units; ++u) std::memcpy(p.weight.data() + at - 2 * u, &kUnit, sizeof(kUnit));
      p.values = dequantized(type, p.weight, p.k);
      for (std::size_t i = 0; i < p.a.size(); ++i) {
        const std::size_t row = i / 512;
        const int any = static_cast<int>(random() % 255) - 127;
        p.a[i] = static_cast<float>(row == 0 || i % 32 == 5 ? 127 : row == 1 ? -127 : any);
      }
      for (const Kernel* kernel : panel_kernels()) {
        const std::vector<float> out = product(p, {.panels = kernel});
        for (i64 i = 0; i < p.m * p.n; ++i)
          ASSERT_EQ(static_cast<double>(out[Problem::at(i)]), p.exact(i / p.n, i % p.n))
              << kernel->name << " " << name << " of bits " << bits << " at " << i;
      }
    }
  }
}

// ggml's quantizer never stores the smallest value of a byte; files may contain it.
TEST(Panels, EveryByteOfQ8) {
  const BlockType type = *find_block_type("q8_0");
  for (const Kernel* kernel : panel_kernels()) {
    Problem p(type, 6, 40, 64);
    for (std::size_t i = 0; i < p.weight.size(); ++i)
      if (i % 34 >= 2) p.weight[i] = i % 3 == 0 ? std::byte{0x80} : i % 3 == 1 ? std::byte{0x7f} : std::byte{0x81};
    p.values = dequantized(type, p.weight, p.k);
    check(p, product(p, {.panels = kernel}));
  }
}

TEST(Panels, NumbersThatCannotBeQuantized) {
  for (const Kernel* kernel : panel_kernels()) {
    Problem p(*find_block_type("q8_0"), 3, 16, 64);
    for (i64 k = 0; k < 64; ++k) p.a[Problem::at(k)] = 1e-40f;
    p.a[64 + 7] = std::nanf("");
    p.a[128 + 40] = INFINITY;
    const std::vector<float> out = product(p, {.panels = kernel});
    for (std::size_t j = 0; j < 16; ++j) {
      EXPECT_NEAR(out[j], 0, 1e-30f);
      EXPECT_FALSE(std::isfinite(out[16 + j]));
      EXPECT_FALSE(std::isfinite(out[32 + j]));
    }
  }
}

TEST(Panels, RowsAreExact) {
  for (const BlockType type : panel_types())
    for (const i64 n : {1, 16, 37}) {
      const Problem p(type, 1, n, block_elements(type) * 3);
      const std::vector<std::byte> panels = in_panels(p);
      std::vector<float> row(static_cast<std::size_t>(p.k));
      for (i64 r = 0; r < n; ++r) {
        unpack_row(*readable_panels(type), panels.data(), p.k, r, row.data());
        EXPECT_EQ(std::memcmp(row.data(), p.values.data() + r * p.k, row.size() * sizeof(float)), 0)
            << block_type_name(type) << " " << n << " " << r;
      }
    }
}

TEST(BlockRows, EveryTypeIsExact) {
  for (const BlockType type : all_block_types()) {
    const i64 k = 512, n = 19;
    const std::vector<std::byte> weight = quantized(type, random_values(n * k, 4), k);
    const std::vector<float> values = dequantized(type, weight, k);
    const std::vector<i64> indices = {0, 18, 7, 7, 3, 1};
    std::vector<float> out(indices.size() * k);
    BlockRowsAttrs attrs;
    attrs.type = type;
    attrs.rows = n;
    const auto run = [&](const std::vector<i64>& at, int threads) {
      return run_kernel(kBlockRows,
                        {{TensorDesc(DType::u8, Shape{static_cast<i64>(weight.size())}), weight.data()},
                         {TensorDesc(DType::i64, Shape{2, 3}), at.data()}},
                        {TensorDesc(DType::f32, Shape{2, 3, k}), out.data()}, threads, attrs);
    };
    EXPECT_EQ(run(indices, 2), "");
    for (std::size_t i = 0; i < indices.size(); ++i)
      EXPECT_EQ(std::memcmp(out.data() + i * k, values.data() + indices[i] * k, k * sizeof(float)), 0)
          << block_type_name(type) << " " << i;
    EXPECT_THAT(run({0, 1, 2, 19, 4, 5}, 1),
                ::testing::HasSubstr("index 19 is out of range for dimension 0 of size 19"));
    EXPECT_THAT(run({0, 1, 2, -1, 4, 5}, 1), ::testing::HasSubstr("index -1 is out of range"));
  }
}

}  // namespace
}  // namespace graft
