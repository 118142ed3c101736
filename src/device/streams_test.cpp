// Streams and events of devices, on a device of the tests whose streams run in any order that its events allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "load/test_random_net.h"
#include "session/test_kv_model.h"
#ifdef GRAFT_GGML_INTERNALS
#include "device/test_stream_device.h"
#endif

namespace graft {
namespace {

#ifndef GRAFT_GGML_INTERNALS

TEST(Streams, NeedGgmlsInternalHeader) {
  GTEST_SKIP() << "no ggml-backend-impl.h for the device of the tests: `make setup` puts it into .venv/ggml/internals";
}

#else

using namespace graft::test;
using graft::test::run;  // beside those below
using ir::Arg;
using ::testing::HasSubstr;
constexpr auto kLong = std::chrono::minutes(2);  // only a failing test takes it

StreamDevice& device() {
  static StreamDevice& added = StreamDevice::add("streams0", true);
  return added;
}
// The same without events: one stream.
StreamDevice& serial_device() {
  static StreamDevice& added = StreamDevice::add("serial0", false);
  return added;
}

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    device().reset();
    serial_device().reset();
  }
  void TearDown() override { device().reset(); }
};

LoadOptions named(const char* device) {
  LoadOptions options;
  options.device = device;
  return options;
}

using Results = std::vector<std::vector<float> >;

std::vector<float> input_values(int seed = 0) {
  std::vector<float> values(BranchedNet::kRows * BranchedNet::kColumns);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 31 + static_cast<std::size_t>(seed) * 17) % 37) / 37 - 0.5f;
  return values;
}

Results run(Session& session, std::vector<float> x) {
  const std::vector<Value> in{Value::of(TensorView{x.data(), DType::f32, {BranchedNet::kRows, BranchedNet::kColumns}})};
  Results out;
  for (const Value& value : session.run("forward", in)) out.push_back(floats(value));
  return out;
}

std::shared_ptr<const Program> on(GraphBuilder& graph, const std::string& name, bool fast_kernels = true) {
  LoadOptions options;
  options.device = name;
  options.fast_kernels = fast_kernels;
  return graph.build(options);
}

// In memory of its own, which is NaN at first.
Results run_new(const std::shared_ptr<const Program>& program, const std::vector<float>& x) {
  SessionOptions options;
  options.threads = 1;
  Session session(program, options);
  return run(session, x);
}

// Bits, but for NaN.
bool same(const Results& a, const Results& b) { return a == b; }

std::uint64_t graphs_of(const Program& program) {
  std::uint64_t graphs = 0;
  for (const Stage& stage : Internal::of(program).plans->list().at(0).second->stages) graphs += stage.graphs.size();
  return graphs;
}

void towers(BranchedNet& net, int count, int layers) {
  ir::ValueId sum = net.tower(net.x, layers);
  for (int i = 1; i < count; ++i) sum = net.two("add", sum, net.tower(net.x, layers));
  net.graph.output(sum);
}

TEST_F(Streams, BranchesAreInFlightAtTheSameTime) {
  BranchedNet net;
  towers(net, 2, 6);
  const auto program = on(net.graph, "streams0");
  // The graphs of the towers end only when both have begun.
  std::mutex mutex;
  std::condition_variable changed;
  std::set<int> inside;
  int together = 0, begun = 0;
  device().on_graph = [&](int stream) {
    std::unique_lock lock(mutex);
    if (++begun > 2) return;
    inside.insert(stream);
    changed.notify_all();
    if (changed.wait_for(lock, kLong, [&] { return inside.size() == 2; })) ++together;
  };
  Session session(program);
  const Results found = run(session, input_values());
  EXPECT_EQ(together, 2) << "both towers were in flight at once";
  EXPECT_EQ(begun, 3) << "and the sum after them";
  EXPECT_EQ(found, run_new(on(net.graph, "serial0"), input_values()));
  EXPECT_EQ(found, run_new(on(net.graph, "cpu", false), input_values())) << "ggml's ops on the CPU";
  const Results kernels = run_new(on(net.graph, "cpu"), input_values());
  for (std::size_t i = 0; i < kernels[0].size(); ++i) EXPECT_NEAR(found[0][i], kernels[0][i], 1e-5f);

  const Counters& c = session.counters();
  EXPECT_EQ(c.device_streams, 2u);
  EXPECT_EQ(c.device_graphs, 3u);
  EXPECT_EQ(c.device_events, 2u) << "where the towers begin, and where the one in stream 1 ends";
  EXPECT_EQ(graphs_of(*program), 3u);
}

