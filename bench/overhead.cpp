// graft's overhead around its kernels: planning a new shape, a call whose plan is cached, and cancelling a run. usage:
// graft_overhead PACKAGE.pte [--json FILE]      (a MiniLM package: ids and mask [1, T]; `make bench` runs it)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/executor.h"
#include "graft/graft.h"
#include "load/program_impl.h"

namespace {

using Clock = std::chrono::steady_clock;
using Samples = std::vector<double>;

double micros(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

double quantile(Samples samples, double q) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1))];
}

nlohmann::json report(const char* what, const Samples& samples) {
  const double median = quantile(samples, 0.5);
  const double p99 = quantile(samples, 0.99);
  std::printf("%-58s median %8.2f us   p99 %8.2f us   (%zu samples)\n", what, median, p99, samples.size());
  return {{"what", what}, {"unit", "us"}, {"median", median}, {"p99", p99}, {"samples", samples}};
}

// Kernels that do nothing but record when they ran.
Clock::time_point first_kernel;
Clock::time_point last_kernel;
const graft::Kernel kReturn{"return", [](const graft::KernelContext&) noexcept {}};
const graft::Kernel kFirst{"first", [](const graft::KernelContext& ctx) noexcept {
                             if (ctx.task == 0) first_kernel = Clock::now();
                           }};
const graft::Kernel kLast{"last", [](const graft::KernelContext& ctx) noexcept {
                            if (ctx.task == ctx.tasks - 1) last_kernel = Clock::now();
                          }};

struct Inputs {
  explicit Inputs(std::int64_t tokens)
      : ids(static_cast<std::size_t>(tokens), 101),
        mask(static_cast<std::size_t>(tokens), 1),
        values{graft::Value::of(graft::TensorView{ids.data(), graft::DType::i64, {1, tokens}}),
               graft::Value::of(graft::TensorView{mask.data(), graft::DType::i64, {1, tokens}})},
        descs(2) {
    for (graft::InputDesc& desc : descs) {
      desc.is_tensor = true;
      desc.desc = graft::TensorDesc(graft::DType::i64, {1, tokens});
    }
  }
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> mask;
  std::vector<graft::Value> values;
  std::vector<graft::InputDesc> descs;
};

// Times making a plan and its executor for a new length.
Samples planning(const graft::Program& program, int threads) {
  const auto graph = graft::Internal::of(program).graph(0);
  std::vector<std::int64_t> lengths(512);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int64_t>(i + 1);
  std::shuffle(lengths.begin(), lengths.end(), std::mt19937(1));
  Samples samples;
  graft::RunControl control;
  for (const std::int64_t length : lengths) {
    const Inputs inputs(length);
    graft::PlanOptions options;
    options.max_threads = threads;
    const Clock::time_point begin = Clock::now();
    auto plan = std::make_shared<const graft::Plan>(make_plan(*graph, graph->methods[0], inputs.descs, options));
    const auto executor = make_executor(std::move(plan), threads, control);
    samples.push_back(micros(Clock::now() - begin));
  }
  return samples;
}

// From entry to the first kernel plus from the last kernel to return, all kernels replaced by a return.
Samples cached_call(const std::shared_ptr<const graft::Program>& program, int threads) {
  constexpr std::int64_t kTokens = 8;
  constexpr int kCalls = 20000;
  const Inputs inputs(kTokens);
  const graft::LoadedMethod& method = graft::Internal::of(*program).methods[0];
  const std::shared_ptr<const graft::ir::Program> graph = graft::Internal::of(*program).graph(0);
  graft::Internal::of(*program).plans->get(0, threads, {1, kTokens, 1, kTokens}, [&] {
    graft::PlanOptions options;
    options.max_threads = threads;
    graft::Plan plan = make_plan(*graph, graph->methods[0], inputs.descs, options);
    for (graft::Launch& launch : plan.launches) launch.kernel = &kReturn;
    plan.launches.front().kernel = &kFirst;
    plan.launches.back().kernel = &kLast;
    return plan;
  });
  graft::SessionOptions options;
  options.threads = threads;
  graft::Session session(program, options);
  std::vector<graft::Value> outputs = session.run(method.info.name, inputs.values);
  Samples samples;
  for (int i = 0; i < kCalls; ++i) {
    const Clock::time_point entry = Clock::now();
    session.run_into(method.info.name, inputs.values, outputs);
    const Clock::time_point end = Clock::now();
    samples.push_back(micros(first_kernel - entry) + micros(end - last_kernel));
  }
  if (session.counters().graphs_built != 1 || session.counters().plan_misses != 0)
    throw graft::Error("the calls were to reuse one plan and one graph");
  return samples;
}

