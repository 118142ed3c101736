#include "graft/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "graft/graft.h"
#include "ir/test_blob.h"
#include "load/test_graph.h"
#include "package/test_package.h"

namespace graft {
namespace {

using test::Blob;
using ::testing::HasSubstr;

// The 4 x 4 weight of ir::test::make_blob, all elements `value`.
Blob matrix(float value) {
  const std::vector<float> values(16, value);
  Blob out(64);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

std::vector<float> run(Session& session, std::int64_t rows) {
  std::vector<float> x(static_cast<std::size_t>(rows) * 4, 1.0F);
  return test::floats(session.run("forward", std::vector<Value>{test::tensor(x, {rows, 4})}).at(0));
}

std::vector<float> run(const std::shared_ptr<const Program>& program, std::int64_t rows = 3) {
  SessionOptions options;
  options.threads = 1;
  Session session(program, options);
  return run(session, rows);
}

class RegistryTest : public ::testing::Test {
 protected:
  std::string package(const std::string& name, float value) const {
    test::PteSpec spec;
    spec.plans = {test::delegated_plan(ir::test::make_blob())};
    spec.named = {{"w", matrix(value)}};
    return folder_.write(name, make_pte(spec));
  }
  static std::vector<ModelInfo> of(const std::string& path) {
    std::vector<ModelInfo> found = Registry::models();
    std::erase_if(found, [&](const ModelInfo& model) { return model.path != path; });
    return found;
  }
  static ModelInfo only(const std::string& path) {
    const std::vector<ModelInfo> found = of(path);
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? ModelInfo{} : found[0];
  }

  test::TemporaryFolder folder_;
};

TEST_F(RegistryTest, LoadsOfAFileAreOneModelWithOnePlan) {
  const std::string path = package("m.pte", 1);
  EXPECT_TRUE(of(path).empty());
  auto first = Program::load(path);
  const std::vector<float> expected = run(first);
  auto second = Program::load(path);
  EXPECT_EQ(run(second), expected);
  EXPECT_EQ(first->stats().plans_made, 1U);
  EXPECT_EQ(second->stats().plans_made, 0U);
  const ModelInfo model = only(path);
  EXPECT_EQ(model.programs, 2U);
  EXPECT_EQ(model.delegates, 0U);
  EXPECT_EQ(model.plans, 1U);
  EXPECT_GT(model.plan_bytes, 0U);
  EXPECT_EQ(model.content.size(), 64U);
  EXPECT_EQ(model.device, "cpu");
  EXPECT_EQ(model.mapped_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(model.packed_bytes + model.constant_bytes,
            first->stats().packed_bytes + first->stats().copied_bytes + first->stats().constant_bytes);
  EXPECT_FALSE(model.unloaded);
  first = nullptr;
  EXPECT_EQ(only(path).programs, 1U);
  EXPECT_EQ(run(second, 5).size(), run(second, 5).size());
  second = nullptr;
  EXPECT_TRUE(of(path).empty());
  const auto third = Program::load(path);
  EXPECT_GT(only(path).id, model.id);
  EXPECT_EQ(run(third), expected);
  EXPECT_EQ(third->stats().plans_made, 1U) << "plans go with the last program";
}

TEST_F(RegistryTest, OptionsThatChangePlansKeepThemApart) {
  const std::string path = package("m.pte", 1);
  const auto free = Program::load(path);
  run(free);
  LoadOptions tight;
  tight.max_plan_bytes = 8;
  const auto limited = Program::load(path, tight);
  EXPECT_THROW(run(limited), Unsupported);
  EXPECT_EQ(only(path).programs, 2U);
  LoadOptions plain;
  plain.fast_kernels = false;
  const auto other = Program::load(path, plain);
  EXPECT_EQ(of(path).size(), 2U) << "constants may differ in bits";
  run(other);
  EXPECT_EQ(other->stats().plans_made, 1U);
}

TEST_F(RegistryTest, UnloadedModelsWorkUntilTheirLastUserIsGone) {
  const std::string path = package("m.pte", 1);
  auto old = Program::load(path);
  SessionOptions options;
  options.threads = 1;
  auto session = std::make_unique<Session>(old, options);
  const std::vector<float> expected = run(*session, 3);
  const ModelInfo model = only(path);
  Registry::unload(model.id);
  Registry::unload(model.id);
  EXPECT_TRUE(only(path).unloaded);
  EXPECT_EQ(only(path).plans, 0U);
  EXPECT_EQ(run(*session, 3), expected);
  EXPECT_EQ(run(*session, 5).size(), expected.size() / 3 * 5);
  EXPECT_EQ(only(path).plans, 1U);

  const auto anew = Program::load(path);
  EXPECT_EQ(anew->stats().shared_bytes, 0U);
  EXPECT_EQ(run(anew), expected);
  EXPECT_EQ(anew->stats().plans_made, 1U);
  EXPECT_NE(Internal::of(*anew).files.at(0), Internal::of(*old).files.at(0)) << "mapped again";
  EXPECT_EQ(of(path).size(), 2U);
  old = nullptr;
  EXPECT_EQ(of(path).size(), 2U) << "the session uses it";
  session = nullptr;
  EXPECT_FALSE(only(path).unloaded);
  EXPECT_NE(only(path).id, model.id);
  EXPECT_EQ(Program::load(path)->stats().plans_made, 0U);
  EXPECT_THROW(Registry::unload(model.id), NotFound);
}

TEST_F(RegistryTest, AnUnknownIdNamesThoseThatAreThere) {
  const std::string path = package("m.pte", 1);
  const auto program = Program::load(path);
  try {
    Registry::unload(0);
    FAIL();
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), HasSubstr("no model 0 is loaded; there are: "));
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(only(path).id)));
  }
}