TEST_F(Streams, ADeviceWithoutEventsKeepsOneStream) {
  BranchedNet net;
  towers(net, 3, 6);
  const auto program = on(net.graph, "serial0");
  Session session(program);
  run(session, input_values());
  EXPECT_EQ(session.counters().device_streams, 1u);
  EXPECT_EQ(session.counters().device_graphs, 1u);
  EXPECT_EQ(session.counters().device_events, 0u);
}

TEST_F(Streams, UploadsComeBeforeTheStreamsAndDownloadsAfterThem) {
  BranchedNet net;
  towers(net, 4, 6);
  const auto program = on(net.graph, "streams0");
  for (unsigned seed = 0; seed < 20; ++seed) {
    device().reset();
    device().run_in_random_order(seed);
    const Results found = run_new(program, input_values());
    EXPECT_EQ(found.size(), 1u);
    const std::vector<StreamDevice::Entry> log = device().log();
    const auto of = [](char what) { return [what](const StreamDevice::Entry& e) { return e.what == what; }; };
    const auto graph = std::ranges::find_if(log, of('g')), upload = std::ranges::find_if(log, of('u'));
    EXPECT_LT(upload, graph);
    EXPECT_EQ(std::ranges::count_if(log, of('u')), 1);
    EXPECT_EQ(std::ranges::count_if(log, of('d')), 1);
    EXPECT_EQ(log.back(), (StreamDevice::Entry{'d', 0}));
  }
}

// Random nets, and for each the streams in orders picked at random.
TEST_F(Streams, RandomOrdersGiveTheSameBits) {
  std::mt19937 random(3);
  std::size_t divided = 0, orders = 0;
  for (int round = 0; round < 60; ++round) {
    BranchedNet net;
    net.add_random_nodes(random);
    const auto program = on(net.graph, "streams0");
    const std::vector<float> x = input_values(round);
    const Results expected = run_new(on(net.graph, "serial0"), x);
    ASSERT_EQ(expected, run_new(on(net.graph, "cpu", false), x)) << "net " << round;
    std::set<std::string> seen;
    for (unsigned seed = 0; seed < 8; ++seed) {
      device().reset();
      device().run_in_random_order(seed);
      ASSERT_EQ(run_new(program, x), expected) << "net " << round << ", order " << seed;
      std::string order;
      for (const StreamDevice::Entry& entry : device().log()) order += entry.what + std::to_string(entry.stream);
      seen.insert(order);
    }
    divided += graphs_of(*program) > 1;
    orders += seen.size();
  }
  EXPECT_GT(divided, 10u);
  EXPECT_GT(orders, 200u) << "different orders";
}

// Of a session that runs again and again, so that memory holds what earlier runs left.
TEST_F(Streams, ASessionRunsAgain) {
  BranchedNet net;
  towers(net, 4, 5);
  const auto program = on(net.graph, "streams0");
  Session session(program);
  const auto serial = on(net.graph, "serial0");
  for (int i = 0; i < 50; ++i) {
    if (i % 2 == 1) device().run_in_random_order(static_cast<unsigned>(i));
    ASSERT_EQ(run(session, input_values(i)), run_new(serial, input_values(i))) << "run " << i;
  }
  EXPECT_EQ(session.counters().device_graphs, 50 * graphs_of(*program));
  EXPECT_EQ(session.counters().graphs_built, 1u);
}

