// Runs that overlap in one process: throughput of sessions side by side, how CPUs are shared out between runs of one
// and of several threads, and how soon a deadline or a cancel ends a run that waits or computes under load.
// usage: graft_overlap PACKAGE.pte [--seconds S]      (a MiniLM package: ids and mask [1, T]; `make bench-overhead`)
//
// Rates are those of rounds in turns, the median of several; outputs of every run are compared with those of a session
// alone, bit for bit.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graft/graft.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1))];
}

class Caller {
 public:
  Caller(std::shared_ptr<const graft::Program> program, int threads, std::int64_t tokens)
      : session_(std::move(program), options_of(threads)),
        ids_(static_cast<std::size_t>(tokens), 101),
        mask_(static_cast<std::size_t>(tokens), 1),
        inputs_{graft::Value::of(graft::TensorView{ids_.data(), graft::DType::i64, {1, tokens}}),
                graft::Value::of(graft::TensorView{mask_.data(), graft::DType::i64, {1, tokens}})} {
    expected_ = output();
  }

  // Runs until `end`; returns how many runs.
  int run_until(const std::atomic<bool>& end) {
    int runs = 0;
    for (; !end; ++runs)
      if (output() != expected_) wrong = true;
    return runs;
  }
  bool run(const graft::RunOptions& options) {
    try {
      session_.run("forward", inputs_, options);
      return true;
    } catch (const graft::Cancelled&) {
      return false;
    }
  }
  std::vector<std::byte> output() {
    const std::vector<graft::Value> outputs = session_.run("forward", inputs_);
    const graft::TensorView& out = outputs[0].tensor;
    std::vector<std::byte> bytes(graft::TensorDesc(out.dtype, out.shape).byte_count());
    std::memcpy(bytes.data(), out.data, bytes.size());
    return bytes;
  }

  static inline std::atomic<bool> wrong{false};

 private:
  static graft::SessionOptions options_of(int threads) {
    graft::SessionOptions options;
    options.threads = threads;
    return options;
  }

  graft::Session session_;
  std::vector<std::int64_t> ids_, mask_;
  std::vector<graft::Value> inputs_;
  std::vector<std::byte> expected_;
};

using Callers = std::vector<std::unique_ptr<Caller>>;

// Runs per second of each caller, all at once for so long.
std::vector<double> rates(Callers& callers, double duration) {
  std::atomic<bool> end{false};
  std::vector<std::future<int>> runs;
  const Clock::time_point begin = Clock::now();
  for (auto& caller : callers) runs.push_back(std::async(std::launch::async, [&] { return caller->run_until(end); }));
  std::this_thread::sleep_for(std::chrono::duration<double>(duration));
  end = true;
  std::vector<int> counts;
  for (auto& run : runs) counts.push_back(run.get());
  const double elapsed = seconds(Clock::now() - begin);
  std::vector<double> out;
  for (const int count : counts) out.push_back(count / elapsed);
  return out;
}

double sum(const std::vector<double>& values) {
  double all = 0;
  for (const double value : values) all += value;
  return all;
}

// Milliseconds from a deadline or cancel to the end of the run's call, while `load` computes.
void latency(const char* what, Callers& load, Caller& caller, bool by_deadline, int samples) {
  std::atomic<bool> end{false};
  std::vector<std::future<int>> runs;
  for (auto& one : load) runs.push_back(std::async(std::launch::async, [&] { return one->run_until(end); }));
  std::vector<double> late;
  while (static_cast<int>(late.size()) < samples) {
    graft::RunOptions options;
    graft::CancelToken token;
    Clock::time_point stop = Clock::now() + std::chrono::microseconds(500 + 37 * late.size() % 2000);
    std::thread canceller;
    if (by_deadline) {
      options.deadline = stop;
    } else {
      options.cancel = &token;
      canceller = std::thread([&] {
        std::this_thread::sleep_until(stop);
        stop = Clock::now();
        token.cancel();
      });
    }
    const bool finished = caller.run(options);
    const Clock::time_point ended = Clock::now();
    if (canceller.joinable()) canceller.join();
    if (!finished) late.push_back(seconds(ended - stop) * 1e3);
  }
  end = true;
  for (auto& run : runs) run.get();
  std::printf("%-66s median %7.3f ms   p99 %7.3f ms\n", what, quantile(late, 0.5), quantile(late, 0.99));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: graft_overlap PACKAGE.pte [--seconds S]\n");
    return 2;
  }
  double duration = 1;
  for (int i = 2; i + 1 < argc; i += 2)
    if (std::string(argv[i]) == "--seconds") duration = std::atof(argv[i + 1]);
  const auto program = graft::Program::load(argv[1]);
  constexpr int kRounds = 5;
  constexpr std::int64_t kTokens = 64;
  const auto callers = [&](std::vector<int> threads) {
    Callers out;
    for (const int count : threads) out.push_back(std::make_unique<Caller>(program, count, kTokens));
    return out;
  };

  Callers one = callers({1}), two = callers({1, 1}), four = callers({1, 1, 1, 1});
  std::vector<double> of_one, of_two, of_four;
  for (int round = 0; round < kRounds; ++round) {
    of_one.push_back(sum(rates(one, duration)));
    of_two.push_back(sum(rates(two, duration)));
    of_four.push_back(sum(rates(four, duration)));
  }
  const double alone = quantile(of_one, 0.5);
  std::printf("one session of one thread: %.1f runs a second\n", alone);
  std::printf("two of them: %.2f times as many\n", quantile(of_two, 0.5) / alone);
  std::printf("four of them: %.2f times as many\n", quantile(of_four, 0.5) / alone);

  Callers wide = callers({2}), wide_two = callers({2, 2}), mixed = callers({2, 1, 1});
  std::vector<double> of_wide, of_wide_two, wide_part, single_part;
  for (int round = 0; round < kRounds; ++round) {
    of_wide.push_back(sum(rates(wide, duration)));
    of_wide_two.push_back(sum(rates(wide_two, duration)));
    const std::vector<double> parts = rates(mixed, duration);
    wide_part.push_back(parts[0]);
    single_part.push_back(std::min(parts[1], parts[2]));
  }
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  const double fair = alone * std::min(1.0, cpus / 3.0);
  std::printf("one session of two threads: %.1f runs a second; two of them: %.2f times as many\n",
              quantile(of_wide, 0.5), quantile(of_wide_two, 0.5) / quantile(of_wide, 0.5));
  std::printf(
      "one of two threads beside two of one, on %d CPUs, against a third of them each: %.2f, the others at least "
      "%.2f\n",
      cpus, quantile(wide_part, 0.5) / fair, quantile(single_part, 0.5) / fair);

  Callers load;
  for (int i = 0; i < cpus; ++i) load.push_back(std::make_unique<Caller>(program, 2, 512));
  Caller waiting(program, 2, kTokens), computing(program, 1, 512);
  latency("deadline of a run that waits or computes, all CPUs busy", load, waiting, true, 200);
  latency("cancel of a run that waits or computes, all CPUs busy", load, waiting, false, 200);
  latency("deadline of a run of one thread that computes, all CPUs busy", load, computing, true, 200);
  latency("cancel of a run of one thread that computes, all CPUs busy", load, computing, false, 200);
  Callers none;
  latency("deadline of a run that computes alone", none, computing, true, 200);
  latency("cancel of a run that computes alone", none, computing, false, 200);
  if (Caller::wrong) {
    std::fprintf(stderr, "outputs of overlapping runs differ from those of a session alone\n");
    return 1;
  }
  std::printf("all outputs are those of a session alone, bit for bit\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "graft_overlap: %s\n", error.what());
  return 1;
}