TEST_F(RegistryTest, AReplacedFileIsAnotherModel) {
  const std::string path = package("m.pte", 1), other = package("other.pte", 2);
  const auto first = Program::load(path);
  const std::vector<float> one = run(first);
  std::filesystem::rename(other, path);
  const auto second = Program::load(path);
  EXPECT_EQ(of(path).size(), 2U);
  EXPECT_NE(run(second), one);
  EXPECT_EQ(run(first), one);
}

TEST_F(RegistryTest, ProgramsWithoutAFileAreModelsOfTheirOwn) {
  const std::size_t before = Registry::models().size();
  test::GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {test::fixed(2)});
  graph.output(graph.node("aten.relu.default", {{"self", ir::Arg::of_value(x)}}, DType::f32, {test::fixed(2)}));
  const auto first = graph.build(), second = graph.build();
  EXPECT_EQ(Registry::models().size(), before + 2);
}

// Eight threads load, run, drop, list and unload two packages, one of which is replaced by files that hold another
// weight. Every program gives the results of the file that it was loaded from.
TEST_F(RegistryTest, LoadsRunsAndUnloadsAtOnce) {
  const std::array<std::string, 2> paths = {package("a.pte", 1), package("b.pte", 2)};
  std::array<std::vector<float>, 4> expected;
  for (int value = 1; value < 4; ++value) {
    const std::string path = package("expected.pte", static_cast<float>(value));
    expected[static_cast<std::size_t>(value)] = run(Program::load(path));
  }
  std::atomic<int> wrong{0}, runs{0}, unloads{0}, replaced{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t count) { return random() % count; };
    std::vector<std::pair<std::size_t, std::shared_ptr<const Program>>> mine;
    for (int i = 0; i < 60; ++i) {
      switch (pick(6)) {
        case 0: {
          const std::vector<ModelInfo> models = Registry::models();
          if (models.empty()) break;
          try {
            Registry::unload(models[pick(models.size())].id);
            ++unloads;
          } catch (const NotFound&) {  // its last user has gone meanwhile
          }
          break;
        }
        case 1:
          if (!mine.empty()) mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(pick(mine.size())));
          break;
        case 2: {
          if (pick(4) != 0) break;
          const std::string next = package(str("next", seed, ".pte"), pick(2) == 0 ? 2 : 3);
          std::filesystem::rename(next, paths[1]);
          ++replaced;
          break;
        }
        default:
          if (mine.size() < 4) {
            const std::size_t which = pick(2);
            mine.emplace_back(which, Program::load(paths[which]));
          }
      }
      if (mine.empty()) continue;
      const auto& [which, program] = mine[pick(mine.size())];
      const std::vector<float> out = run(program);
      wrong += which == 0 ? out != expected[1] : out != expected[2] && out != expected[3];
      ++runs;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(runs, 200);
  EXPECT_GT(unloads, 10);
  EXPECT_GT(replaced, 3);
  for (const std::string& path : paths) EXPECT_TRUE(of(path).empty());
}

}  // namespace
}  // namespace graft
