#include "plan/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>

#include "graft/error.h"
#include "plan/arena_check.h"
#include "plan/arena_generators.h"

namespace graft {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t rounded(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool together(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

// --- simple reference planners, independent of the one tested ---

// Largest first, each into the smallest gap between the placed buffers that overlap it in time.
std::int64_t reference_greedy_by_size(const std::vector<Lifetime>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rounded(buffers[a].bytes) > rounded(buffers[b].bytes); });
  struct Block {
    std::int64_t begin, end;
    std::size_t buffer;
  };
  std::vector<Block> placed;
  std::int64_t peak = 0;
  for (const std::size_t i : order) {
    const std::int64_t bytes = rounded(buffers[i].bytes);
    if (bytes == 0) continue;
    std::vector<Block> others;
    for (const Block& block : placed) {
      if (together(buffers[block.buffer], buffers[i])) others.push_back(block);
    }
    std::sort(others.begin(), others.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
    std::int64_t at = -1;
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    std::int64_t previous = 0;
    for (const Block& block : others) {
      if (block.begin - previous >= bytes && block.begin - previous < smallest) {
        at = previous;
        smallest = block.begin - previous;
      }
      previous = std::max(previous, block.end);
    }
    if (at < 0) at = previous;
    placed.push_back({at, at + bytes, i});
    peak = std::max(peak, at + bytes);
  }
  return peak;
}

// ggml's graph allocator (ggml-alloc.c, one chunk): allocates a launch's outputs, then frees what no later launch
// reads. Free blocks are listed by address, the last one being the open end; best fit among the others, the later of
// equals.
std::int64_t reference_ggml(const std::vector<Lifetime>& buffers) {
  struct Block {
    std::int64_t offset, bytes;
  };
  std::vector<Block> blocks{{0, std::numeric_limits<std::int64_t>::max() / 2}};
  std::vector<std::int64_t> offsets(buffers.size(), -1);
  std::int64_t peak = 0;
  std::int32_t end = 0;
  for (const Lifetime& buffer : buffers) end = std::max(end, buffer.last);
  for (std::int32_t launch = 0; launch <= end; ++launch) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].first != launch || buffers[i].bytes == 0) continue;
      const std::int64_t bytes = rounded(buffers[i].bytes);
      std::size_t best = blocks.size() - 1;
      std::int64_t best_bytes = std::numeric_limits<std::int64_t>::max();
      for (std::size_t b = 0; b + 1 < blocks.size(); ++b) {
        if (blocks[b].bytes < bytes || blocks[b].bytes > best_bytes) continue;
        best = b;
        best_bytes = blocks[b].bytes;
      }
      offsets[i] = blocks[best].offset;
      peak = std::max(peak, offsets[i] + bytes);
      blocks[best].offset += bytes;
      blocks[best].bytes -= bytes;
      if (blocks[best].bytes == 0) blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(best));
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].last != launch || buffers[i].bytes == 0) continue;
      blocks.push_back({offsets[i], rounded(buffers[i].bytes)});
      std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.offset < b.offset; });
      for (std::size_t b = 0; b + 1 < blocks.size();) {
        if (blocks[b].offset + blocks[b].bytes == blocks[b + 1].offset) {
          blocks[b].bytes += blocks[b + 1].bytes;
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(b) + 1);
        } else {
          ++b;
        }
      }
    }
  }
  return peak;
}

// The smallest possible arena. Some optimal layout has every buffer at 0 or on top of another; built from the bottom
// up, a buffer lands on the highest placed one that it overlaps in time. So all orders with rising offsets are tried.
class Exact {
 public:
  Exact(const std::vector<Lifetime>& all, std::int64_t upper) : best_(upper) {
    for (const Lifetime& buffer : all) {
      if (buffer.bytes > 0) buffers_.push_back({rounded(buffer.bytes), buffer.first, buffer.last});
    }
    bound_ = live_lower_bound(all, kAlignment);
    floor_.assign(buffers_.size(), 0);
    placed_.assign(buffers_.size(), false);
  }
  std::int64_t solve() {
    extend(0, 0, 0);
    return best_;
  }

