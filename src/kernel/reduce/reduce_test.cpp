#include "kernel/reduce/reduce.h"
#include "kernel/reduce/scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kernel/index/sort.h"
#include "kernel/kernel_test_util.h"
#include "kernel/reduce/reduce_vec.h"

namespace graft {
namespace {

struct Operand {
  TensorDesc desc;
  void* data;
};

// Runs a kernel with scratch and several outputs on the test's own threads.
template <typename Attrs>
void run(const Kernel& kernel, const Operand& input, const std::vector<Operand>& outputs, int threads,
         const Attrs& attrs, std::int64_t scratch_bytes) {
  std::vector<TensorDesc> descs;
  std::vector<void*> data;
  for (const Operand& o : outputs) {
    descs.push_back(o.desc);
    data.push_back(o.data);
  }
  std::vector<double> scratch(static_cast<std::size_t>(scratch_bytes + 7) / sizeof(double));
  const void* in = input.data;
  ErrorSlot error;
  KernelContext ctx;
  ctx.tasks = threads;
  ctx.input_descs = {&input.desc, 1};
  ctx.output_descs = descs;
  ctx.inputs = &in;
  ctx.outputs = data.data();
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  ctx.scratch_bytes = reinterpret_cast<std::byte*>(scratch.data());
  ctx.error = &error;
  run_phases(kernel.phases ? kernel.phases(ctx) : 1, ctx, kernel.run);
  EXPECT_FALSE(error.failed()) << error.message();
}

std::vector<float> reduce(const std::vector<float>& x, const TensorDesc& desc, ReduceAttrs attrs, std::int64_t outputs,
                          int threads) {
  std::vector<float> out(static_cast<std::size_t>(outputs), -77);
  run(kReduce, {desc, const_cast<float*>(x.data())}, {{TensorDesc(DType::f32, Shape{outputs}), out.data()}}, threads,
      attrs, reduce_scratch_bytes(outputs, desc.numel(), threads));
  return out;
}

TEST(Reduce, EverySetOfDimensionsOfAPermutedTensor) {
  const Shape shape{3, 5, 2, 130};
  std::vector<float> x(static_cast<std::size_t>(shape.numel()));
  std::mt19937 random(3);
  for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 100)) - 50;
  const std::vector<int> orders[] = {{0, 1, 2, 3}, {3, 0, 1, 2}, {2, 3, 1, 0}};
  const TensorDesc base(DType::f32, shape);
  for (const std::vector<int>& order : orders) {
    TensorDesc desc = base;
    for (int d = 0; d < 4; ++d) {
      const auto from = order[static_cast<std::size_t>(d)];
      desc.shape[d] = shape[from];
      desc.strides[static_cast<std::size_t>(d)] = base.strides[static_cast<std::size_t>(from)];
    }
    for (std::uint32_t reduced = 0; reduced < 16; ++reduced) {
      std::int64_t outputs = 1;
      for (int d = 0; d < 4; ++d)
        if (!(reduced >> d & 1u)) outputs *= desc.shape[d];
      std::vector<float> sums(static_cast<std::size_t>(outputs), 0), highest(sums.size(), -1000);
      for (std::int64_t i = 0; i < shape.numel(); ++i) {
        std::int64_t at[4], rest = i, address = 0, to = 0;
        for (int d = 3; d >= 0; --d) {
          at[d] = rest % desc.shape[d];
          rest /= desc.shape[d];
          address += at[d] * desc.strides[static_cast<std::size_t>(d)];
        }
        for (int d = 0; d < 4; ++d)
          if (!(reduced >> d & 1u)) to = to * desc.shape[d] + at[d];
        const float v = x[static_cast<std::size_t>(address)];
        sums[static_cast<std::size_t>(to)] += v;
        highest[static_cast<std::size_t>(to)] = std::max(highest[static_cast<std::size_t>(to)], v);
      }
      for (int threads : {1, 2}) {
        EXPECT_EQ(reduce(x, desc, {ReduceOp::sum, reduced, 0}, outputs, threads), sums) << reduced;
        EXPECT_EQ(reduce(x, desc, {ReduceOp::amax, reduced, 0}, outputs, threads), highest) << reduced;
      }
    }
  }
}

TEST(Reduce, ASumIsAsGoodAsOneInDouble) {
  std::vector<float> x(200003);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.5f);
  double exact = 0;
  for (float& v : x) exact += v = normal(random);
  const TensorDesc desc(DType::f32, Shape{static_cast<std::int64_t>(x.size())});
  for (int threads : {1, 2, 3}) {
    const float sum = reduce(x, desc, {ReduceOp::sum, 1, 0}, 1, threads)[0];
    EXPECT_NEAR(sum, exact, std::fabs(exact) * 1e-7);
    EXPECT_EQ(sum, reduce(x, desc, {ReduceOp::sum, 1, 0}, 1, threads)[0]);  // a second run gives the same
    const float deviation = reduce(x, desc, {ReduceOp::deviation, 1, 1}, 1, threads)[0];
    EXPECT_NEAR(deviation, 1, 0.01);
  }
}

