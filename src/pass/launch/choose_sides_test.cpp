#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lowering/lowering.h"
#include "pass/launch/passes.h"
#include "plan/test_plan_builder.h"

namespace graft {
namespace {

using test::PlanBuilder;
using ::testing::ElementsAre;

std::vector<bool> sides(const Plan& plan) {
  std::vector<bool> out;
  for (const Launch& launch : plan.launches) out.push_back(launch.on_device);
  return out;
}

// The stages of a plan whose launches run on these sides, in the order that suits them.
Plan cut(Plan plan, const std::vector<bool>& on_device) {
  for (std::size_t i = 0; i < plan.launches.size(); ++i) plan.launches[i].on_device = on_device[i];
  order_for_stages(plan);
  cut_stages(plan, 64);
  return plan;
}
Plan cut(const Plan& plan) { return cut(plan, sides(plan)); }

std::int64_t bytes(const Traffic& t) { return static_cast<std::int64_t>(t.upload_bytes + t.download_bytes); }

// All that the device has runs there: as it was before choose_sides().
struct Compared {
  Traffic greedy, chosen;
};
Compared compare(Plan plan) {
  Compared out;
  out.greedy = traffic(cut(plan));
  choose_sides(plan);
  out.chosen = traffic(cut(plan));
  return out;
}

TEST(ChooseSides, WhatTheDeviceHasStaysThere) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input, 4096), t = b.vector(MemoryKind::arena, 4096),
               y = b.vector(MemoryKind::output, 4096);
  b.device({x, x}, t);
  b.device({t, t}, y);
  Plan plan = b.uncut();
  EXPECT_EQ(choose_sides(plan), 0u);
  EXPECT_THAT(sides(plan), ElementsAre(true, true));
}

// A launch of the device between two of the CPU.
Plan host_device_host() {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), t1 = b.vector(MemoryKind::arena), t2 = b.vector(MemoryKind::arena),
               y = b.vector(MemoryKind::output);
  b.host({x}, t1);
  b.device({t1, t1}, t2);
  b.host({t2}, y);
  return b.uncut();
}

// An addition between two launches of the CPU is not worth two transfers of its operands.
TEST(ChooseSides, ALittleWorkBetweenLaunchesOfTheCpuStaysWithThem) {
  PlanBuilder b;
  constexpr std::int64_t n = 16 * 1024;
  const Tensor x = b.vector(MemoryKind::input, n), t1 = b.vector(MemoryKind::arena, n),
               t2 = b.vector(MemoryKind::arena, n), y = b.vector(MemoryKind::output, n);
  b.host({x}, t1);
  b.device({t1, t1}, t2);
  b.host({t2}, y);
  const Compared c = compare(b.uncut());
  EXPECT_EQ(bytes(c.greedy), 2 * 4 * n);
  EXPECT_EQ(c.greedy.uploads + c.greedy.downloads, 2u);
  EXPECT_EQ(bytes(c.chosen), 0);
  EXPECT_EQ(c.chosen.uploads + c.chosen.downloads, 0u);
}

TEST(ChooseSides, MuchWorkIsWorthTransfers) {
  PlanBuilder b;
  const std::int64_t n = 512;
  const Tensor w = b.matrix(MemoryKind::weight, n, n), x = b.matrix(MemoryKind::input, n, n),
               t1 = b.matrix(MemoryKind::arena, n, n), t2 = b.matrix(MemoryKind::arena, n, n),
               y = b.matrix(MemoryKind::output, n, n);
  b.host({x}, t1);
  b.device({w, t1}, t2, GGML_OP_MUL_MAT);
  b.host({t2}, y);
  Plan plan = b.uncut();
  EXPECT_EQ(choose_sides(plan), 0u);
}

// The cut goes through the narrow end of a chain, although the device has the rest of it.
TEST(ChooseSides, TheNarrowPlaceIsCut) {
  PlanBuilder b;
  constexpr std::int64_t wide = 64 * 1024;
  const Tensor x = b.vector(MemoryKind::input), big = b.vector(MemoryKind::arena, wide),
               doubled = b.vector(MemoryKind::arena, wide), y = b.vector(MemoryKind::output);
  b.host({x}, big);
  b.device({big, big}, doubled);
  b.device({doubled, doubled}, y);
  const Compared c = compare(b.uncut());
  EXPECT_EQ(bytes(c.greedy), 4 * (wide + 16));
  EXPECT_EQ(bytes(c.chosen), 0) << "both are less than the transfer of what the first reads";
  EXPECT_LT(c.chosen.uploads + c.chosen.downloads, c.greedy.uploads + c.greedy.downloads);
}

TEST(ChooseSides, ACopyOfWhatOnlyTheCpuReadsStaysThere) {
  PlanBuilder b;
  constexpr std::int64_t n = 16 * 1024;
  const Tensor x = b.vector(MemoryKind::input, n), t = b.vector(MemoryKind::arena, n),
               u = b.vector(MemoryKind::arena, n), y = b.vector(MemoryKind::output, n);
  b.device({x}, t, GGML_OP_CPY);
  b.host({t}, u);
  b.host({u}, y);
  Plan plan = b.uncut();
  EXPECT_EQ(choose_sides(plan), 1u);
  EXPECT_EQ(plan.launches[0].kernel, &kCopy);
}