// A device that ignores one wait gives other results in some order: no event is for nothing, and the orders tell.
TEST_F(Streams, EveryEventIsNeeded) {
  std::mt19937 random(5);
  int removed = 0;
  for (int round = 0; round < 12; ++round) {
    BranchedNet net;
    if (round == 0) {
      towers(net, 4, 4);
    } else {
      net.add_random_nodes(random);
    }
    const auto program = on(net.graph, "streams0");
    const std::vector<float> x = input_values();
    device().reset();
    const Results expected = run_new(program, x);
    const int waits = device().waits();
    for (int wait = 0; wait < waits; ++wait) {
      bool noticed = false;
      for (unsigned seed = 0; seed < 200 && !noticed; ++seed) {
        device().reset();
        device().run_in_random_order(seed);
        device().ignored_wait = wait;
        noticed = !same(run_new(program, x), expected);
      }
      EXPECT_TRUE(noticed) << "net " << round << " gives the same without wait " << wait << " of " << waits;
      ++removed;
    }
  }
  EXPECT_GT(removed, 20);
}

TEST_F(Streams, AGraphThatFailsLeavesATypedErrorAndAUsableSession) {
  BranchedNet net;
  towers(net, 3, 6);
  const auto program = on(net.graph, "streams0");
  const Results expected = run_new(program, input_values());
  const int graphs = static_cast<int>(graphs_of(*program));
  ASSERT_GE(graphs, 4);
  Session session(program);
  for (int failing = 0; failing < graphs; ++failing) {
    device().reset();
    device().run_in_random_order(static_cast<unsigned>(failing));
    device().failing_graph = failing;
    try {
      run(session, input_values());
      FAIL() << "graph " << failing << " of " << graphs << " failed, and the run did not";
    } catch (const ExecutionError& e) {
      EXPECT_THAT(e.what(), HasSubstr("streams0"));
    }
    EXPECT_EQ(run(session, input_values()), expected) << "after graph " << failing << " had failed";
  }
}

TEST_F(Streams, ALostDeviceLeavesATypedErrorAndTheSessionOnTheCpu) {
  for (const char* place : {"upload", "graph", "record", "wait", "download", "synchronize"}) {
    SCOPED_TRACE(place);
    device().reset();
    BranchedNet net;
    towers(net, 3, 6);
    const auto program = on(net.graph, "streams0");
    Session session(program), other(program);
    const Results expected = run(session, input_values());
    run(other, input_values());
    device().lost_at = place;
    try {
      run(session, input_values());
      FAIL() << "the device is gone, and the run was not";
    } catch (const Unavailable& e) {
      EXPECT_THAT(e.what(), HasSubstr("streams0"));
      EXPECT_THAT(e.what(), HasSubstr("the driver reports"));
    }
    const int graphs = device().graphs();
    for (Session* again : {&session, &other}) {
      const Results found = run(*again, input_values());
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found[0].size(); ++i) EXPECT_NEAR(found[0][i], expected[0][i], 1e-5f);
      EXPECT_EQ(again->counters().device_losses, 1u);
    }
    EXPECT_EQ(device().graphs(), graphs) << "the device was not asked again";
    Session later(program);
    EXPECT_EQ(run(later, input_values()), run(session, input_values()));
    // Once it is back, other programs have it.
    device().reset();
    EXPECT_EQ(run_new(on(net.graph, "streams0"), input_values()), expected);
  }
}

// A state that the device kept is lost with it: it has its value at load again.
TEST_F(Streams, ALostDeviceTakesItsStatesAlong) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto s = graph.state("sum", DType::f32, {2});
  const auto next =
      graph.node("aten.add.Tensor", {{"self", Arg::of_value(s)}, {"other", Arg::of_value(x)}, {"alpha", of_int(1)}},
                 DType::f32, {fixed(2)});
  graph.mutate_state(0, next);
  graph.output(s);
  const auto program = on(graph, "streams0");
  Session session(program);
  std::vector<float> data{1, 2};
  const std::vector<Value> in{Value::of(TensorView{data.data(), DType::f32, {2}})};
  for (const float runs : {0.0f, 1.0f, 2.0f})
    EXPECT_EQ(floats(session.run("forward", in)[0]), (std::vector<float>{runs, 2 * runs}));
  const Counters counters = session.counters();
  EXPECT_EQ(counters.state_uploads, 1u) << "its value at load";
  EXPECT_EQ(counters.state_downloads, 0u);
  EXPECT_EQ(counters.upload_bytes, 3u * 2 * sizeof(float));
  EXPECT_EQ(floats(Value::of(session.states()[0].tensor)), (std::vector<float>{3, 6}));
  device().lost_at = "download";
  EXPECT_THROW(session.run("forward", in), Unavailable);
  EXPECT_EQ(floats(session.run("forward", in)[0]), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(session.run("forward", in)[0]), (std::vector<float>{1, 2}));
}