 private:
  // Lower bound at each launch where a buffer begins: the height there plus all that is still to come.
  bool hopeless() const {
    for (std::size_t at = 0; at < buffers_.size(); ++at) {
      std::int64_t height = 0;
      std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
      std::int64_t open = 0;
      for (std::size_t i = 0; i < buffers_.size(); ++i) {
        if (buffers_[i].first > buffers_[at].first || buffers_[i].last < buffers_[at].first) continue;
        if (placed_[i]) {
          height = std::max(height, floor_[i] + buffers_[i].bytes);
        } else {
          open += buffers_[i].bytes;
          lowest = std::min(lowest, floor_[i]);
        }
      }
      if (open > 0 && std::max(height, lowest) + open >= best_) return true;
    }
    return false;
  }
  void extend(std::size_t count, std::int64_t low, std::int64_t peak) {
    if (best_ == bound_) return;
    if (count == buffers_.size()) {
      best_ = std::min(best_, peak);
      return;
    }
    if (hopeless()) return;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (placed_[i] || floor_[i] < low) continue;
      const std::int64_t top = floor_[i] + buffers_[i].bytes;
      if (top >= best_) continue;
      const std::vector<std::int64_t> before = floor_;
      placed_[i] = true;
      for (std::size_t j = 0; j < buffers_.size(); ++j) {
        if (!placed_[j] && together(buffers_[i], buffers_[j])) floor_[j] = std::max(floor_[j], top);
      }
      extend(count + 1, floor_[i], std::max(peak, top));
      placed_[i] = false;
      floor_ = before;
    }
  }

  std::vector<Lifetime> buffers_;
  std::vector<std::int64_t> floor_;  // offset of a placed buffer; where an open one would land
  std::vector<bool> placed_;
  std::int64_t bound_ = 0;
  std::int64_t best_;
};

double milliseconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// --- the verifier ---

TEST(ArenaCheck, AcceptsBuffersThatShareBytesOrLaunchesButNotBoth) {
  const std::vector<Lifetime> buffers{{100, 0, 1}, {100, 1, 2}, {100, 2, 3}, {0, 0, 3}};
  EXPECT_EQ(find_overlap(buffers, std::vector<std::int64_t>{0, 128, 0, 0}, kAlignment), std::nullopt);
}

TEST(ArenaCheck, NamesBothBuffers) {
  const std::vector<Lifetime> buffers{{100, 0, 1}, {100, 1, 2}};
  EXPECT_EQ(find_overlap(buffers, std::vector<std::int64_t>{0, 64}, kAlignment),
            "buffer 0 (bytes 0 to 100, launches 0 to 1) overlaps buffer 1 (bytes 64 to 164, launches 1 to 2)");
  EXPECT_TRUE(find_overlap(buffers, std::vector<std::int64_t>{64, 0}, kAlignment).has_value());
  EXPECT_TRUE(find_overlap(buffers, std::vector<std::int64_t>{64, 64}, kAlignment).has_value());
}

TEST(ArenaCheck, RefusesBrokenOffsetsAndLifetimes) {
  const std::vector<Lifetime> one{{64, 0, 0}};
  EXPECT_EQ(find_overlap(one, std::vector<std::int64_t>{}, kAlignment), "expected 1 offsets, found 0");
  EXPECT_EQ(find_overlap(one, std::vector<std::int64_t>{32}, kAlignment),
            "buffer 0: expected an offset that is a multiple of 64, found 32");
  EXPECT_TRUE(find_overlap(one, std::vector<std::int64_t>{-64}, kAlignment).has_value());
  EXPECT_TRUE(find_overlap(std::vector<Lifetime>{{64, 1, 0}}, std::vector<std::int64_t>{0}, kAlignment).has_value());
  EXPECT_TRUE(find_overlap(std::vector<Lifetime>{{-1, 0, 0}}, std::vector<std::int64_t>{0}, kAlignment).has_value());
}

// Each layout is broken by moving one buffer onto another that is alive at the same time.
TEST(ArenaCheck, FindsAnOverlapThatWasPutIn) {
  int put_in = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const std::vector<Lifetime> buffers = testing::random_intervals(seed);
    std::vector<std::int64_t> offsets = plan_arena(buffers, kAlignment).offsets;
    testing::Draw draw(seed);
    const auto i = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(buffers.size()) - 1));
    for (std::size_t j = 0; j < buffers.size(); ++j) {
      if (j == i || buffers[i].bytes == 0 || buffers[j].bytes == 0 || !together(buffers[i], buffers[j])) continue;
      offsets[i] = offsets[j];
      ASSERT_TRUE(find_overlap(buffers, offsets, kAlignment).has_value()) << "seed " << seed;
      ++put_in;
      if (buffers[j].bytes > kAlignment) {  // and from a byte within the other one on
        offsets[i] += kAlignment;
        ASSERT_TRUE(find_overlap(buffers, offsets, kAlignment).has_value()) << "seed " << seed;
      }
      break;
    }
  }
  EXPECT_GT(put_in, 300);
}

