#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernel/kernel.h"
#include "kernel/kernel_test_util.h"

namespace graft {
namespace {

TEST(Meeting, TakesAFourthOfWhatIsLeftFromItsEnd) {
  Meeting meeting;
  const auto take = [&](bool from_back) {
    const auto [begin, end] = meeting.take(40, 2, 8, from_back);
    return std::pair(begin, end);
  };
  EXPECT_EQ(take(false), std::pair(0L, 8L));    // most
  EXPECT_EQ(take(true), std::pair(32L, 40L));   // most
  EXPECT_EQ(take(true), std::pair(26L, 32L));   // a fourth of 24
  EXPECT_EQ(take(false), std::pair(8L, 12L));   // of 18
  EXPECT_EQ(take(false), std::pair(12L, 15L));  // of 14
  EXPECT_EQ(take(false), std::pair(15L, 17L));  // least
  EXPECT_EQ(take(true), std::pair(24L, 26L));
  EXPECT_EQ(take(true), std::pair(22L, 24L));
  EXPECT_EQ(take(true), std::pair(20L, 22L));
  EXPECT_EQ(take(false), std::pair(17L, 19L));
  EXPECT_EQ(take(true), std::pair(19L, 20L));  // what is left
  EXPECT_EQ(take(true), std::pair(0L, 0L));
  EXPECT_EQ(take(false), std::pair(0L, 0L));
  meeting.clear();
  EXPECT_EQ(take(true), std::pair(32L, 40L));
}

TEST(Meeting, EachItemIsTakenOnce) {
  for (const int threads : {1, 2, 3, 4, 7})
    for (const std::int64_t count : {0, 1, 2, 5, 100, 10000}) {
      std::vector<std::atomic<int>> taken(static_cast<std::size_t>(count));
      KernelContext context;
      context.threads = threads;
      run_phases(2, context, [&](const KernelContext& ctx) {
        ctx.meet(count, 1, 64, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++taken[static_cast<std::size_t>(i)];
        });
      });
      for (const auto& times : taken) EXPECT_EQ(times, 2) << count << " items, " << threads << " threads";
    }
}

TEST(Meeting, AShareAloneTakesWhatOthersLeave) {
  std::vector<Meeting> meetings(2);
  KernelContext ctx;
  ctx.threads = 4;
  ctx.thread = 3;
  ctx.meetings = meetings.data();
  std::vector<std::int64_t> taken;
  const auto take = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) taken.push_back(i);
  };
  ctx.meet(100, 1, 100, take);
  ASSERT_EQ(taken.size(), 100u);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_GE(taken[i], 50) << i;  // what it has with its neighbour comes first
  std::ranges::sort(taken);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(taken[i], static_cast<std::int64_t>(i));
  for (ctx.thread = 0; ctx.thread < 3; ++ctx.thread) ctx.meet(100, 1, 100, take);
  EXPECT_EQ(taken.size(), 100u);
}

}  // namespace
}  // namespace graft