TEST(Reduce, NanWinsAndTheFirstPlaceCounts) {
  std::vector<float> x(100000, 1);
  x[60000] = x[70000] = 5;
  std::int64_t place = -1;
  const TensorDesc desc(DType::f32, Shape{100000});
  const TensorDesc one(DType::i64, Shape{});
  for (int threads : {1, 2}) {
    run(kReduce, {desc, x.data()}, {{one, &place}}, threads, ReduceAttrs{ReduceOp::argmax, 1, 0},
        reduce_scratch_bytes(1, 100000, threads));
    EXPECT_EQ(place, 60000);
    x[80000] = x[90000] = std::nanf("");
    run(kReduce, {desc, x.data()}, {{one, &place}}, threads, ReduceAttrs{ReduceOp::argmin, 1, 0},
        reduce_scratch_bytes(1, 100000, threads));
    EXPECT_EQ(place, 80000);
    EXPECT_TRUE(std::isnan(reduce(x, desc, {ReduceOp::amax, 1, 0}, 1, threads)[0]));
    x[80000] = x[90000] = 1;
  }
}

// Few and many outputs, with the reduced dimension last and first: the number of threads does not matter.
TEST(Reduce, AnyNumberOfThreadsGivesTheSame) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.25f);
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 100001}, {3, 40000}, {40000, 5}, {70, 300}}) {
    std::vector<float> x(static_cast<std::size_t>(rows * columns));
    for (float& v : x) v = normal(random);
    const TensorDesc desc(DType::f32, Shape{rows, columns});
    for (const std::uint32_t reduced : {1u, 2u, 3u}) {
      const std::int64_t outputs = (reduced & 1u ? 1 : rows) * (reduced & 2u ? 1 : columns);
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::variance, ReduceOp::log_sum_exp, ReduceOp::amin,
                                ReduceOp::root_of_squares, ReduceOp::abs_sum, ReduceOp::argmax}) {
        const std::vector<float> one = reduce(x, desc, {op, reduced, 0}, outputs, 1);
        for (const int threads : {2, 3, 5})
          EXPECT_EQ(reduce(x, desc, {op, reduced, 0}, outputs, threads), one) << threads;
      }
    }
  }
}

TEST(Reduce, InnerLoopsOfEveryLevelMatchAPlainOne) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto plain = [](simd::ReduceKind kind, double sum, float v, double shift) {
    const auto x = static_cast<double>(v);
    switch (kind) {
      case simd::ReduceKind::sum:
        return sum + x;
      case simd::ReduceKind::absolutes:
        return sum + std::fabs(x);
      case simd::ReduceKind::squares:
        return sum + x * x;
      case simd::ReduceKind::squared_differences:
        return sum + (x - shift) * (x - shift);
      case simd::ReduceKind::exponentials:
        return sum + static_cast<double>(std::exp(v - static_cast<float>(shift)));
      case simd::ReduceKind::largest:
        return x > sum || std::isnan(x) ? x : sum;
      default:
        return x < sum || std::isnan(x) ? x : sum;
    }
  };
  for (const simd::Isa isa : simd::available_isas_of<simd::ReduceTable>()) {
    for (int k = 0; k < simd::kReduceKinds; ++k) {
      const auto kind = static_cast<simd::ReduceKind>(k);
      for (const std::size_t n : {0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 65, 200}) {
        for (const bool has_nan : {false, true}) {
          // Three rows; the first is the run.
          constexpr std::size_t kRows = 3;
          const std::size_t row = n + 2;
          std::vector<float> memory(1 + kRows * row);
          for (float& v : memory) v = normal(random);
          if (has_nan && n > 3) memory[n / 2] = std::nanf("");
          const float* x = memory.data() + 1;  // unaligned for vectors
          std::vector<double> lanes(simd::kReduceLanes, 0.5), expected = lanes, columns(n + 1, 0.5), shift(n + 1);
          for (std::size_t i = 0; i < n; ++i) shift[i] = static_cast<double>(static_cast<float>(i) / 64);
          simd::reduce(isa).run[k](x, static_cast<std::int64_t>(n), 0.125, lanes.data());
          simd::reduce(isa).columns[k](x, static_cast<std::int64_t>(row), kRows, static_cast<std::int64_t>(n),
                                       shift.data(), columns.data());
          for (std::size_t i = 0; i < n; ++i)
            expected[i % expected.size()] = plain(kind, expected[i % expected.size()], x[i], 0.125);
          const auto close = [&](double got, double wanted) {
            const double slack = kind == simd::ReduceKind::exponentials ? 1e-6 * wanted : 1e-15 * std::fabs(wanted);
            EXPECT_TRUE((std::isnan(got) && std::isnan(wanted)) || std::fabs(got - wanted) <= slack)
                << simd::name(isa) << " kind " << k << " n " << n << ": " << got << ", expected " << wanted;
          };
          for (std::size_t i = 0; i < lanes.size(); ++i) close(lanes[i], expected[i]);
          for (std::size_t i = 0; i < n; ++i) {
            double sum = 0.5;
            for (std::size_t r = 0; r < kRows; ++r) sum = plain(kind, sum, x[i + r * row], shift[i]);
            close(columns[i], sum);
          }
          EXPECT_EQ(columns[n], 0.5);
        }
      }
    }
  }
}

