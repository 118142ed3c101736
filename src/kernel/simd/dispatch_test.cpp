#include "kernel/simd/dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "graft/error.h"
#include "kernel/conv/conv_vec.h"
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/cpu_check.h"

namespace graft::simd {
namespace {

bool compiled_with_vec(Isa isa) {
  const std::vector<Isa> isas = available_isas_of<ConvTable>();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// The instruction set is settled once per process, so each case runs in its own. Writes the choice to stderr.
[[noreturn]] void report_choice(const char* wanted) {
  if (wanted != nullptr) {
    setenv("GRAFT_ISA", wanted, 1);
  } else {
    unsetenv("GRAFT_ISA");
  }
  try {
    std::fprintf(stderr, "chose %s\n", std::string(name(active_isa())).c_str());
  } catch (const InvalidArgument& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::exit(0);
}

class DispatchDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// Products of bf16 are slower than those of f32 on Intel's CPUs.
TEST_F(DispatchDeathTest, TheFastestIsTheDefault) {
  Isa fastest = available_isas().back();
#ifdef __x86_64__
  if (fastest == Isa::avx512bf16 && __builtin_cpu_is("intel") != 0) fastest = Isa::avx512vnni;
#endif
  const std::string best = std::string(name(fastest)) + "\n";
  EXPECT_EXIT(report_choice(nullptr), testing::ExitedWithCode(0), "chose " + best);
  EXPECT_EXIT(report_choice(""), testing::ExitedWithCode(0), "chose " + best);
}

TEST_F(DispatchDeathTest, TheEnvironmentForcesOne) {
  for (const Isa isa : available_isas()) {
    const std::string wanted(name(isa));
    EXPECT_EXIT(report_choice(wanted.c_str()), testing::ExitedWithCode(0), "chose " + wanted);
  }
}

TEST_F(DispatchDeathTest, AnUnknownOneIsAnError) {
  EXPECT_EXIT(report_choice("avx9"), testing::ExitedWithCode(0), "GRAFT_ISA: expected one of baseline.*got \"avx9\"");
}

TEST(Dispatch, BaselineIsAlwaysThereAndTargetsAscend) {
  ASSERT_FALSE(available_isas().empty());
  EXPECT_EQ(available_isas().front(), Isa::baseline);
  for (std::size_t i = 1; i < available_isas().size(); ++i) EXPECT_LT(available_isas()[i - 1], available_isas()[i]);
}

TEST(Dispatch, AFamilyTakesItsBestTargetUpToTheOneAskedFor) {
  for (const Isa isa : available_isas()) {
    const Isa floats = *target_of<MatmulTable>(isa);
    EXPECT_LE(floats, isa);
    EXPECT_TRUE(compiled_with_vec(floats)) << name(floats);
    EXPECT_EQ(floats == isa, compiled_with_vec(isa));
    const std::optional<Isa> pairs = target_of<PairProducts>(isa);
    EXPECT_EQ(pairs.has_value(), pair_products(isa) != nullptr);
    EXPECT_TRUE(isa >= Isa::avx512bf16 || !pairs.has_value());
  }
  EXPECT_EQ(*target_of<MatmulTable>(Isa::baseline), Isa::baseline);
  EXPECT_EQ(target_of<PanelTable>(Isa::baseline), std::nullopt);
  EXPECT_EQ(find_table<PanelTable>(Isa::baseline), nullptr);
}

// Every target with float vectors has all families of them: a missing table would be slow, not wrong.
TEST(Dispatch, EveryFamilyOfVectorsIsCompiledForTheSameTargets) {
  EXPECT_EQ(available_isas_of<ConvTable>(), available_isas_of<MatmulTable>());
  EXPECT_EQ(available_isas_of<ElementwiseTable>(), available_isas_of<MatmulTable>());
  EXPECT_EQ(available_isas_of<MatmulTable>().front(), Isa::baseline);
}

TEST(Dispatch, GroupsAreWholeWords) {
  EXPECT_TRUE(compiles(Isa::baseline, "vec"));
  EXPECT_TRUE(compiles(Isa::baseline, "none baseline"));
  EXPECT_FALSE(compiles(Isa::baseline, "ve base"));
  EXPECT_FALSE(compiles(Isa::baseline, "vnni"));
}

TEST(CpuCheck, PassesWhereTheseTestsRun) { EXPECT_NO_THROW(check_cpu()); }

}  // namespace
}  // namespace graft::simd