// From cancel() on another thread to the end of the run, and the longest launch, which it has to wait for.
struct CancelLatency {
  Samples latency;
  Samples longest_launch;
};
CancelLatency cancelling(const std::shared_ptr<const graft::Program>& program, int threads) {
  constexpr std::int64_t kTokens = 256;
  constexpr int kCalls = 400;
  const Inputs inputs(kTokens);
  const std::string& method = graft::Internal::of(*program).methods[0].info.name;
  graft::SessionOptions options;
  options.threads = threads;
  graft::Session session(program, options);
  std::vector<graft::Value> outputs = session.run(method, inputs.values);
  CancelLatency result;
  double run_micros = 0;
  for (int i = 0; i < 20; ++i) {
    std::vector<graft::NodeTiming> profile;
    graft::RunOptions profiled;
    profiled.profile = &profile;
    session.run_into(method, inputs.values, outputs, profiled);
    double longest = 0;
    for (const graft::NodeTiming& node : profile)
      longest = std::max(longest, static_cast<double>(node.end_ns - node.start_ns) / 1e3);
    result.longest_launch.push_back(longest);
    run_micros = static_cast<double>(profile.back().end_ns) / 1e3;
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<double> when(0, 0.9 * run_micros);
  while (static_cast<int>(result.latency.size()) < kCalls) {
    graft::CancelToken token;
    graft::RunOptions run;
    run.cancel = &token;
    Clock::time_point asked;
    const auto delay = std::chrono::duration<double, std::micro>(when(random));
    std::thread canceller([&, start = Clock::now()] {
      std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(delay));
      asked = Clock::now();
      token.cancel();
    });
    Clock::time_point end;
    bool cancelled = false;
    try {
      session.run_into(method, inputs.values, outputs, run);
    } catch (const graft::Cancelled&) {
      cancelled = true;
    }
    end = Clock::now();
    canceller.join();
    if (cancelled && end > asked) result.latency.push_back(micros(end - asked));
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string usage = "usage: graft_overhead PACKAGE.pte [--json FILE]";
  if (argc != 2 && !(argc == 4 && std::string(argv[2]) == "--json")) throw graft::InvalidArgument(usage);
  const auto program = graft::Program::load(argv[1]);
  nlohmann::json rows;
  rows.push_back(report("plan and executor for a new length, 2 threads", planning(*program, 2)));
  for (int threads : {1, 2}) {
    graft::LoadOptions options;
    options.max_plans = 63;  // programs with other options have plans of their own
    const auto fresh = graft::Program::load(argv[1], options);
    const std::string what = "cached call around its kernels, " + std::to_string(threads) + " thread(s)";
    rows.push_back(report(what.c_str(), cached_call(fresh, threads)));
  }
  const CancelLatency cancelled = cancelling(program, 2);
  rows.push_back(report("longest launch of a run at 256 tokens, 2 threads", cancelled.longest_launch));
  rows.push_back(report("from cancel() to the end of the run", cancelled.latency));
  if (argc == 4) std::ofstream(argv[3]) << rows.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "graft_overhead: %s\n", error.what());
  return 1;
}
