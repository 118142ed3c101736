#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "exec/test_allocations.h"
#include "feed.h"
#include "graft/error.h"
#include "graft/graft.h"
#include "ir/test_blob.h"
#include "load/test_graph.h"
#include "mutate.h"
#include "package/container.h"
#include "package/test_package.h"

// The mutators of libFuzzer's targets on a fixed sequence of seeds. Run under the sanitizers too.
namespace graft {
namespace {

using fuzz::Blob;
using fuzz::Fate;

constexpr int kMutants = 5200;  // of each kind of file

// Two small programs, and those in the golden package.
std::vector<Blob> programs() {
  ir::test::BlobOptions other;
  other.initial_key = "h0";
  std::vector<Blob> out = {ir::test::make_blob(), ir::test::make_blob(other)};
  const PteFile golden(MappedFile::open(GRAFT_SOURCE_DIR "/test/golden/golden.pte"));
  for (const auto* plan : *golden.program().execution_plan())
    for (const auto* delegate : *plan->delegates()) {
      const auto bytes = golden.processed(*delegate);
      out.emplace_back(bytes.begin(), bytes.end());
    }
  return out;
}

std::vector<Blob> packages() {
  test::PteSpec spec;
  spec.plans = {test::delegated_plan(ir::test::make_blob()), test::delegated_plan(ir::test::make_blob(), "decode")};
  test::PlanSpec& plan = spec.plans[0];
  plan.values.push_back(test::number(test::fbe::KernelTypes::Bool, 0));
  plan.inputs = {0};
  plan.outputs = {0, 1};
  plan.operators = {{"aten::copy_", ""}};
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {0, 1, 2, 0}});
  spec.plans[1].inline_blob = true;
  spec.named = {{"w", test::bytes_of(64)}};
  spec.constants = {test::bytes_of(12)};
  const auto golden = MappedFile::open(GRAFT_SOURCE_DIR "/test/golden/golden.pte");
  return {make_pte(spec), Blob(golden->bytes().begin(), golden->bytes().end())};
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
Counts feed_mutants(std::vector<Blob> corpus, const std::function<Blob(const Blob&, std::uint64_t)>& mutate,
                    const std::function<Fate(const Blob&)>& feed) {
  const std::size_t good = corpus.size();
  for (const Blob& blob : corpus) EXPECT_TRUE(feed(blob).ran);
  Counts counts;
  for (int seed = 0; seed < kMutants; ++seed) {
    const Blob mutant =
        mutate(corpus[static_cast<std::size_t>(seed) % corpus.size()], static_cast<std::uint64_t>(seed));
    if (const char* last = std::getenv("GRAFT_LAST_MUTANT"))
      std::ofstream(last, std::ios::binary)
          .write(reinterpret_cast<const char*>(mutant.data()), static_cast<std::streamsize>(mutant.size()));
    const Fate fate = feed(mutant);
    counts.add(fate);
    if (fate.planned && seed % 7 == 0) {
      if (corpus.size() < good + 16)
        corpus.push_back(mutant);
      else
        corpus[good + static_cast<std::size_t>(seed / 7) % 16] = mutant;
    }
  }
  std::printf("%d mutants: %.1f %% pass verification, %.1f %% reach planning, %.1f %% run\n", counts.all,
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

TEST(Mutants, OfPrograms) {
  const WatchedLoads watched;
  const Counts counts = feed_mutants(
      programs(), [](const Blob& b, std::uint64_t seed) { return fuzz::mutate_ir(b, seed); },
      [](const Blob& b) { return fuzz::feed_ir(b); });
  EXPECT_GE(counts.percent(counts.planned), 30);
}

TEST(Mutants, OfPackages) {
  const WatchedLoads watched;
  const Counts counts = feed_mutants(
      packages(), [](const Blob& b, std::uint64_t seed) { return fuzz::mutate_package(b, seed); },
      [](const Blob& b) { return fuzz::feed_package(b); });
  EXPECT_GE(counts.percent(counts.planned), 30);
}

// Writes the corpus of `make fuzz`: the valid files, and mutants that reach planning.
TEST(Mutants, Corpus) {
  const char* folder = std::getenv("GRAFT_CORPUS");
  if (folder == nullptr) GTEST_SKIP() << "GRAFT_CORPUS names no folder";
  const auto write = [&](const std::string& kind, const std::vector<Blob>& good, const auto& mutate, const auto& feed) {
    int number = 0;
    const auto keep = [&](const Blob& blob) {
      std::ofstream file(std::filesystem::path(folder) / kind / ("made-" + std::to_string(number++)), std::ios::binary);
      file.write(reinterpret_cast<const char*>(blob.data()), static_cast<std::streamsize>(blob.size()));
      EXPECT_TRUE(file.good());
    };
    for (const Blob& blob : good) keep(blob);
    for (std::uint64_t seed = 0; number < 100 && seed < 1000; ++seed)
      if (const Blob mutant = mutate(good[seed % good.size()], seed); feed(mutant).planned) keep(mutant);
  };
  write(
      "ir", programs(), [](const Blob& b, std::uint64_t seed) { return fuzz::mutate_ir(b, seed); },
      [](const Blob& b) { return fuzz::feed_ir(b); });
  write(
      "package", packages(), [](const Blob& b, std::uint64_t seed) { return fuzz::mutate_package(b, seed); },
      [](const Blob& b) { return fuzz::feed_package(b); });
}

TEST(Mutants, SameSeedSameMutant) {
  const Blob good = packages()[1];
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(fuzz::mutate_package(good, seed), fuzz::mutate_package(good, seed));
}

}  // namespace
}  // namespace graft
