#include "serve/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "llm/test_model.h"

namespace graft::serve {
namespace {

using test::SmallLanguageModel;
using Ids = std::vector<std::int64_t>;

constexpr auto kLong = std::chrono::minutes(5);

Ids alone(const SmallLanguageModel& small, const Job& job) {
  TextGenerator generator(small.model);
  return generator.generate(job.prompt, job.options).tokens;
}

struct Outcome {
  Ids tokens;
  std::optional<FinishReason> reason;
  std::exception_ptr error;
};

// Submits one job, whose outcome the future has.
std::future<Outcome> submit(Engine& engine, Job job, Clock::duration time = kLong, Engine::RequestId* id = nullptr) {
  const auto promise = std::make_shared<std::promise<Outcome>>();
  const auto given = engine.submit(
      {std::move(job)}, Clock::now() + time,
      [promise](std::size_t, const RequestState& state, std::exception_ptr error) {
        if (!state.reason && !error) return;
        promise->set_value({Ids(state.tokens.begin(), state.tokens.end()), state.reason, std::move(error)});
      });
  if (id) *id = given;
  return promise->get_future();
}

Job job_of(std::size_t i, std::int64_t tokens) {
  Job job;
  for (std::size_t k = 0; k < 1 + i * 7 % 40; ++k)
    job.prompt.push_back(static_cast<std::int64_t>((i * 5 + k * k) % SmallLanguageModel::kVocabulary));
  job.options.max_new_tokens = tokens;
  job.options.temperature = i % 2 == 0 ? 0 : 0.8;
  job.options.seed = i;
  return job;
}

TEST(Engine, TextsOfManyThreadsAreThoseThatTheyAreAlone) {
  const SmallLanguageModel small;
  Engine engine(small.model, {.threads = 2, .rows = 5, .prefill_chunk_size = 16}, 64);
  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(24);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < outcomes.size(); i += 4)
        outcomes[i] = submit(engine, job_of(i, 5 + static_cast<std::int64_t>(i))).get();
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, alone(small, job_of(i, 5 + static_cast<std::int64_t>(i)))) << i;
    EXPECT_EQ(outcomes[i].reason, FinishReason::length);
  }
  EXPECT_EQ(engine.stats().generation.new_tokens, 24 * 5 + 23 * 24 / 2);
}

TEST(Engine, TheJobsOfARequestEndTogetherInOneCallback) {
  const SmallLanguageModel small;
  Engine engine(small.model, {.rows = 2}, 64);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < 5; ++i) jobs.push_back(job_of(i, 6));
  std::vector<Ids> tokens(5);
  std::promise<void> done;
  std::size_t ended = 0;
  engine.submit(jobs, Clock::now() + kLong, [&](std::size_t job, const RequestState& state, std::exception_ptr) {
    tokens[job].assign(state.tokens.begin(), state.tokens.end());
    if (state.reason && ++ended == 5) done.set_value();
  });
  done.get_future().get();
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(tokens[i], alone(small, jobs[i]));
}

TEST(Engine, ACancelledRequestLeavesBeforeTheNextStep) {
  const SmallLanguageModel small;
  Engine engine(small.model, {.rows = 2}, 64);
  std::atomic<int> calls{0};
  std::promise<Engine::RequestId> id;
  const std::shared_future<Engine::RequestId> given = id.get_future().share();
  std::promise<void> cancelled;
  Job job = job_of(3, 90);
  // The callback runs in the engine's thread, so that exactly one step has been.
  id.set_value(
      engine.submit({job}, Clock::now() + kLong, [&, given](std::size_t, const RequestState&, std::exception_ptr) {
        if (++calls == 1) {
          engine.cancel(given.get());
          cancelled.set_value();
        }
      }));
  cancelled.get_future().get();
  // Another text is whole, and by then the first one is gone.
  EXPECT_EQ(submit(engine, job_of(5, 20)).get().tokens, alone(small, job_of(5, 20)));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(engine.stats().running, 0u);
  engine.cancel(12345);  // unknown
}

TEST(Engine, AFullQueueIsBusy) {
  const SmallLanguageModel small;
  Engine engine(small.model, {.rows = 1}, 2);
  // The engine's thread is held in a callback.
  std::promise<void> held, go;
  engine.submit({job_of(1, 50)}, Clock::now() + kLong,
                [&, first = true](std::size_t, const RequestState&, std::exception_ptr) mutable {
                  if (!std::exchange(first, false)) return;
                  held.set_value();
                  go.get_future().get();
                });
  held.get_future().get();
  std::vector<std::future<Outcome>> waiting;
  EXPECT_THROW(engine.submit({job_of(1, 2), job_of(2, 2), job_of(3, 2), job_of(4, 2)}, Clock::now() + kLong, {}), Busy);
  std::size_t taken = 0;
  try {
    for (; taken < 10; ++taken) waiting.push_back(submit(engine, job_of(taken, 3)));
  } catch (const Busy&) {
  }
  EXPECT_GE(taken, 2u);
  EXPECT_LE(taken, 3u);
  EXPECT_EQ(engine.stats().waiting, taken);
  go.set_value();
  for (std::size_t i = 0; i < taken; ++i) EXPECT_EQ(waiting[i].get().tokens, alone(small, job_of(i, 3)));
}

TEST(Engine, ErrorsAreOfTheirRequest) {
  const SmallLanguageModel small;
  Engine engine(small.model, {.rows = 2}, 8);
  auto good = submit(engine, job_of(2, 30));
  Job wrong = job_of(2, 30);
  wrong.prompt = {99};
  EXPECT_THROW(std::rethrow_exception(submit(engine, wrong).get().error), InvalidArgument);
  auto late = submit(engine, job_of(4, 90), std::chrono::seconds(-1));
  EXPECT_THROW(std::rethrow_exception(late.get().error), Cancelled);
  EXPECT_EQ(good.get().tokens, alone(small, job_of(2, 30)));
}

TEST(Engine, TheEndOfTheEngineEndsItsRequests) {
  const SmallLanguageModel small;
  std::vector<std::future<Outcome>> outcomes;
  {
    Engine engine(small.model, {.rows = 1}, 8);
    for (std::size_t i = 0; i < 4; ++i) outcomes.push_back(submit(engine, job_of(i, 80)));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const Outcome ended = outcomes[i].get();
    if (ended.error)
      EXPECT_THROW(std::rethrow_exception(ended.error), Cancelled);
    else
      EXPECT_EQ(ended.tokens, alone(small, job_of(i, 80)));
  }
}

}  // namespace
}  // namespace graft::serve
