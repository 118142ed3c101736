// The pipeline of stages, against stages that the test plays itself.
#include "stage/chain.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "stage/handshake.h"

namespace graft::stage {
namespace {

constexpr double kSeconds = 20;  // until a test that waits for what does not come fails

// What the stages of a test have been given, in order: "1.0" is step 0 at stage 1.
class Log {
 public:
  void add(const std::string& entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    changed_.notify_all();
  }
  bool await(const std::string& entry) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, duration_of(kSeconds), [&] { return std::ranges::count(entries_, entry) > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> entries_;
};

// A stage of one connection: takes steps of one value x, of which it gives x + 1.
class PlayedStage {
 public:
  // `before`: called with the number of a step before it is answered; may throw.
  PlayedStage(int number, Log& log, std::function<void(int)> before)
      : listener_(Address{{}, {}, path(number)}),
        thread_([this, number, &log, before] { play(number, log, before); }) {}
  ~PlayedStage() { thread_.join(); }

  static std::string path(int number) { return testing::TempDir() + "played" + std::to_string(number); }

 private:
  void play(int number, Log& log, const std::function<void(int)>& before) {
    try {
      Channel channel(listener_.accept(-1));
      welcome(channel, "", Wait::seconds(kSeconds));
      channel.receive(kProven, Wait::seconds(kSeconds));  // `open`
      answer(channel, {}, 0);
      for (int i = 0;; ++i) {
        const Channel::Message message = channel.receive(kProven, Wait::seconds(kSeconds));
        log.add(std::to_string(number) + "." + std::to_string(i));
        const Step step = Step::of(message.meta);
        const auto* x = reinterpret_cast<const float*>(message.payload.data());
        try {
          before(i);
        } catch (const Error& error) {
          channel.send(Kind::failed, failure_of(error), 0, Wait::seconds(kSeconds));
          continue;
        }
        std::vector<Value> out{Value::of(TensorView{nullptr, DType::f32, Shape{1}})};
        const std::uint64_t bytes = place_outgoing(out, channel);
        *static_cast<float*>(out[0].tensor.data) = *x + 1;  // the value is still there
        answer(channel, {{number + i}, descs_of(out)}, bytes);
      }
    } catch (const Unavailable&) {  // the driver has gone
    }
  }
  static void answer(Channel& channel, const Result& result, std::uint64_t bytes) {
    const std::vector<std::int64_t> numbers = result.numbers();
    channel.send(Kind::done, std::as_bytes(std::span(numbers)), bytes, Wait::seconds(kSeconds));
  }

  Listener listener_;
  std::thread thread_;
};

struct Played {
  Log log;
  std::unique_ptr<PlayedStage> first, second;
  std::optional<Chain> chain;

  explicit Played(std::function<void(int)> before_first, std::function<void(int)> before_second)
      : first(std::make_unique<PlayedStage>(1, log, std::move(before_first))),
        second(std::make_unique<PlayedStage>(2, log, std::move(before_second))) {
    StageOptions options;
    options.addresses = {"unix:" + PlayedStage::path(1), "unix:" + PlayedStage::path(2)};
    options.run_seconds = kSeconds;
    chain.emplace(StageInfo{0, 3, "model"}, options, KvOptions());
    chain->ready();
  }
  ~Played() { chain.reset(); }

  void submit(float x, const RunOptions& options = {}) {
    std::vector<Value> tensors{Value::of(TensorView{nullptr, DType::f32, Shape{1}})};
    const std::uint64_t bytes = place_outgoing(tensors, chain->next());
    *static_cast<float*>(tensors[0].tensor.data) = x;
    const std::int64_t numbers[] = {0};
    chain->submit({1, 1, numbers, numbers, numbers, numbers, descs_of(tensors)}, bytes, options);
  }
  float finish() {
    const Chain::Output out = chain->finish({});
    return *static_cast<const float*>(out.logits.tensor.data);
  }
};

// The second stage answers a step when the first one has the next: that would never come where a step had to be through
// all stages before another one enters.
TEST(StageChain, EachStageHasAStepOfItsOwn) {
  constexpr int kSteps = 6;
  Log* log = nullptr;
  Played played([](int) {},
                [&](int i) { EXPECT_TRUE(i + 1 >= kSteps - 1 || log->await("1." + std::to_string(i + 1))); });
  log = &played.log;
  for (int i = 0; i < kSteps; ++i) played.submit(static_cast<float>(10 * i));
  const Chain::Output out = played.chain->finish({});
  EXPECT_EQ(*static_cast<const float*>(out.logits.tensor.data), 10.F * (kSteps - 1) + 2);
  EXPECT_EQ(out.shortest, std::vector<std::int64_t>{2 + kSteps - 1});
}

TEST(StageChain, AfterAnErrorStepsBeforeAreNotWaitedFor) {
  Played played([](int i) { GRAFT_CHECK(ExecutionError, i != 1, "step 1"); }, [](int) {});
  played.submit(1);
  played.submit(2);  // fails at the first stage, while step 0 is at the second
  EXPECT_THROW(played.submit(3), ExecutionError);
  EXPECT_TRUE(played.chain->connected());
  played.chain->ready();
  played.submit(4);
  EXPECT_EQ(played.finish(), 6);
}

TEST(StageChain, AfterACancelledWaitAnswersAreTakenAndDropped) {
  Log driver;
  Played played([&](int i) { EXPECT_TRUE(i != 1 || driver.await("cancelled")); }, [](int) {});
  played.submit(1);
  played.submit(2);
  const CancelToken cancel;
  cancel.cancel();
  RunOptions options;
  options.cancel = &cancel;
  EXPECT_THROW(played.submit(3, options), Cancelled);
  driver.add("cancelled");
  played.chain->ready();
  played.submit(4);
  EXPECT_EQ(played.finish(), 6);
}

}  // namespace
}  // namespace graft::stage
