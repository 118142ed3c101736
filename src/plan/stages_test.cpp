#include "plan/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lowering/lowering.h"
#include "pass/launch/passes.h"
#include "plan/test_plan_builder.h"

namespace graft {
namespace {

using test::PlanBuilder;
using ::testing::ElementsAre;

// "D 0-2 <3,4" is a stage on the device with launches 0 and 1, after the transfer of buffers 3 and 4 together.
std::vector<std::string> text(const Plan& plan) {
  std::vector<std::string> out;
  for (const Stage& stage : plan.stages) {
    std::string line =
        (stage.side == Side::device ? "D " : "H ") + std::to_string(stage.begin) + "-" + std::to_string(stage.end);
    for (const Transfer& t : stage.transfers) {
      std::string names;
      for (const Transfer::Part& part : t.parts)
        for (BufferId id = 0; id < plan.buffers.size(); ++id) {
          const Buffer& b = plan.buffers[id];
          if (b.allocation == part.allocation && b.offset >= part.offset &&
              b.offset + b.bytes <= part.offset + part.bytes)
            names += (names.empty() ? "" : ",") + std::to_string(id);
        }
      line += " <" + names;
    }
    out.push_back(line);
  }
  return out;
}

TEST(Stages, OneStageOnTheDevice) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), w = b.vector(MemoryKind::weight), y = b.vector(MemoryKind::output);
  b.device({x, w}, y);
  const Plan plan = b.cut();
  EXPECT_THAT(text(plan), ElementsAre("D 0-1 <0", "H 1-1 <2"));
  EXPECT_TRUE(plan.allocations[1].on_device);
  EXPECT_EQ(plan.device_block_bytes, 128) << "input and output; weights have memory of their own";
}

TEST(Stages, APlanForTheCpuAloneIsOneStage) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), y = b.vector(MemoryKind::output);
  b.host({x}, y);
  const Plan plan = b.cut();
  EXPECT_THAT(text(plan), ElementsAre("H 0-1"));
  EXPECT_EQ(plan.device_block_bytes, 0);
  EXPECT_FALSE(plan.allocations[0].on_device);
}

TEST(Stages, NoLaunches) {
  PlanBuilder b;
  b.vector(MemoryKind::input);
  EXPECT_THAT(text(b.cut()), ElementsAre("H 0-0"));
}

TEST(Stages, TransfersHappenOnceAndOnlyWhereNeeded) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), t1 = b.vector(MemoryKind::arena), t2 = b.vector(MemoryKind::arena),
               t3 = b.vector(MemoryKind::arena), y = b.vector(MemoryKind::output);
  b.device({x, x}, t1);
  b.host({t1, x}, t2);     // t1 is downloaded; x is still valid here
  b.device({t1, t2}, t3);  // t1 is still valid on the device
  b.host({t3, t1}, y);
  EXPECT_THAT(text(b.cut()), ElementsAre("D 0-1 <0", "H 1-2 <1", "D 2-3 <2", "H 3-4 <3"));
}

TEST(Stages, WritingOnOneSideMakesTheOtherStale) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), s = b.vector(MemoryKind::state), y = b.vector(MemoryKind::output);
  b.device({s, x}, s);  // in place
  b.host({s, x}, s);
  b.device({s, x}, y);
  EXPECT_THAT(text(b.cut()), ElementsAre("D 0-1 <0,1", "H 1-2 <1", "D 2-3 <1", "H 3-3 <2"));
}

TEST(Stages, StatesAndWrittenInputsEndOnTheHost) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), s = b.vector(MemoryKind::state), t = b.vector(MemoryKind::arena);
  b.device({x, s}, t);
  b.device({t, t}, s);
  b.device({t, t}, x);
  EXPECT_THAT(text(b.cut()), ElementsAre("D 0-3 <0,1", "H 3-3 <0,1"));
}

TEST(Stages, PartsOfABufferFromBothSides) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input, 8), whole = b.vector(MemoryKind::arena, 16),
               y = b.vector(MemoryKind::output);
  b.device({x, x}, sliced(whole, 0, 0, 8));
  b.host({x}, sliced(whole, 0, 8, 8));  // the first half is downloaded with the buffer before
  b.device({whole, whole}, y);
  EXPECT_THAT(text(b.cut()), ElementsAre("D 0-1 <0", "H 1-2 <1", "D 2-3 <1", "H 3-3 <2"));
}

