#include "pass/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;

TEST(Pipeline, StagesFollowEachOtherAndEveryConditionIsInWords) {
  const std::span<const Pass> list = pass_list();
  EXPECT_TRUE(std::ranges::is_sorted(list, {}, &Pass::stage));
  for (const Pass& pass : list) {
    EXPECT_EQ(pass.graph == nullptr, pass.stage == PassStage::launches) << pass.name;
    EXPECT_EQ(pass.launches != nullptr, pass.stage == PassStage::launches) << pass.name;
    EXPECT_EQ(pass.applies == nullptr, pass.condition.empty()) << pass.name;
  }
}

// relu(x) of a linear layer with 16 outputs, for 12 rows.
ir::Program linear_graph() {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(12), fixed(8)});
  const auto w = graph.weight("w", std::vector<float>(16 * 8, 0.5F), {16, 8});
  const auto y =
      graph.node("aten.linear.default", {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", {}}},
                 DType::f32, {fixed(12), fixed(16)});
  graph.output(graph.node("aten.relu.default", {{"self", Arg::of_value(y)}}, DType::f32, {fixed(12), fixed(16)}));
  return graph.program();
}

const PassReport& report_of(const std::vector<PassReport>& reports, std::string_view name) {
  const auto found = std::ranges::find_if(reports, [&](const PassReport& r) { return r.pass->name == name; });
  EXPECT_NE(found, reports.end()) << name;
  return *found;
}

TEST(Pipeline, PassesReportTheirRewritesOrStayOut) {
  ir::Program program = linear_graph();
  GraphPasses passes{program, {}};
  const std::vector<PassReport> reports = run_graph_passes(PassStage::placed, passes);
  const PassReport& packed = report_of(reports, "pack_linear_layers");
  EXPECT_TRUE(packed.ran);
  EXPECT_EQ(packed.rewrites, 1u);
  EXPECT_EQ(packed.before, 2u);
  EXPECT_EQ(packed.after, 3u);  // graft.pack_linear
  EXPECT_EQ(report_of(reports, "fuse_rope").rewrites, 0u);

  ir::Program other = linear_graph();
  GraphPasses plain{other, {.plain = true}};
  const std::vector<PassReport> kept_out = run_graph_passes(PassStage::placed, plain);
  EXPECT_EQ(kept_out.size(), reports.size());
  EXPECT_FALSE(report_of(kept_out, "pack_linear_layers").ran);
  EXPECT_TRUE(report_of(kept_out, "fuse_rms_norm").ran);
  EXPECT_EQ(other.methods[0].nodes.size(), 2u);
}

}  // namespace
}  // namespace graft