// A program that runs there, and whose state is of a type that the device does not have, keeps it on the CPU: nothing
// of a run that was lost is in it.
TEST_F(Streams, ALostDeviceLeavesStatesOfTheCpuAsTheyWere) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto s = graph.state("count", DType::i64, {1});
  const auto next =
      graph.node("aten.add.Scalar", {{"self", Arg::of_value(s)}, {"other", of_int(1)}, {"alpha", of_int(1)}},
                 DType::i64, {fixed(1)});
  graph.mutate_state(0, next);
  graph.output(graph.node("aten.add.Tensor",
                          {{"self", Arg::of_value(x)}, {"other", Arg::of_value(x)}, {"alpha", of_int(1)}}, DType::f32,
                          {fixed(2)}));
  const auto program = on(graph, "streams0");
  Session session(program);
  std::vector<float> data{1, 2};
  const std::vector<Value> in{Value::of(TensorView{data.data(), DType::f32, {2}})};
  const auto count = [&] { return *static_cast<const std::int64_t*>(session.states()[0].tensor.data); };
  session.run("forward", in);
  session.run("forward", in);
  EXPECT_EQ(count(), 2);
  device().lost_at = "download";
  EXPECT_THROW(session.run("forward", in), Unavailable);
  EXPECT_EQ(count(), 2);
  EXPECT_EQ(floats(session.run("forward", in)[0]), (std::vector<float>{2, 4}));
  EXPECT_EQ(count(), 3);
}

// Its caches are lost with it: the session has no tokens then, and computes the next ones on the CPU.
TEST_F(Streams, ALostDeviceTakesItsCachesAlong) {
  for (const char* place : {"upload", "graph", "download", "synchronize"}) {
    SCOPED_TRACE(place);
    device().reset();
    KvModel model({}, named("cpu"));
    const auto program = model.graph.build(named("streams0"));
    Session reference(model.program, with({})), session(program, with({})), other(program, with({}));
    const std::vector<float> expected = run(reference, {1}, 0, 9);
    expect_near(run(session, {1}, 0, 9), expected, 1e-5f);
    run(other, {1}, 0, 4);
    EXPECT_LT(session.counters().state_bytes, 64u) << "the caches are there";
    device().lost_at = place;
    EXPECT_THROW(run(session, {1}, 9, 10), Unavailable);
    EXPECT_EQ(session.kv_lengths()[0], 0);
    EXPECT_EQ(other.kv_lengths()[0], 0);
    expect_near(run(session, {1}, 0, 9), expected, 1e-5f);
    expect_near(run(session, {1}, 9, 10), run(reference, {1}, 9, 10), 1e-5f);
    EXPECT_EQ(session.counters().device_losses, 1u);
  }
}

TEST_F(Streams, TooLittleMemoryForACacheKeepsItsTokens) {
  KvModel model({}, named("cpu"));
  const auto program = model.graph.build(named("streams0"));
  Session reference(model.program, with({.length = 64})), session(program, with({.length = 64}));
  const std::vector<float> expected = run(reference, {1}, 0, 9);
  expect_near(run(session, {1}, 0, 9), expected, 1e-5f);
  session.kv_resize(1, 128);
  device().most_memory = 8192;
  EXPECT_THROW(run(session, {1}, 9, 10), OutOfMemory);
  EXPECT_EQ(session.kv_lengths()[0], 9);
  expect_near(run(session, {1}, 9, 10), run(reference, {1}, 9, 10), 1e-5f);
  EXPECT_EQ(session.counters().device_losses, 1u);
}

