#define GRAFT_ISA test_reference
#include "kernel/matmul/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

struct Numbers {
  std::vector<float> a, b;
  LowRank layer;

  Numbers(i64 rank, i64 in, i64 out, std::mt19937& rng)
      : a(static_cast<std::size_t>(rank * in)), b(static_cast<std::size_t>(rank * out)) {
    std::uniform_real_distribution<float> values(-1, 1);
    for (std::vector<float>* matrix : {&a, &b})
      for (float& value : *matrix) value = values(rng);
    layer = {a.data(), b.data(), rank};
  }
};

struct Case {
  i64 rows = 1, in = 1, out = 1, batch = 1;
  std::vector<int> adapters;  // by row of the batch; -1: none
  DType dtype = DType::f32;
  int threads = 1;
  bool in_place = true;
  i64 gap = 0;  // between rows
};

TensorDesc rows_of(DType dtype, i64 rows, i64 columns, i64 gap) {
  TensorDesc desc(dtype, Shape{rows, columns});
  desc.strides = {columns + gap, 1};
  return desc;
}

// Of ranks 1, 5 and 8; the results [rows, out].
std::vector<double> run(const Case& c, const simd::LowRankTable& table) {
  std::mt19937 rng(1);
  const Numbers adapters[] = {{1, c.in, c.out, rng}, {5, c.in, c.out, rng}, {8, c.in, c.out, rng}};
  TestTensor y(rows_of(c.dtype, c.rows, c.out, c.gap), c.rows * (c.out + c.gap));
  TestTensor x(rows_of(c.dtype, c.rows, c.in, c.gap), c.rows * (c.in + c.gap));
  TestTensor other(y.desc, y.elements());
  for (TestTensor* t : {&y, &x}) t->fill(rng, -1, 1);
  TestTensor& out = c.in_place ? y : other;
  const TestTensor before = y;
  const AddAdapterAttrs attrs{0, 8, c.batch};
  std::vector<const LowRank*> lists;
  for (const int adapter : c.adapters) lists.push_back(adapter < 0 ? nullptr : &adapters[adapter].layer);
  run_on_threads(
      {&y, &x}, {&out}, attrs, add_adapter_scratch_bytes(attrs, c.rows), c.threads,
      [&](const KernelContext& ctx) {
        KernelContext mine = ctx;
        mine.adapters = lists;
        run_add_adapter(mine, table);
      },
      kAddAdapter.phases);
  EXPECT_TRUE(y.guards_intact() && out.guards_intact());
  std::vector<double> found;
  int wrong = 0;
  for (i64 r = 0; r < c.rows; ++r) {
    const std::size_t which = lists.size() < 2 ? 0 : static_cast<std::size_t>(r / (c.rows / c.batch));
    const LowRank* const layer = which < lists.size() ? lists[which] : nullptr;
    std::vector<double> t(8);
    for (i64 q = 0; layer != nullptr && q < layer->rank; ++q)
      for (i64 k = 0; k < c.in; ++k)
        t[static_cast<std::size_t>(q)] += x.get(r * (c.in + c.gap) + k) * static_cast<double>(layer->a[q * c.in + k]);
    for (i64 j = 0; j < c.out; ++j) {
      double want = before.get(r * (c.out + c.gap) + j), size = std::fabs(want);
      for (i64 q = 0; layer != nullptr && q < layer->rank; ++q) {
        const double term = t[static_cast<std::size_t>(q)] * static_cast<double>(layer->b[q * c.out + j]);
        want += term;
        size += std::fabs(term);
      }
      found.push_back(out.get(r * (c.out + c.gap) + j));
      const double eps = c.dtype == DType::f32 ? 2e-6 : c.dtype == DType::f16 ? 1e-3 : 8e-3;
      wrong += !(std::fabs(found.back() - want) <= eps * (size + static_cast<double>(c.in) * 1e-2));
      if (layer == nullptr) wrong += found.back() != before.get(r * (c.out + c.gap) + j);
    }
  }
  EXPECT_EQ(wrong, 0) << c.rows << " x " << c.in << " -> " << c.out << ", " << c.threads << " threads";
  return found;
}

TEST(LowRank, EveryInstructionSet) {
  for (const simd::Isa isa : simd::available_isas()) {
    SCOPED_TRACE(simd::name(isa));
    const simd::LowRankTable& table = simd::low_rank(isa);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const i64 in : {1, 7, 16, 33, 100})
        for (const i64 out : {1, 9, 64, 131})
          for (const int threads : {1, 3}) {
            run({1, in, out, 1, {1}, dtype, threads}, table);
            run({6, in, out, 3, {2, -1, 0}, dtype, threads, in % 2 == 0, 3}, table);
          }
    run({200, 40, 30, 4, {0, 1, -1, 2}, DType::f32, 3}, table);
    run({9, 40, 30, 9, {0, 0, 0, 0, 0, 1, 1, -1, 2}, DType::f32, 2, false}, table);
    run({4, 8, 8, 4, {}, DType::f32, 2, false}, table);       // no adapters: a copy
    run({4, 8, 8, 4, {-1, 2}, DType::f32, 2, false}, table);  // rows beyond: padding
  }
}

TEST(LowRank, BitsOfARowAreItsOwn) {
  for (const simd::Isa isa : simd::available_isas()) {
    SCOPED_TRACE(simd::name(isa));
    const simd::LowRankTable& table = simd::low_rank(isa);
    const std::vector<double> together = run({12, 70, 90, 12, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, table);
    const std::vector<double> mixed =
        run({12, 70, 90, 12, {1, 0, 1, -1, 1, 1, 1, 2, 1, 1, 1, 1}, DType::f32, 3}, table);
    const std::vector<double> every = run({12, 70, 90, 1, {1}, DType::f32, 2}, table);
    for (std::size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i], every[i]);
      const std::size_t row = i / 90;
      if (row != 1 && row != 3 && row != 7) {
        EXPECT_EQ(together[i], mixed[i]);
      }
    }
  }
}

TEST(LowRank, RowsThatAreNotKnownAreAnError) {
  std::mt19937 rng(1);
  const Numbers numbers(2, 4, 4, rng);
  const LowRank* const lists[] = {&numbers.layer, nullptr, &numbers.layer};
  std::vector<float> y(24, 1), x(24, 1), scratch(64);
  const auto message = [&](i64 batch) {
    TensorDesc desc(DType::f32, Shape{6, 4});
    const void* inputs[] = {y.data(), x.data()};
    void* output = y.data();
    const TensorDesc descs[] = {desc, desc};
    const AddAdapterAttrs attrs{0, 2, batch};
    ErrorSlot error;
    KernelContext ctx;
    ctx.input_descs = descs;
    ctx.output_descs = {&desc, 1};
    ctx.inputs = inputs;
    ctx.outputs = &output;
    ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
    ctx.scratch_bytes = reinterpret_cast<std::byte*>(scratch.data());
    ctx.error = &error;
    ctx.node = "layer";
    ctx.adapters = lists;
    for (ctx.phase = 0; ctx.phase < 2; ++ctx.phase) kAddAdapter.run(ctx);
    return std::string(error.message());
  };
  EXPECT_NE(message(0).find("not known to be those of the batch"), std::string::npos);
  EXPECT_NE(message(2).find("a batch of 2 got 3 adapters"), std::string::npos);
  EXPECT_EQ(y, std::vector<float>(24, 1));
  EXPECT_EQ(message(3), "");
}

}  // namespace
}  // namespace graft
