#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernel/conv/conv_input.h"
#include "kernel/kernel.h"
#include "kernel/kernel_test_util.h"

namespace graft {
namespace {

TEST(TwoEndedRange, TakesAThirdOfWhatIsLeftFromItsEnd) {
  TwoEndedRange range;
  const auto take = [&](bool from_back) {
    const auto [begin, end] = range.take(40, {.min = 2, .max = 8}, from_back);
    return std::pair(begin, end);
  };
  EXPECT_EQ(take(false), std::pair(0L, 8L));   // max
  EXPECT_EQ(take(true), std::pair(32L, 40L));  // max
  EXPECT_EQ(take(true), std::pair(24L, 32L));
  EXPECT_EQ(take(false), std::pair(8L, 13L));   // a third of 16
  EXPECT_EQ(take(false), std::pair(13L, 16L));  // of 11
  EXPECT_EQ(take(false), std::pair(16L, 18L));
  EXPECT_EQ(take(true), std::pair(22L, 24L));  // min
  EXPECT_EQ(take(true), std::pair(20L, 22L));
  EXPECT_EQ(take(true), std::pair(19L, 20L));  // the last two are divided
  EXPECT_EQ(take(false), std::pair(18L, 19L));
  EXPECT_EQ(take(true), std::pair(0L, 0L));
  EXPECT_EQ(take(false), std::pair(0L, 0L));
  range.clear();
  EXPECT_EQ(take(true), std::pair(32L, 40L));
}

TEST(TwoEndedRange, TakesWholeUnitsWhileThereAreTwo) {
  TwoEndedRange range;
  const auto take = [&](bool from_back) {
    const auto [begin, end] = range.take(60, {.min = 3, .multiple = 10}, from_back);
    return std::pair(begin, end);
  };
  EXPECT_EQ(take(false), std::pair(0L, 20L));
  EXPECT_EQ(take(true), std::pair(50L, 60L));  // a third of 40 would be 13
  EXPECT_EQ(take(true), std::pair(40L, 50L));
  EXPECT_EQ(take(false), std::pair(20L, 30L));  // a third of 20 would be 6
  EXPECT_EQ(take(true), std::pair(37L, 40L));   // the last one is divided
  EXPECT_EQ(take(false), std::pair(30L, 33L));
  EXPECT_EQ(take(false), std::pair(33L, 35L));
  EXPECT_EQ(take(true), std::pair(36L, 37L));
  EXPECT_EQ(take(false), std::pair(35L, 36L));
  EXPECT_EQ(take(false), std::pair(0L, 0L));
}

TEST(TwoEndedRange, EachItemIsTakenOnce) {
  for (const int threads : {1, 2, 3, 4, 7})
    for (const std::int64_t whole : {1, 3, 40})
      for (const std::int64_t count : {0, 1, 2, 5, 100, 10000}) {
        std::vector<std::atomic<int>> taken(static_cast<std::size_t>(count));
        KernelContext context;
        context.tasks = threads;
        run_phases(2, context, [&](const KernelContext& ctx) {
          ctx.for_chunks(count, {.max = 64, .multiple = whole}, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) ++taken[static_cast<std::size_t>(i)];
          });
        });
        for (const auto& times : taken) EXPECT_EQ(times, 2) << count << " items, " << threads << " threads";
      }
}

TEST(TwoEndedRange, AShareAloneTakesWhatOthersLeave) {
  std::vector<TwoEndedRange> steal_ranges(2);
  KernelContext ctx;
  ctx.tasks = 4;
  ctx.task = 3;
  ctx.steal_ranges = steal_ranges.data();
  std::vector<std::int64_t> taken;
  const auto take = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) taken.push_back(i);
  };
  ctx.for_chunks(100, {}, take);
  ASSERT_EQ(taken.size(), 100u);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_GE(taken[i], 50) << i;  // items of its own pair come first
  std::ranges::sort(taken);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(taken[i], static_cast<std::int64_t>(i));
  for (ctx.task = 0; ctx.task < 3; ++ctx.task) ctx.for_chunks(100, {}, take);
  EXPECT_EQ(taken.size(), 100u);
  ctx.for_chunks(0, {.multiple = 0}, take);  // attention without queries
  EXPECT_EQ(taken.size(), 100u);
}

TEST(ShareTiles, EveryTileOfEveryPanelIsDoneOnce) {
  for (const int threads : {1, 2, 3, 5})
    for (const std::int64_t tiles : {1, 2, 17, 18, 63, 64, 200})
      for (const std::int64_t panels : {1, 7, 8, 12, 48})
        for (const std::int64_t input_bytes : {0, 1 << 21}) {
          std::vector<std::atomic<int>> done(static_cast<std::size_t>(tiles * panels));
          KernelContext context;
          context.tasks = threads;
          run_phases(1, context, [&](const KernelContext& ctx) {
            for_tiles(ctx, tiles, panels, 8, input_bytes,
                      [&](std::int64_t panel, std::int64_t next, std::int64_t from, std::int64_t to) {
                        EXPECT_LT(from, to);
                        EXPECT_TRUE(next >= 0 && next < panels) << next;
                        for (std::int64_t tile = from; tile < to; ++tile)
                          ++done[static_cast<std::size_t>(panel * tiles + tile)];
                      });
          });
          for (const auto& times : done)
            EXPECT_EQ(times, 1) << tiles << " tiles, " << panels << " panels, " << threads << " threads";
        }
}

// Both tasks begin with the first panels; each reads half of the inputs.
TEST(ShareTiles, LargeInputsAreReadByHalves) {
  constexpr std::int64_t kTiles = 17, kPanels = 12;
  for (const int thread : {0, 1}) {
    TwoEndedRange range;
    KernelContext ctx;
    ctx.tasks = 2;
    ctx.task = thread;
    ctx.steal_ranges = &range;
    std::vector<std::int64_t> order, first, nexts;
    for_tiles(ctx, kTiles, kPanels, 8, 1 << 20,
              [&](std::int64_t panel, std::int64_t next, std::int64_t from, std::int64_t) {
                if (!order.empty() && order.back() == panel && first.back() / 9 == from / 9)
                  return;  // the rest of the panel
                order.push_back(panel);
                first.push_back(from);
                nexts.push_back(next);
              });
    ASSERT_EQ(order.size(), 2u * kPanels);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(first[i] >= 9, thread == 1) << i;
    for (std::size_t i = 16; i < 24; ++i) EXPECT_EQ(first[i] >= 9, thread == 0) << i;
    EXPECT_LT(order[0], kPanels * 2 / 3);
    for (std::size_t i = 1; i < 8 && thread == 0; ++i) EXPECT_EQ(nexts[i - 1], order[i]) << i;
  }
}

}  // namespace
}  // namespace graft
