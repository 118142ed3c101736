#include "base/ggml_cpu.h"

#include <gtest/gtest.h>

namespace graft {
namespace {

// The modules of other builds are tested by test/all_cpus_check.sh.
TEST(GgmlCpu, IsTheLinkedBackend) {
  EXPECT_EQ(ggml_cpu().module, "");
#define GRAFT_EXPECT(member, function) EXPECT_EQ(ggml_cpu().member, &function);
  GRAFT_GGML_CPU_FUNCTIONS(GRAFT_EXPECT)
#undef GRAFT_EXPECT
}

}  // namespace
}  // namespace graft