// A transfer in the middle of a run costs more than launches of small values.
TEST(ChooseSides, SmallLaunchesBetweenAndAfterThoseOfTheCpuGoThere) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), t1 = b.vector(MemoryKind::arena), t2 = b.vector(MemoryKind::arena),
               t3 = b.vector(MemoryKind::arena), y = b.vector(MemoryKind::output);
  b.host({x}, t1);
  b.device({t1, t1}, t2);
  b.host({t2}, t3);
  b.device({t3, t3}, y);
  Plan plan = b.uncut();
  choose_sides(plan);
  EXPECT_THAT(sides(plan), ElementsAre(false, false, false, false));
}

// What the CPU makes before the device begins goes up with the inputs, and what it alone reads comes back with the
// results.
TEST(ChooseSides, BothEndsOfARunHaveTheirTransfersAnyway) {
  Plan plan = host_device_host();
  choose_sides(plan);
  EXPECT_THAT(sides(plan), ElementsAre(false, true, false));
}

TEST(ChooseSides, WhatNoLaunchOfTheCpuTouchesStaysOnTheDevice) {
  PlanBuilder b;
  constexpr std::int64_t n = 64 * 1024;
  const Tensor x = b.vector(MemoryKind::input, n), z = b.vector(MemoryKind::input, n),
               y = b.vector(MemoryKind::output, n), v = b.vector(MemoryKind::output, n);
  b.device({x, x}, y);  // its transfers cost more than it does
  b.host({z}, v);
  Plan plan = b.uncut();
  EXPECT_EQ(choose_sides(plan), 0u);
}

TEST(ChooseSides, WhatGgmlsCpuBackendLacksStaysOnTheDevice) {
  Plan plan = host_device_host();
  plan.launches[1].on_host_too = false;
  EXPECT_EQ(choose_sides(plan), 0u);
}

TEST(ChooseSides, LaunchesThatCommitStayOnTheCpu) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input, 4096), t = b.vector(MemoryKind::arena, 4096),
               s = b.vector(MemoryKind::state, 4096);
  b.device({x, x}, t);
  b.device({t}, s, GGML_OP_CPY);
  Plan plan = b.uncut();
  plan.commit_begin = 1;
  plan.launches[0].on_host_too = false;
  EXPECT_EQ(choose_sides(plan), 1u);
  EXPECT_THAT(sides(plan), ElementsAre(true, false));
  EXPECT_EQ(plan.launches[1].kernel, &kCopy);
}

// A plan with `launches` launches that read up to two values made before, one in three of the CPU alone.
Plan random_plan(std::mt19937& random, std::size_t launches, std::size_t& free) {
  PlanBuilder b;
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const auto size = [&] { return std::int64_t{16} << (2 * pick(7)); };
  std::vector<Tensor> values{b.vector(MemoryKind::input, size()), b.vector(MemoryKind::input, size()),
                             b.vector(MemoryKind::weight, size()), b.vector(MemoryKind::state, size())};
  free = 0;
  for (std::size_t i = 0; i < launches; ++i) {
    const bool in_place = pick(6) == 0 && i > 0;
    const std::vector<Tensor> inputs{values[pick(values.size())], values[pick(values.size())]};
    Tensor out = in_place ? values.back() : b.vector(pick(5) == 0 ? MemoryKind::output : MemoryKind::arena, size());
    if (pick(3) == 0) {
      b.host(inputs, out);
    } else {
      b.device(inputs, out);
      ++free;
    }
    if (!in_place) values.push_back(out);
  }
  return b.uncut();
}

TEST(ChooseSides, NoChoiceIsBetterInRandomPlans) {
  std::mt19937 random(7);
  std::size_t better_than_greedy = 0, moved = 0, kept = 0;
  for (int round = 0; round < 300; ++round) {
    std::size_t free = 0;
    Plan plan = random_plan(random, 4 + static_cast<std::size_t>(round) % 9, free);
    const Plan before = plan;
    const std::vector<bool> greedy = sides(plan);
    std::int64_t least = INT64_MAX;
    for (std::uint32_t choice = 0; choice < 1u << free; ++choice) {
      std::vector<bool> on_device = greedy;
      std::uint32_t bit = 0;
      for (std::size_t i = 0; i < on_device.size(); ++i)
        if (greedy[i]) on_device[i] = (choice >> bit++ & 1u) != 0;
      least = std::min(least, cost_of_sides(plan, on_device).total);
    }
    choose_sides(plan);
    const std::vector<bool> chosen = sides(plan);
    const SideCost cost = cost_of_sides(before, chosen);
    ASSERT_EQ(cost.total, least) << "plan " << round;
    // The stages transfer these bytes, and small gaps between those of the first upload.
    for (const auto& [side, expected] :
         {std::pair{chosen, cost.bytes}, {greedy, cost_of_sides(before, greedy).bytes}}) {
      const Traffic moved_bytes = traffic(cut(before, side));
      EXPECT_GE(bytes(moved_bytes), expected) << "plan " << round;
      EXPECT_LE(bytes(moved_bytes), moved_bytes.uploads > 0 ? expected + 3 * 16 * 1024 : expected) << "plan " << round;
    }
    better_than_greedy += cost.bytes < cost_of_sides(before, greedy).bytes;
    for (std::size_t i = 0; i < chosen.size(); ++i) (chosen[i] ? kept : moved) += greedy[i];
  }
  EXPECT_GT(better_than_greedy, 100u);
  EXPECT_GT(moved, 100u);
  EXPECT_GT(kept, 100u);
}

}  // namespace
}  // namespace graft
