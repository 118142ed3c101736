#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "graft/op.h"
#include "load/test_graph.h"

// Random schedules of everything that may happen at once in a process: programs loaded and dropped, sessions made,
// forked, run, cancelled, run in the background and run in one another, by eight threads. Every result is compared with
// what its session must give. Run under the sanitizers too (`make asan`, `make tsan`).
namespace graft {
namespace {

using ir::Arg;
using test::fixed;

constexpr std::int64_t kSize = 64;
constexpr int kThreads = 8;
constexpr int kSchedules = 200;
constexpr int kSteps = 12;

using Numbers = std::array<std::int64_t, kSize>;

// A session to run inside the run of another.
struct Inner {
  Session* session = nullptr;
  Numbers x{};
  Numbers result{};
};

// s = 3 s + x, all tasks of a run on as many threads as there are.
void step(const OpRun& run) {
  const auto* s = static_cast<const std::int64_t*>(run.inputs[0].data);
  const auto* x = static_cast<const std::int64_t*>(run.inputs[1].data);
  auto* out = static_cast<std::int64_t*>(run.outputs[0].data);
  for (std::int64_t i = kSize * run.task / run.tasks; i < kSize * (run.task + 1) / run.tasks; ++i)
    out[i] = static_cast<std::int64_t>(3 * static_cast<std::uint64_t>(s[i]) + static_cast<std::uint64_t>(x[i]));
  std::this_thread::yield();
}

std::vector<Value> values_of(Numbers& x, Inner** inner) {
  return {Value::of(TensorView{x.data(), DType::i64, Shape{kSize}}),
          Value::of(TensorView{inner, DType::i64, Shape{1}})};
}

Numbers numbers_of(const Value& value) {
  Numbers out;
  std::memcpy(out.data(), value.tensor.data, sizeof(out));
  return out;
}

// y = x + 0 of an address; runs the session that it names, if any.
void run_inner(const OpRun& run) {
  const std::int64_t address = *static_cast<const std::int64_t*>(run.inputs[0].data);
  *static_cast<std::int64_t*>(run.outputs[0].data) = address;
  auto* inner = reinterpret_cast<Inner*>(address);  // NOLINT
  if (inner == nullptr) return;
  Inner* none = nullptr;
  inner->result = numbers_of(inner->session->run("forward", values_of(inner->x, &none))[0]);
}

// A program and what its builder owns.
struct Net {
  test::GraphBuilder graph;
  std::shared_ptr<const Program> program;

  Net() {
    const auto x = graph.input("x", DType::i64, {fixed(kSize)});
    const auto inner = graph.input("inner", DType::i64, {fixed(1)});
    const auto s = graph.state("s", DType::i64, Shape{kSize});
    const auto first = graph.node("schedules.step.default", {{"s", Arg::of_value(s)}, {"x", Arg::of_value(x)}},
                                  DType::i64, {fixed(kSize)});
    const auto ran = graph.node("schedules.inner.default", {{"x", Arg::of_value(inner)}}, DType::i64, {fixed(1)});
    const auto second = graph.node("schedules.step.default", {{"s", Arg::of_value(first)}, {"x", Arg::of_value(x)}},
                                   DType::i64, {fixed(kSize)});
    graph.output(second);
    graph.output(ran);
    graph.mutate_state(0, second);
    program = graph.build();
  }
};

void register_ops() {
  static const bool once = [] {
    OpDefinition op;
    op.refuse = [](const OpNode&) { return ""; };
    op.target = "schedules.step.default";
    op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("s")}; };
    op.run = step;
    op.parallel = true;
    register_op(op);
    op.target = "schedules.inner.default";
    op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
    op.run = run_inner;
    op.parallel = false;
    register_op(op);
    return true;
  }();
  (void)once;
}

// What the threads of a schedule share.
struct World {
  std::mutex mutex;
  std::array<std::shared_ptr<Net>, 2> nets;  // null: dropped
  std::array<CancelToken, kThreads> tokens;
  std::atomic<int> wrong{0}, finished{0}, cancelled{0}, nested{0}, forked{0};

  std::shared_ptr<Net> net(std::size_t index) {
    const std::lock_guard lock(mutex);
    if (!nets[index]) nets[index] = std::make_shared<Net>();
    return nets[index];
  }
  void drop(std::size_t index) {
    std::shared_ptr<Net> gone;
    const std::lock_guard lock(mutex);
    gone.swap(nets[index]);
  }
};

// A session of one thread of the schedule, and the state that it must have.
struct Mirror {
  std::shared_ptr<Net> net;
  Session session;
  Numbers state{};

