#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <new>
#include <thread>
#include <vector>

#include "exec/executor.h"
#include "exec/test_allocations.h"
#include "load/test_graph.h"
#include "lowering/lowering.h"

// Counts every allocation of the process, ggml's included: operator new and malloc both come here.
namespace {
std::atomic<bool> counts_allocations{false};
std::atomic<long> allocations{0};
std::atomic<std::size_t> largest{0};

[[maybe_unused]] void note(std::size_t bytes) {
  if (!counts_allocations.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t most = largest.load(std::memory_order_relaxed);
  while (bytes > most && !largest.compare_exchange_weak(most, bytes, std::memory_order_relaxed)) {
  }
}
}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);
extern "C" void* malloc(std::size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
constexpr bool kCounts = true;
#else
constexpr bool kCounts = false;
#endif

namespace graft::test {

const bool kCountsAllocations = kCounts;
void begin_counting_allocations() {
  allocations = 0;
  largest = 0;
  counts_allocations = true;
}
long end_counting_allocations() {
  counts_allocations = false;
  return allocations;
}
std::size_t largest_allocation() { return largest; }

}  // namespace graft::test

namespace graft {
namespace {

using test::kCountsAllocations;

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::tensor;

GraphBuilder::Args add_args(ir::ValueId a, ir::ValueId b) {
  return {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}, {"alpha", of_int(1)}};
}

// A chain of `depth` additions on each of `branches` branches; every branch's last value is kept alive to the end.
std::shared_ptr<const Program> branches(GraphBuilder& graph, int count, int depth, std::int64_t most = 64) {
  const std::vector<ir::Dim> dims{dynamic(1, most, "n")};
  const auto x = graph.input("x", DType::f32, dims);
  std::vector<ir::ValueId> ends;
  for (int b = 0; b < count; ++b) {
    ir::ValueId v = x;
    for (int d = 0; d < depth; ++d) v = graph.node("aten.add.Tensor", add_args(v, x), DType::f32, dims);
    ends.push_back(v);
  }
  ir::ValueId sum = ends[0];
  for (std::size_t i = 1; i < ends.size(); ++i)
    sum = graph.node("aten.add.Tensor", add_args(sum, ends[i]), DType::f32, dims);
  graph.output(sum);
  return graph.build();
}

// From here on the process dies with SIGSYS when any thread makes one of these system calls. False where such a filter
// is not available.
bool forbid(std::initializer_list<long> calls) {
  std::vector<sock_filter> code{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

TEST(Steady, RunsAllocateNothing) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  GraphBuilder graph;
  Session session(branches(graph, 3, 20));
  std::vector<float> x(8, 1.f);
  std::vector<float> y(8);
  std::vector<Value> in{tensor(x, {8})};
  std::vector<Value> out{tensor(y, {8})};
  session.run_into("forward", in, out);
  constexpr int kRuns = 1000;
  test::begin_counting_allocations();
  for (int i = 0; i < kRuns; ++i) session.run_into("forward", in, out);
  EXPECT_EQ(test::end_counting_allocations(), 0);
  EXPECT_EQ(y[0], 3.f * 21.f);
}

// Runs in a process that a seccomp filter kills at any system call that maps memory, opens or writes.
TEST(Steady, AThousandRunsMapOpenAndWriteNothing) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    GraphBuilder graph;
    SessionOptions options;
    options.threads = 2;
    Session session(branches(graph, 3, 20, 20000), options);
    std::vector<float> x(20000, 1.f);
    std::vector<float> y(20000);
    std::vector<Value> in{tensor(x, {20000})};
    std::vector<Value> out{tensor(y, {20000})};
    session.run_into("forward", in, out);
    if (!forbid({SYS_mmap, SYS_munmap, SYS_mremap, SYS_brk, SYS_open, SYS_openat, SYS_write, SYS_writev, SYS_clone3}))
      _exit(77);
    for (int i = 0; i < 1000; ++i) session.run_into("forward", in, out);
    _exit(y[0] == 3.f * 21.f && session.counters().graphs_built == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? "a forbidden system call" : "wrong result");
}

TEST(Steady, ForbiddenCallsAreFound) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!forbid({SYS_openat})) _exit(77);
    std::fopen("/dev/null", "r");
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "this system has no seccomp filters";
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Steady, AHugeInputIsReadWhereItLies) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  constexpr std::int64_t kCount = 128 << 20;  // 512 MB
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {dynamic(1, kCount, "n")});
  graph.output(graph.node("aten.sum.dim_IntList",
                          {{"self", Arg::of_value(x)},
                           {"dim", test::of_ints({0})},
                           {"keepdim", test::of_int(0)},
                           {"dtype", test::of_none()}},
                          DType::f32, {}));
  Session session(graph.build());
  std::vector<float> data(static_cast<std::size_t>(kCount), 1.f);
  const std::vector<Value> in{tensor(data, {kCount})};
  const std::size_t before = resident_bytes();
  const std::vector<Value> out = session.run("forward", in);
  EXPECT_LT(resident_bytes(), before + (16u << 20));
  EXPECT_EQ(*static_cast<const float*>(out[0].tensor.data), static_cast<float>(kCount));
  EXPECT_EQ(session.counters().io_copies, 0u);
}