TEST(Stages, AWholeOverwriteNeedsNoTransfer) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), s = b.vector(MemoryKind::state);
  b.device({x, x}, s);
  EXPECT_THAT(text(b.cut()), ElementsAre("D 0-1 <0", "H 1-1 <1"));
}

TEST(Stages, SmallBuffersTravelTogetherAndLargeOnesAlone) {
  PlanBuilder b;
  constexpr std::int64_t kLarge = 64 * 1024;
  const Tensor x = b.vector(MemoryKind::input, 3), z = b.vector(MemoryKind::input, 5),
               large = b.vector(MemoryKind::input, kLarge), y = b.vector(MemoryKind::output, 3);
  b.device({x, z, large}, y);
  const Plan plan = b.cut();
  ASSERT_THAT(text(plan), ElementsAre("D 0-1 <0,1 <2", "H 1-1 <3"));
  const Transfer& together = plan.stages[0].transfers[0];
  EXPECT_EQ(together.bytes, 64 + 20);
  EXPECT_EQ(together.parts[1].at, 64);
  EXPECT_EQ(plan.stages[0].transfers[1].device_offset, 128);
  const Traffic t = traffic(plan);
  EXPECT_EQ(t.uploads, 2u);
  EXPECT_EQ(t.upload_bytes, 84u + 4 * kLarge);
  EXPECT_EQ(t.downloads, 1u);
  EXPECT_EQ(t.download_bytes, 12u);
}

TEST(Stages, OrderBringsLaunchesOfOneSideTogether) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), t1 = b.vector(MemoryKind::arena), t2 = b.vector(MemoryKind::arena),
               t3 = b.vector(MemoryKind::arena), t4 = b.vector(MemoryKind::arena), y = b.vector(MemoryKind::output);
  b.device({x, x}, t1);    // 0
  b.host({x}, t2);         // 1: independent of 0
  b.device({t1, t2}, t3);  // 2
  b.host({x}, t4);         // 3: independent of all
  b.host({t4}, t4);        // 4
  b.device({t3, t4}, y);   // 5
  Plan plan = b.uncut();
  order_for_stages(plan);
  cut_stages(plan, 64);
  EXPECT_THAT(text(plan), ElementsAre("H 0-3", "D 3-6 <0,2,4", "H 6-6 <5"));
}

TEST(Stages, OrderKeepsWhatOverwritesAfterItsReaders) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), t = b.vector(MemoryKind::arena), u = b.vector(MemoryKind::arena),
               y = b.vector(MemoryKind::output);
  b.host({x}, t);
  b.device({t, t}, u);  // reads t before it changes
  b.host({x}, t);
  b.device({t, u}, y);
  Plan plan = b.uncut();
  order_for_stages(plan);
  ASSERT_EQ(plan.launches.size(), 4u);
  EXPECT_EQ(plan.launches[1].outputs[0].buffer, u.buffer);
  EXPECT_EQ(plan.launches[2].outputs[0].buffer, t.buffer);
}

TEST(Stages, LaunchesThatCommitStayLast) {
  PlanBuilder b;
  const Tensor x = b.vector(MemoryKind::input), s = b.vector(MemoryKind::state), t = b.vector(MemoryKind::arena);
  b.device({x, x}, t);
  b.host({x}, s);  // ready at once, but it changes a state
  Plan plan = b.uncut();
  plan.commit_begin = 1;
  order_for_stages(plan);
  EXPECT_EQ(plan.launches[1].outputs[0].buffer, s.buffer);
}

TEST(Stages, NeighboursInTheArenaAreOnePieceOfAnySize) {
  PlanBuilder b;
  constexpr std::int64_t kLarge = 64 * 1024;
  const Tensor x = b.vector(MemoryKind::input), t = b.vector(MemoryKind::arena, kLarge),
               u = b.vector(MemoryKind::arena, kLarge), y = b.vector(MemoryKind::output, kLarge);
  b.host({x}, t);
  b.host({x}, u);
  b.device({t, u}, y);
  const Plan plan = b.cut();
  ASSERT_THAT(text(plan), ElementsAre("H 0-2", "D 2-3 <1,2", "H 3-3 <3"));
  EXPECT_EQ(plan.stages[1].transfers[0].parts.size(), 1u);
}

}  // namespace
}  // namespace graft
