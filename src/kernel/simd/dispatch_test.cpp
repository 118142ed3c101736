#include "kernel/simd/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/test_process.h"
#include "graft/error.h"
#include "kernel/conv/conv_vec.h"
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/cpu_check.h"

namespace graft::simd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool compiled_with_vec(Isa isa) {
  const std::vector<Isa> isas = available_isas_of<ConvTable>();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// The instruction set is settled once per process.
TEST(DispatchChoice, DISABLED_IsPrinted) {
  try {
    std::printf("chose %s\n", std::string(name(active_isa())).c_str());
  } catch (const InvalidArgument& e) {
    std::printf("%s\n", e.what());
  }
}

// What a process says whose GRAFT_ISA is `wanted`; null: not set.
std::string choice_of(const char* wanted) {
  return test::run_in_own_process("DispatchChoice.DISABLED_IsPrinted",
                                  wanted != nullptr ? std::string("GRAFT_ISA=") + wanted : "-u GRAFT_ISA");
}

// Products of bf16 are slower than those of f32 on Intel's CPUs.
TEST(DispatchChoice, TheFastestIsTheDefault) {
  Isa fastest = available_isas().back();
#ifdef __x86_64__
  if (fastest == Isa::avx512bf16 && __builtin_cpu_is("intel") != 0) fastest = Isa::avx512vnni;
#endif
  const std::string best = "chose " + std::string(name(fastest)) + "\n";
  EXPECT_THAT(choice_of(nullptr), HasSubstr(best));
  EXPECT_THAT(choice_of(""), HasSubstr(best));
}

TEST(DispatchChoice, TheEnvironmentForcesOne) {
  for (const Isa isa : available_isas()) {
    const std::string wanted(name(isa));
    EXPECT_THAT(choice_of(wanted.c_str()), HasSubstr("chose " + wanted + "\n"));
  }
}

TEST(DispatchChoice, AnUnknownOneIsAnError) {
  EXPECT_THAT(choice_of("avx9"), AllOf(HasSubstr("GRAFT_ISA: expected one of baseline"), HasSubstr("got \"avx9\"")));
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
