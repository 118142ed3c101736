#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "exec/test_allocations.h"
#include "feed.h"
#include "graft/error.h"
#include "mutate.h"
#include "seeds.h"

// The mutators of libFuzzer's targets on a fixed sequence of seeds. Run under the sanitizers too.
namespace graft {
namespace {

using fuzz::Blob;
using fuzz::Fate;
using fuzz::Target;

int mutants_of(const Target& target) {
  const std::string_view name = target.name;
  return name == "ir" || name == "package" ? 5200 : 2000;
}

struct Counts {
  int all = 0, verified = 0, planned = 0, ran = 0;
  void add(const Fate& fate) {
    ++all;
    verified += fate.verified;
    planned += fate.planned;
    ran += fate.ran;
  }
  double percent(int n) const { return 100. * n / all; }
};

// GRAFT_LAST_MUTANT names a file for the last one before a crash. Every seventh mutant joins the corpus, so that
// mutations accumulate.
Counts feed_mutants(const Target& target) {
  std::vector<Blob> corpus = target.seeds();
  const std::size_t good = corpus.size();
  for (const Blob& blob : corpus) EXPECT_TRUE(target.feed(blob).ran);
  Counts counts;
  for (int seed = 0; seed < mutants_of(target); ++seed) {
    const Blob mutant =
        target.mutate(corpus[static_cast<std::size_t>(seed) % corpus.size()], static_cast<std::uint64_t>(seed));
    if (const char* last = std::getenv("GRAFT_LAST_MUTANT"))
      std::ofstream(last, std::ios::binary)
          .write(reinterpret_cast<const char*>(mutant.data()), static_cast<std::streamsize>(mutant.size()));
    const Fate fate = target.feed(mutant);
    counts.add(fate);
    if (fate.planned && seed % 7 == 0) {
      if (corpus.size() < good + 16)
        corpus.push_back(mutant);
      else
        corpus[good + static_cast<std::size_t>(seed / 7) % 16] = mutant;
    }
  }
  std::printf("%d mutants: %.1f %% are read, %.1f %% are used, %.1f %% to the end\n", counts.all,
              counts.percent(counts.verified), counts.percent(counts.planned), counts.percent(counts.ran));
  return counts;
}

// The largest allocation of a load is bounded: see feed.h.
struct WatchedLoads {
  WatchedLoads() {
    fuzz::set_watch({[](std::size_t bytes) {
                       allowed() = std::max(bytes * fuzz::kLoadGrowth, fuzz::kWatchSlack);
                       test::begin_counting_allocations();
                     },
                     [] {
                       test::end_counting_allocations();
                       const std::size_t most = test::kCountsAllocations ? test::largest_allocation() : 0;
                       EXPECT_LE(most, allowed());
                     }});
  }
  ~WatchedLoads() { fuzz::set_watch({}); }
  static std::size_t& allowed() {
    static std::size_t bytes = 0;
    return bytes;
  }
};

class Mutants : public ::testing::TestWithParam<Target> {};

TEST_P(Mutants, AreErrorsOrUsable) {
  const WatchedLoads watched;
  const Counts counts = feed_mutants(GetParam());
  EXPECT_GE(counts.percent(counts.verified), GetParam().verified);
  EXPECT_GT(counts.ran, 0);
}

// Writes the corpus of `make fuzz`: the valid files, and mutants that are used.
TEST_P(Mutants, Corpus) {
  const char* folder = std::getenv("GRAFT_CORPUS");
  if (folder == nullptr) GTEST_SKIP() << "GRAFT_CORPUS names no folder";
  const Target& target = GetParam();
  const std::vector<Blob> good = target.seeds();
  int number = 0;
  std::filesystem::create_directories(std::filesystem::path(folder) / target.name);
  const auto keep = [&](const Blob& blob) {
    std::ofstream file(std::filesystem::path(folder) / target.name / ("made-" + std::to_string(number++)),
                       std::ios::binary);
    file.write(reinterpret_cast<const char*>(blob.data()), static_cast<std::streamsize>(blob.size()));
    EXPECT_TRUE(file.good());
  };
  for (const Blob& blob : good) keep(blob);
  for (std::uint64_t seed = 0; number < 100 && seed < 1000; ++seed)
    if (const Blob mutant = target.mutate(good[seed % good.size()], seed); target.feed(mutant).planned) keep(mutant);
}

TEST_P(Mutants, SameSeedSameMutant) {
  const Blob good = GetParam().seeds().back();
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(GetParam().mutate(good, seed), GetParam().mutate(good, seed));
}

INSTANTIATE_TEST_SUITE_P(Of, Mutants, ::testing::ValuesIn(fuzz::targets().begin(), fuzz::targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace graft