TEST(ArenaCheck, LowerBoundIsTheBusiestLaunch) {
  EXPECT_EQ(live_lower_bound({}, kAlignment), 0);
  const std::vector<Lifetime> buffers{{1, 0, 1}, {65, 1, 2}, {640, 3, 3}, {0, 0, 9}, {64, 2, 3}};
  EXPECT_EQ(live_lower_bound(buffers, kAlignment), 704);
  const std::int32_t end = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(live_lower_bound(std::vector<Lifetime>{{1, -1, end}, {1, end, end}}, kAlignment), 128);
}

// --- the planner ---

struct Generator {
  const char* name;
  std::vector<Lifetime> (*make)(std::uint64_t seed);
};

class ArenaOn : public ::testing::TestWithParam<Generator> {};

TEST_P(ArenaOn, NoOverlapAndNeverAboveGreedyBySizeOrGgml) {
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const std::vector<Lifetime> buffers = GetParam().make(seed);
    const ArenaLayout layout = plan_arena(buffers, kAlignment);
    ASSERT_EQ(find_overlap(buffers, layout.offsets, kAlignment), std::nullopt) << "seed " << seed;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].bytes == 0) {
        EXPECT_EQ(layout.offsets[i], 0);
      } else {
        end = std::max(end, layout.offsets[i] + rounded(buffers[i].bytes));
      }
    }
    ASSERT_EQ(layout.bytes, end) << "seed " << seed;
    ASSERT_LE(layout.bytes, reference_greedy_by_size(buffers)) << "seed " << seed;
    ASSERT_LE(layout.bytes, reference_ggml(buffers)) << "seed " << seed;
    const std::int64_t bound = live_lower_bound(buffers, kAlignment);
    ASSERT_GE(layout.bytes, bound) << "seed " << seed;
    if (bound > 0) worst = std::max(worst, static_cast<double>(layout.bytes) / static_cast<double>(bound));
  }
  RecordProperty("worst_ratio_to_lower_bound", std::to_string(worst));
  if (GetParam().make == testing::transformer_like) {
    EXPECT_LE(worst, 1.01);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Generators, ArenaOn,
    ::testing::Values(Generator{"ChainWithSkips", testing::chain_with_skips},
                      Generator{"TransformerLike", testing::transformer_like},
                      Generator{"RandomIntervals", [](std::uint64_t seed) { return testing::random_intervals(seed); }}),
    [](const auto& test) { return test.param.name; });

TEST(Arena, AtMostFivePercentAboveTheOptimumOfSmallGraphs) {
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const std::vector<Lifetime> buffers = testing::random_intervals(seed, 12);
    const std::int64_t planned = plan_arena(buffers, kAlignment).bytes;
    const std::int64_t optimum = Exact(buffers, planned).solve();
    if (optimum == 0) continue;
    worst = std::max(worst, static_cast<double>(planned) / static_cast<double>(optimum));
    ASSERT_LE(static_cast<double>(planned), 1.05 * static_cast<double>(optimum)) << "seed " << seed;
  }
  RecordProperty("worst_ratio_to_optimum", std::to_string(worst));
}

// Compares the branch and bound, with its pruning, with all orders without any.
TEST(ArenaReference, ExactMatchesEveryOrderOfFiveBuffers) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<Lifetime> buffers = testing::random_intervals(seed, 5);
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    do {
      std::vector<std::int64_t> offsets(buffers.size(), 0);
      std::int64_t peak = 0;
      for (std::size_t a = 0; a < order.size(); ++a) {
        const std::size_t i = order[a];
        for (std::size_t b = 0; b < a; ++b) {
          const std::size_t j = order[b];
          if (buffers[i].bytes == 0 || buffers[j].bytes == 0 || !together(buffers[i], buffers[j])) continue;
          offsets[i] = std::max(offsets[i], offsets[j] + rounded(buffers[j].bytes));
        }
        if (buffers[i].bytes > 0) peak = std::max(peak, offsets[i] + rounded(buffers[i].bytes));
      }
      best = std::min(best, peak);
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(Exact(buffers, std::numeric_limits<std::int64_t>::max() / 4).solve(), best) << "seed " << seed;
  }
}

