#include "plan/stored_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/sha256.h"
#include "base/test_errors.h"
#include "load/test_graph.h"
#include "plan/make_plan.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::expect_error;
using test::GraphBuilder;

constexpr std::size_t kDigest = 32;

// y = exp(exp(x) * x) * exp(x): arena buffers that are alive at the same time.
struct Net {
  GraphBuilder graph;
  Net() {
    const std::vector<ir::Dim> dims{dynamic(1, 512, "n")};
    const auto x = graph.input("x", DType::f32, dims);
    const auto e = graph.node("aten.exp.default", {{"self", Arg::of_value(x)}}, DType::f32, dims);
    const auto p =
        graph.node("aten.mul.Tensor", {{"self", Arg::of_value(e)}, {"other", Arg::of_value(x)}}, DType::f32, dims);
    const auto q = graph.node("aten.cumsum.default",
                              {{"self", Arg::of_value(p)}, {"dim", test::of_int(0)}, {"dtype", test::of_none()}},
                              DType::f32, dims);
    const auto y =
        graph.node("aten.mul.Tensor", {{"self", Arg::of_value(q)}, {"other", Arg::of_value(e)}}, DType::f32, dims);
    graph.output(y);
  }
  Plan plan(std::int64_t n, const StoredPlan* stored = nullptr) {
    InputDesc x;
    x.desc = TensorDesc(DType::f32, Shape{n});
    PlanOptions options;
    options.stored = stored;
    return make_plan(graph.program(), graph.method(), std::span(&x, 1), options);
  }
  StoredPlan stored(std::int64_t n) { return stored_plan_of(plan(n), "forward", 1, 1); }
};

std::optional<StoredPlan> decode(const std::vector<std::byte>& bytes) {
  return decode_stored_plan(bytes, plan_origin("cpu"), "the plan");
}

// Like an attacker who knows the format.
void sign(std::vector<std::byte>& bytes) {
  const auto digest = sha256(std::span(bytes).first(bytes.size() - kDigest));
  std::memcpy(bytes.data() + bytes.size() - kDigest, digest.data(), kDigest);
}

TEST(StoredPlan, IsThePlanAgain) {
  Net net;
  const Plan made = net.plan(100);
  const std::optional<StoredPlan> read = decode(encode(net.stored(100), plan_origin("cpu")));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->sizes, std::vector<std::int64_t>{100});
  EXPECT_EQ(read->method, "forward");
  EXPECT_GE(read->lifetimes.size(), 2u);
  const Plan again = net.plan(100, &*read);
  EXPECT_FALSE(made.layout_was_stored);
  EXPECT_TRUE(again.layout_was_stored);
  EXPECT_EQ(again.arena_bytes, made.arena_bytes);
  ASSERT_EQ(again.buffers.size(), made.buffers.size());
  for (std::size_t i = 0; i < made.buffers.size(); ++i) EXPECT_EQ(again.buffers[i].offset, made.buffers[i].offset);
}

TEST(StoredPlan, OfOtherSizesIsNotUsed) {
  Net net;
  const StoredPlan stored = net.stored(100);
  EXPECT_FALSE(net.plan(200, &stored).layout_was_stored);
}

TEST(StoredPlan, OfAnotherOriginIsStale) {
  Net net;
  const PlanOrigin here = plan_origin("cpu");
  for (std::string PlanOrigin::*part : {&PlanOrigin::version, &PlanOrigin::device, &PlanOrigin::instructions}) {
    PlanOrigin other = here;
    other.*part += " of another";
    EXPECT_FALSE(decode(encode(net.stored(64), other)).has_value());
  }
  std::vector<std::byte> newer = encode(net.stored(64), here);
  newer[8] = std::byte{2};  // the format
  sign(newer);
  EXPECT_FALSE(decode(newer).has_value());
}

TEST(StoredPlan, EveryFlippedByteAndEveryLengthIsSeen) {
  Net net;
  const std::vector<std::byte> good = encode(net.stored(64), plan_origin("cpu"));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> bad = good;
    bad[i] ^= std::byte{0x10};
    EXPECT_THROW(decode(bad), InvalidProgram) << "byte " << i;
    EXPECT_THROW(decode(std::vector<std::byte>(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(i))),
                 InvalidProgram);
  }
}

// With a valid checksum, each change must be an error, a plan for another machine or other sizes, or a safe layout.
TEST(StoredPlan, TamperedWithIsAnErrorOrHarmless) {
  Net net;
  const std::vector<std::byte> good = encode(net.stored(64), plan_origin("cpu"));
  const Plan made = net.plan(64);
  int errors = 0, stale = 0, unused = 0, same = 0;
  for (std::size_t i = 0; i + kDigest < good.size(); ++i) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x40}, std::byte{0xff}}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= flip;
      sign(bad);
      try {
        const std::optional<StoredPlan> read = decode(bad);
        if (!read) {
          ++stale;
          continue;
        }
        const Plan plan = net.plan(64, &*read);
        ++(plan.layout_was_stored ? same : unused);
        EXPECT_LE(plan.arena_bytes, 2 * made.arena_bytes);
      } catch (const InvalidProgram&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 0);
  EXPECT_GT(stale, 0);
  EXPECT_GT(unused, 0);
  EXPECT_GT(same, 0);  // method name, sizes and threads only select a plan
}

TEST(StoredPlan, EveryOffsetIsChecked) {
  Net net;
  const StoredPlan good = net.stored(64);
  ASSERT_GE(good.offsets.size(), 2u);
  const auto refused = [&](auto change, const char* why) {
    StoredPlan bad = good;
    change(bad);
    expect_error<InvalidProgram>([&] { net.plan(64, &bad); }, why);
  };
  refused([](StoredPlan& p) { p.offsets[0] = p.arena_bytes; }, "does not lie in the arena");
  refused([](StoredPlan& p) { p.offsets[0] = -64; }, "does not lie in the arena");
  refused([](StoredPlan& p) { p.offsets[0] = INT64_MAX; }, "does not lie in the arena");
  refused([](StoredPlan& p) { p.offsets[1] = p.offsets[0]; }, "stored plan of method 'forward'");
  refused([](StoredPlan& p) { p.offsets[1] += 4; }, "stored plan of method 'forward'");
  refused([](StoredPlan& p) { p.arena_bytes = INT64_MAX; }, "has an arena of 9223372036854775807 bytes");
  refused([](StoredPlan& p) { p.arena_bytes = 0; }, "does not lie in the arena");
}

}  // namespace
}  // namespace graft