TEST_F(Streams, TooLittleMemoryLeavesATypedErrorAndTheSessionOnTheCpu) {
  for (const bool limited : {false, true}) {
    SCOPED_TRACE(limited ? "GRAFT_DEVICE_MEMORY" : "the device's own");
    device().reset();
    BranchedNet net;
    towers(net, 2, 6);
    const auto program = on(net.graph, "streams0");
    Session session(program);
    if (limited) {
      setenv("GRAFT_DEVICE_MEMORY", "1K", 1);
    } else {
      device().most_memory = 1024;
    }
    try {
      run(session, input_values());
      ADD_FAILURE() << "ran in 1,024 bytes";
    } catch (const OutOfMemory& e) {
      EXPECT_THAT(e.what(), HasSubstr("streams0"));
      if (limited) {
        EXPECT_THAT(e.what(), HasSubstr("GRAFT_DEVICE_MEMORY allows 1024 bytes"));
      }
    }
    const Results found = run(session, input_values());
    unsetenv("GRAFT_DEVICE_MEMORY");
    device().reset();
    EXPECT_EQ(session.counters().device_losses, 1u);
    const Results expected = run_new(program, input_values());  // on the device
    for (std::size_t i = 0; i < found[0].size(); ++i) EXPECT_NEAR(found[0][i], expected[0][i], 1e-5f);
  }
}

TEST_F(Streams, ALimitThatIsNoNumberIsAnError) {
  BranchedNet net;
  towers(net, 2, 6);
  const auto program = on(net.graph, "streams0");
  for (const char* wrong : {"much", "1T", "-1", "1 M", "99999999999999999999", "99999999999G"}) {
    setenv("GRAFT_DEVICE_MEMORY", wrong, 1);
    EXPECT_THROW(run_new(program, input_values()), InvalidArgument) << wrong;
  }
  unsetenv("GRAFT_DEVICE_MEMORY");
}

// Only devices that need it queue one graph at a time.
// While a graph of one session computes, all of another's run happens: its upload, its graph, its download.
TEST_F(Streams, CopiesOfOneSessionOverlapWithGraphsOfAnother) {
  BranchedNet net;
  towers(net, 1, 6);
  const auto program = on(net.graph, "serial0");  // one stream for each session
  Session first(program), second(program);
  const Results expected = run(first, input_values());
  EXPECT_EQ(run(second, input_values()), expected);
  const std::size_t before = serial_device().log().size();
  const int first_stream = serial_device().log().front().stream;
  std::mutex mutex;
  std::condition_variable changed;
  bool inside = false, released = false;
  serial_device().on_graph = [&](int stream) {
    if (stream != first_stream) return;
    std::unique_lock lock(mutex);
    inside = true;
    changed.notify_all();
    EXPECT_TRUE(changed.wait_for(lock, kLong, [&] { return released; }));
  };
  std::thread other([&] { EXPECT_EQ(run(first, input_values()), expected); });
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, kLong, [&] { return inside; }));
  lock.unlock();
  EXPECT_EQ(run(second, input_values()), expected);
  std::string seen;
  for (const StreamDevice::Entry& entry : serial_device().log()) seen += entry.what;
  EXPECT_EQ(seen.substr(before), "uugd") << "the first has copied, and computes";
  lock.lock();
  released = true;
  lock.unlock();
  changed.notify_all();
  other.join();
}

TEST_F(Streams, SessionsQueueAtTheSameTime) {
  BranchedNet net;
  towers(net, 2, 6);
  const auto program = on(net.graph, "streams0");
  const Results expected = run_new(program, input_values());
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0, together = 0;
  device().on_queue = [&] {
    std::unique_lock lock(mutex);
    if (++inside > 2) return;
    changed.notify_all();
    together += changed.wait_for(lock, kLong, [&] { return inside >= 2; });
  };
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      Session session(program);
      for (int i = 0; i < 20; ++i) wrong += run(session, input_values()) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, 2);
  EXPECT_EQ(wrong.load(), 0);
}

#endif

}  // namespace
}  // namespace graft
