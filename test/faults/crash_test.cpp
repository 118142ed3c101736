#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "graft/graft.h"
#include "load/test_graph.h"
#include "weight/packed_file.h"
#include "weight/test_container.h"

// Writers that are killed at any moment: a reader finds the file of before, or the new one.
namespace graft {
namespace {

constexpr int kKills = 200;

// Starts `write(i)`, `write(i + 1)`, ... in a process of its own, with i = 0, 1, ... in turn, and kills it a random
// time after some of them, however long these take; then calls `check`.
void kill_writers(const std::function<void(int)>& write, const std::function<void()>& check) {
  std::mt19937 random(7);
  int killed = 0;
  for (int kill = 0; kill < kKills && !::testing::Test::HasFailure(); ++kill) {
    int done[2];
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int i = kill;; ++i) {
          write(i);
          if (::write(done[1], ".", 1) != 1) ::_exit(1);
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    ::close(done[1]);
    char said = 0;
    for (std::uint32_t writes = random() % 4; writes > 0; --writes)
      ASSERT_EQ(::read(done[0], &said, 1), 1) << "the writer failed";
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
    ::kill(child, SIGKILL);
    ::close(done[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed before it was killed";
    killed += WTERMSIG(status) == SIGKILL;
    check();
  }
  EXPECT_EQ(killed, kKills);
  std::printf("KILLS %s | %d\n", ::testing::UnitTest::GetInstance()->current_test_info()->name(), killed);
}

std::ptrdiff_t files_in(const test::TemporaryFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(Kill, SessionFile) {
  test::GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {test::fixed(40000)});
  const auto kept = graph.state("kept", DType::f32, {40000});
  const auto next =
      graph.node("aten.add.Tensor",
                 {{"self", ir::Arg::of_value(kept)}, {"other", ir::Arg::of_value(x)}, {"alpha", test::of_int(1)}},
                 DType::f32, {test::fixed(40000)});
  graph.mutate_state(0, next);
  graph.output(next);
  SessionOptions one;
  one.threads = 1;
  const auto program = graph.build();
  Session first(program, one), second(program, one), reader(program, one);
  std::vector<float> ones(40000, 1), twos(40000, 2);
  first.run("forward", std::vector{test::tensor(ones, {40000})});
  second.run("forward", std::vector{test::tensor(twos, {40000})});
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "states";
  first.save(path);
  int seen[3] = {};
  kill_writers([&](int i) { (i % 2 == 0 ? second : first).save(path); },
               [&] {
                 reader.restore(path);
                 const auto* data = static_cast<const float*>(reader.states()[0].tensor.data);
                 const float found = data[0];
                 ASSERT_TRUE(found == 1 || found == 2) << found;
                 for (int i = 0; i < 40000; ++i) ASSERT_EQ(data[i], found) << "at " << i;
                 ++seen[static_cast<int>(found)];
               });
  first.save(path);
  EXPECT_EQ(files_in(folder), 1) << "what a killed writer left";
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[2], 0);
}

TEST(Kill, PackedFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "packed";
  std::vector<std::byte> contents[2] = {std::vector<std::byte>(100000, std::byte{1}),
                                        std::vector<std::byte>(100000, std::byte{2})};
  Digest digest{};
  digest[0] = 1;
  const auto write = [&](int i) { write_packed_file(path, "origin", {{digest, contents[i % 2]}}); };
  write(0);
  int seen[3] = {};
  kill_writers([&](int i) { write(i + 1); },
               [&] {
                 const auto file = PackedFile::open(path, "origin", /*verify=*/true);
                 const auto found = file->find(digest, 100000);
                 ASSERT_TRUE(found);
                 ++seen[std::to_integer<int>(found->data()[0])];
               });
  write(0);
  EXPECT_EQ(files_in(folder), 1) << "what a killed writer left";
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[2], 0);
}

}  // namespace
}  // namespace graft