TEST(Arena, SmallCases) {
  const ArenaLayout none = plan_arena({}, kAlignment);
  EXPECT_EQ(none.bytes, 0);
  EXPECT_EQ(none.strategy, "empty");
  const ArenaLayout zero = plan_arena(std::vector<Lifetime>{{0, 0, 5}, {0, 2, 3}}, kAlignment);
  EXPECT_EQ(zero.bytes, 0);
  EXPECT_EQ(zero.offsets, (std::vector<std::int64_t>{0, 0}));
  const ArenaLayout one =
      plan_arena(std::vector<Lifetime>{{1, -1, std::numeric_limits<std::int32_t>::max()}}, kAlignment);
  EXPECT_EQ(one.bytes, 64);
  // The launch that writes the next buffer still reads this one, so they must not share memory.
  EXPECT_EQ(plan_arena(std::vector<Lifetime>{{64, 0, 1}, {64, 1, 2}, {64, 2, 3}}, kAlignment).bytes, 128);
}

// The layers of this network want the residual stream at opposite ends of attention and feed-forward: no order of
// buffers stacked from the bottom has been seen to meet the bound.
TEST(Arena, APieceCanHangFromTheTop) {
  const std::vector<Lifetime> buffers = testing::transformer_like(162);
  EXPECT_EQ(plan_arena(buffers, kAlignment).bytes, live_lower_bound(buffers, kAlignment));
}

TEST(Arena, TwoHundredBuffersWithinTheBudgetOfAPlan) {
  testing::Draw draw(3);
  std::vector<Lifetime> buffers;
  for (int i = 0; i < 200; ++i) {
    const auto first = static_cast<std::int32_t>(draw(0, 199));
    buffers.push_back({draw(1, 1 << 20), first, std::min(199, first + static_cast<std::int32_t>(draw(0, 60)))});
  }
  double best = milliseconds([&] { plan_arena(buffers, kAlignment); });
  for (int i = 0; i < 20; ++i) best = std::min(best, milliseconds([&] { plan_arena(buffers, kAlignment); }));
  RecordProperty("microseconds", std::to_string(best * 1e3));
  EXPECT_LT(best, 10);  // about 0.1 without a sanitizer; an unbounded search would take far more
}

TEST(Arena, SameLayoutEachTime) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Lifetime> buffers = testing::random_intervals(seed);
    const ArenaLayout a = plan_arena(buffers, kAlignment);
    const ArenaLayout b = plan_arena(buffers, kAlignment);
    EXPECT_EQ(a.offsets, b.offsets);
    EXPECT_EQ(a.strategy, b.strategy);
  }
}

TEST(Arena, SizesThatDoNotFitInt64AreAnError) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(plan_arena(std::vector<Lifetime>{{huge, 0, 0}}, kAlignment), Unsupported);
  EXPECT_THROW(plan_arena(std::vector<Lifetime>{{huge / 2, 0, 0}, {huge / 2, 1, 1}, {huge / 2, 2, 2}}, kAlignment),
               Unsupported);
}

TEST(Arena, FiftyThousandBuffersTenThousandDeep) {
  testing::Draw draw(7);
  std::vector<Lifetime> buffers;
  for (std::int32_t launch = 0; launch < 50'000; ++launch) {
    buffers.push_back({draw(1, 1 << 16), launch, launch + static_cast<std::int32_t>(draw(8'000, 12'000))});
  }
  const ArenaLayout layout = plan_arena(buffers, kAlignment);
  RecordProperty("ratio_to_lower_bound", std::to_string(static_cast<double>(layout.bytes) /
                                                        static_cast<double>(live_lower_bound(buffers, kAlignment))));
  EXPECT_EQ(find_overlap(buffers, layout.offsets, kAlignment), std::nullopt);
  EXPECT_EQ(layout.strategy, "best fit in launch order");  // the others would take the square of the buffers
}

TEST(Arena, ManyBuffersWithShortLivesStillGetTheGreedyStrategies) {
  testing::Draw draw(9);
  std::vector<Lifetime> buffers;
  for (std::int32_t launch = 0; launch < 50'000; ++launch) {
    buffers.push_back({draw(1, 1 << 16), launch, launch + static_cast<std::int32_t>(draw(1, 20))});
  }
  const ArenaLayout layout = plan_arena(buffers, kAlignment);
  EXPECT_EQ(find_overlap(buffers, layout.offsets, kAlignment), std::nullopt);
  EXPECT_NE(layout.strategy, "best fit in launch order");
  EXPECT_LE(static_cast<double>(layout.bytes), 1.1 * static_cast<double>(live_lower_bound(buffers, kAlignment)));
}

}  // namespace
}  // namespace graft