TEST(Steady, ASessionCostsItsStateItsArenaAndLessThanAKibibytePerNode) {
  if (!kCountsAllocations) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  GraphBuilder graph;
  const std::shared_ptr<const Program> program = branches(graph, 5, 400, 1 << 16);
  std::vector<float> x(1 << 16, 1.f);
  std::vector<float> y(1 << 16);
  std::vector<Value> in{tensor(x, {1 << 16})};
  std::vector<Value> out{tensor(y, {1 << 16})};
  SessionOptions options;
  options.threads = 1;
  Session(program, options).run_into("forward", in, out);  // the plan and the thread pool exist now
  Session session(program, options);
  const std::size_t before = resident_bytes();
  session.run_into("forward", in, out);
  const std::size_t after = resident_bytes();
  const PlanInfo plan = session.plan("forward", in);
  EXPECT_LE(plan.metadata_bytes, plan.launches * 1024);
  const std::size_t expected = session.counters().arena_bytes + session.counters().state_bytes + plan.launches * 1024;
  EXPECT_LE(after, before + expected + (1u << 20)) << "beyond what is reported";
}

TEST(Steady, FiftyThousandNodesWithDeepBranches) {
  GraphBuilder graph;
  Session session(branches(graph, 5, 10000));
  std::vector<float> x(4, 1.f);
  const std::vector<Value> in{tensor(x, {4})};
  const std::vector<Value> out = session.run("forward", in);
  EXPECT_EQ(static_cast<const float*>(out[0].tensor.data)[0], 5.f * 10001.f);
  EXPECT_EQ(session.counters().kernels_launched, 5001u);  // chains of ten additions
  // Each branch runs in place: only the ends of the branches and the running value are alive.
  EXPECT_LE(session.counters().arena_bytes, 64u * 8u);
}

TEST(Steady, IdleWorkersSleep) {
  GraphBuilder graph;
  SessionOptions options;
  options.threads = 2;
  Session session(branches(graph, 1, 4), options);
  std::vector<float> x(4, 1.f);
  const std::vector<Value> in{tensor(x, {4})};
  session.run("forward", in);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the workers spin briefly, then sleep
  const auto cpu_seconds = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.005) << "CPU time used while idle";
}

TEST(Steady, EveryTaskOfALaunchRunsOnAnyNumberOfThreads) {
  for (int threads : {1, 2, 3}) {
    GraphBuilder graph;
    SessionOptions options;
    options.threads = threads;
    const std::vector<ir::Dim> dims{fixed(100000)};
    const auto x = graph.input("x", DType::f32, dims);
    graph.output(graph.node("aten.exp.default", {{"self", Arg::of_value(x)}}, DType::f32, dims));
    Session session(graph.build(), options);
    std::vector<float> data(100000, 0.f);
    const std::vector<Value> out = session.run("forward", std::vector{tensor(data, {100000})});
    const auto* y = static_cast<const float*>(out[0].tensor.data);
    EXPECT_EQ(std::count(y, y + 100000, 1.f), 100000) << threads << " threads";
  }
}

}  // namespace
}  // namespace graft