TEST(Reduce, NoElements) {
  const TensorDesc empty(DType::f32, Shape{0, 4});
  EXPECT_EQ(reduce({}, empty, {ReduceOp::sum, 1, 0}, 4, 2), std::vector<float>(4, 0));
  EXPECT_EQ(reduce({}, empty, {ReduceOp::prod, 1, 0}, 4, 2), std::vector<float>(4, 1));
  EXPECT_TRUE(std::isnan(reduce({}, empty, {ReduceOp::mean, 1, 0}, 4, 2)[0]));
  EXPECT_TRUE(std::isnan(reduce({}, empty, {ReduceOp::variance, 1, 1}, 4, 2)[0]));
}

TEST(Scan, BothDirectionsOfMemory) {
  std::vector<std::int32_t> x(200 * 300), y(x.size());
  std::iota(x.begin(), x.end(), 0);
  const TensorDesc desc(DType::i32, Shape{200, 300});
  for (int threads : {1, 2}) {
    for (std::int32_t dim : {0, 1}) {
      run(kScan, {desc, x.data()}, {{desc, y.data()}}, threads, ScanAttrs{ScanOp::sum, dim}, 0);
      std::int32_t sum = 0;
      const std::size_t step = dim == 0 ? 300 : 1, length = dim == 0 ? 200 : 300, start = dim == 0 ? 7 : 7 * 300;
      for (std::size_t i = 0; i < length; ++i) {
        sum += x[start + i * step];
        ASSERT_EQ(y[start + i * step], sum);
      }
    }
  }
}

TEST(Scan, LongLinesAndAnyNumberOfThreadsGiveTheSame) {
  for (const auto& [lines, length] :
       {std::pair<std::int64_t, std::int64_t>{1, 70001}, {3, 40000}, {17, 40000}, {6, 5}}) {
    std::vector<float> x(static_cast<std::size_t>(lines * length)), y(x.size()), first;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    const TensorDesc desc(DType::f32, Shape{lines, length});
    const ScanAttrs attrs{ScanOp::sum, 1};
    for (int threads : {1, 2, 3}) {
      run(kScan, {desc, x.data()}, {{desc, y.data()}}, threads, attrs, scan_scratch_bytes(desc, attrs));
      if (threads == 1) first = y;
      EXPECT_EQ(y, first) << threads << " threads";
    }
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i % static_cast<std::size_t>(length) == 0) sum = 0;
      sum += static_cast<double>(x[i]);
      ASSERT_NEAR(y[i], sum, 1e-7 * std::fabs(sum) + 1e-9) << i;
    }
  }
}

TEST(Sort, StableWithNanLastAndMinusZeroEqualToZero) {
  std::vector<float> x = {3, 0.f, std::nanf(""), -0.f, -INFINITY, 3, INFINITY};
  std::vector<float> values(7);
  std::vector<std::int64_t> places(7);
  const TensorDesc desc(DType::f32, Shape{7}), indices(DType::i64, Shape{7});
  run(kSort, {desc, x.data()}, {{desc, values.data()}, {indices, places.data()}}, 2, SortAttrs{},
      sort_scratch_bytes(1, 7, 2));
  EXPECT_EQ(places, (std::vector<std::int64_t>{4, 1, 3, 0, 5, 6, 2}));
  EXPECT_TRUE(std::signbit(values[2]));
  SortAttrs down;
  down.descending = true;
  down.topk = true;
  const TensorDesc two(DType::f32, Shape{3}), two_indices(DType::i64, Shape{3});
  run(kSort, {desc, x.data()}, {{two, values.data()}, {two_indices, places.data()}}, 2, down,
      sort_scratch_bytes(1, 7, 2));
  EXPECT_EQ((std::vector<std::int64_t>(places.begin(), places.begin() + 3)), (std::vector<std::int64_t>{2, 6, 0}));
}

}  // namespace
}  // namespace graft