  static SessionOptions options_of(int threads) {
    SessionOptions options;
    options.threads = threads;
    return options;
  }
  Mirror(std::shared_ptr<Net> of, int threads) : net(std::move(of)), session(net->program, options_of(threads)) {}
  Mirror(const Mirror& from, Session forked) : net(from.net), session(std::move(forked)), state(from.state) {}

  void advance(const Numbers& x) {
    for (int twice = 0; twice < 2; ++twice)
      for (std::size_t i = 0; i < kSize; ++i)
        state[i] =
            static_cast<std::int64_t>(3 * static_cast<std::uint64_t>(state[i]) + static_cast<std::uint64_t>(x[i]));
  }
  bool agrees() { return std::memcmp(session.states()[0].tensor.data, state.data(), sizeof(state)) == 0; }
};

class Actor {
 public:
  Actor(World& world, std::size_t self, unsigned seed) : world_(world), self_(self), random_(seed) {}

  void act() {
    for (int i = 0; i < kSteps; ++i) {
      if (!mine_ || pick(8) == 0) mine_ = std::make_unique<Mirror>(world_.net(pick(2)), 1 + static_cast<int>(pick(4)));
      switch (pick(6)) {
        case 0:
          world_.tokens[pick(kThreads)].cancel();
          break;
        case 1:
          world_.drop(pick(2));
          break;
        case 2:
          fork();
          break;
        case 3:
          submit();
          break;
        default:
          run(pick(3) == 0);
      }
      if (!mine_->agrees()) ++world_.wrong;
    }
  }

 private:
  std::size_t pick(std::size_t count) { return random_() % count; }

  Numbers numbers() {
    Numbers out;
    for (std::int64_t& x : out) x = static_cast<std::int64_t>(random_() % 1000);
    return out;
  }

  RunOptions limits() {
    RunOptions options;
    options.priority = static_cast<int>(pick(3));
    if (pick(2) == 0) options.cancel = &world_.tokens[self_];
    if (pick(3) == 0) options.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(pick(300));
    return options;
  }

  void run(bool with_inner) {
    Numbers x = numbers();
    Mirror inside(mine_->net, 1 + static_cast<int>(pick(3)));
    Inner inner{&inside.session, numbers(), {}};
    Inner* address = with_inner ? &inner : nullptr;
    try {
      const std::vector<Value> out = mine_->session.run("forward", values_of(x, &address), limits());
      mine_->advance(x);
      check(out);
      if (with_inner) {
        inside.advance(inner.x);
        world_.wrong += inner.result != inside.state;
        ++world_.nested;
      }
    } catch (const Cancelled&) {
      cancelled();
    }
  }

  void submit() {
    Numbers x = numbers();
    Inner* none = nullptr;
    std::vector<std::future<std::vector<Value>>> runs;
    for (std::size_t count = 1 + pick(3); count > 0; --count)
      runs.push_back(mine_->session.submit("forward", values_of(x, &none), limits()));
    for (auto& one : runs) {
      try {
        const std::vector<Value> out = one.get();
        mine_->advance(x);
        check(out);
      } catch (const Cancelled&) {
        cancelled();
      }
    }
  }

  void fork() {
    Mirror copy(*mine_, mine_->session.fork());
    if (!copy.agrees()) ++world_.wrong;
    ++world_.forked;
    if (pick(2) == 0) mine_ = std::make_unique<Mirror>(std::move(copy));
  }

  void check(const std::vector<Value>& out) {
    world_.wrong += numbers_of(out[0]) != mine_->state;
    ++world_.finished;
  }
  void cancelled() {
    ++world_.cancelled;
    world_.tokens[self_].reset();
  }

  World& world_;
  const std::size_t self_;
  std::mt19937 random_;
  std::unique_ptr<Mirror> mine_;
};

TEST(Schedules, TwoHundredOfEightThreads) {
  register_ops();
  int finished = 0, cancelled = 0, nested = 0, forked = 0;
  for (unsigned schedule = 0; schedule < kSchedules; ++schedule) {
    World world;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] { Actor(world, t, schedule * kThreads + t).act(); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(world.wrong, 0) << "schedule " << schedule;
    finished += world.finished;
    cancelled += world.cancelled;
    nested += world.nested;
    forked += world.forked;
  }
  std::printf("%d schedules: %d runs finished, %d cancelled or late, %d with another inside, %d forks\n", kSchedules,
              finished, cancelled, nested, forked);
  EXPECT_GT(finished, 1000);
  EXPECT_GT(cancelled, 100);
  EXPECT_GT(nested, 100);
  EXPECT_GT(forked, 100);
}

}  // namespace
}  // namespace graft
