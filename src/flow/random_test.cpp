// Random flows against the same stages called one after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "flow/graph.h"
#include "flow/test_flow.h"

namespace graft {
namespace {

using test::mixed;
using test::MixProgram;
using test::Numbers;
using test::numbers;
using test::owned;

enum class Kind : std::uint8_t { method, function, fan_out, fan_in };

struct RandomStage {
  Kind kind = Kind::function;
  std::int64_t seed = 0;
  std::vector<std::size_t> inputs;  // sources
  std::size_t outputs = 1;
  std::size_t origin = kNoStage;  // runs for the items of this stage
};

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::int64_t folded(std::int64_t seed, const std::vector<Numbers>& values) {
  for (const Numbers& list : values)
    for (const std::int64_t value : list) seed = mixed(seed, value);
  return seed;
}

// What a stage computes, by output, or by item and output for a fan-out. Some calls fail.
std::vector<std::vector<Numbers>> compute(const RandomStage& stage, const std::vector<Numbers>& in) {
  const std::int64_t all = folded(stage.seed, in);
  if (stage.kind != Kind::method && static_cast<std::uint64_t>(all) % 47 == 3) throw Failed("unlucky");
  std::vector<std::vector<Numbers>> out;
  const std::size_t items = stage.kind == Kind::fan_out ? static_cast<std::uint64_t>(all) % 7 : 1;
  for (std::size_t i = 0; i < items; ++i) {
    std::vector<Numbers>& made = out.emplace_back();
    for (std::size_t o = 0; o < stage.outputs; ++o) {
      const auto salt = static_cast<std::int64_t>(10 * i + o);
      Numbers values;
      if (stage.kind == Kind::method) {
        for (std::size_t e = 0; e < in[0].size(); ++e) values.push_back(mixed(in[0][e], in[1][e]));
      } else {
        for (std::size_t e = 0; e < 3; ++e) values.push_back(mixed(all, salt + static_cast<std::int64_t>(e)));
      }
      made.push_back(std::move(values));
    }
  }
  return out;
}

// A flow of up to 8 stages on i64[3].
struct RandomFlow {
  std::mt19937 random;
  std::vector<RandomStage> stages;
  std::vector<std::size_t> origins;  // of the sources: the flow's two inputs first
  std::vector<std::size_t> first_output;
  std::vector<std::string> names;  // of the sources
  std::vector<std::size_t> outputs;

  explicit RandomFlow(unsigned seed) : random(seed), origins(2, kNoStage), names{"x", "z"} {
    const std::size_t count = 2 + random() % 7;
    for (std::size_t s = 0; s < count; ++s) add(s);
    for (std::size_t i = 0; i < 3; ++i) outputs.push_back(random() % names.size());
    outputs.push_back(names.size() - 1);
  }

  std::size_t pick(std::size_t origin) {  // of sources that have one value, or items of `origin`
    std::vector<std::size_t> fits;
    for (std::size_t i = 0; i < origins.size(); ++i)
      if (origins[i] == kNoStage || origins[i] == origin) fits.push_back(i);
    return fits[random() % fits.size()];
  }

  void add(std::size_t index) {
    RandomStage stage;
    stage.seed = static_cast<std::int64_t>(random() % 1000);
    std::size_t with_items = origins.size();  // a source
    std::vector<std::size_t> item_sources;
    for (std::size_t i = 0; i < origins.size(); ++i)
      if (origins[i] != kNoStage) item_sources.push_back(i);
    if (!item_sources.empty() && random() % 4 != 0) with_items = item_sources[random() % item_sources.size()];
    const bool has_items = with_items < origins.size();
    const std::size_t roll = random() % 6;
    if (index == 0) {
      stage.kind = random() % 2 == 0 ? Kind::fan_out : Kind::method;
    } else if (has_items && roll < 2) {
      stage.kind = Kind::fan_in;
    } else {
      stage.kind = roll < 4 ? Kind::method : roll == 4 ? Kind::function : Kind::fan_out;
    }
    if (has_items && stage.kind != Kind::fan_out && stage.kind != Kind::fan_in) stage.origin = origins[with_items];
    const std::size_t inputs = stage.kind == Kind::method ? 2 : 1 + random() % 3;
    for (std::size_t i = 0; i < inputs; ++i) stage.inputs.push_back(pick(stage.origin));
    if (stage.kind == Kind::fan_in || stage.origin != kNoStage) stage.inputs[random() % inputs] = with_items;
    if (stage.kind != Kind::method) stage.outputs = 1 + random() % 2;
    if (index == 0) stage.inputs[0] = 0;
    if (index == 1) stage.inputs[0] = 1;
    // What the inputs happen to be decides for what the stage runs.
    if (stage.kind != Kind::fan_in) {
      stage.origin = kNoStage;
      for (const std::size_t source : stage.inputs)
        if (origins[source] != kNoStage) stage.origin = origins[source];
    } else if (std::ranges::all_of(stage.inputs, [&](std::size_t s) { return origins[s] == kNoStage; })) {
      stage.kind = Kind::function;
    }
    first_output.push_back(origins.size());
    for (std::size_t o = 0; o < stage.outputs; ++o) {
      origins.push_back(stage.kind == Kind::fan_out ? index : stage.origin);
      names.push_back("s" + std::to_string(index) + "." + std::to_string(o));
    }
    stages.push_back(std::move(stage));
  }

  FlowGraph graph(const MixProgram& mix) {
    FlowGraph out;
    out.inputs = {"x", "z"};
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const RandomStage& stage = stages[s];
      FlowStage& made = out.stages.emplace_back();
      made.name = "s" + std::to_string(s);
      for (std::size_t i = 0; i < stage.inputs.size(); ++i)
        out.connections[made.name + "." + std::to_string(i)] = names[stage.inputs[i]];
      const std::size_t workers = 1 + random() % 3;
      if (stage.kind == Kind::method) {
        made.sessions = mix.sessions(workers);
        continue;
      }
      made.workers = static_cast<int>(workers);
      made.fan_out = stage.kind == Kind::fan_out;
      made.fan_in = stage.kind == Kind::fan_in;
      for (std::size_t i = 0; i < stage.inputs.size(); ++i) made.inputs.push_back({"i" + std::to_string(i)});
      for (std::size_t o = 0; o < stage.outputs; ++o) made.outputs.push_back({"o" + std::to_string(o)});
      const unsigned delay = random() % 4 == 0 ? 50 : 0;
      made.function = [stage, delay](FlowCall& call) {
        std::vector<Numbers> in;
        for (std::size_t i = 0; i < stage.inputs.size(); ++i)
          for (const Value& value : call.items(i)) in.push_back(numbers(value));
        if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
        for (const std::vector<Numbers>& item : compute(stage, in)) {
          for (std::size_t o = 0; o < item.size(); ++o) test::give(call, o, item[o]);
          if (stage.kind == Kind::fan_out) call.emit();
        }
      };
    }
    for (const std::size_t source : outputs) out.outputs.push_back(names[source]);
    return out;
  }

  using Values = std::vector<std::vector<std::optional<Numbers>>>;

  // One stage after another. By source the values of its items, or one; none where a call failed or got none. `failed`:
  // the errors of stages that fail.
  Values evaluate(const Numbers& x, const Numbers& z, std::vector<std::string>& failed) const {
    Values values(names.size());
    values[0] = {x};
    values[1] = {z};
    std::vector<bool> known(names.size(), true);  // how many items there are
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const RandomStage& stage = stages[s];
      const std::size_t first = first_output[s];
      for (std::size_t o = 0; o < stage.outputs; ++o)
        known[first + o] = std::ranges::all_of(stage.inputs, [&](std::size_t source) { return known[source]; });
      if (!known[first]) continue;
      const std::size_t calls = stage.origin == kNoStage ? 1 : values[first_output[stage.origin]].size();
      bool right = true;
      for (std::size_t c = 0; c < calls; ++c) {
        std::vector<Numbers> in;
        bool complete = true;
        for (const std::size_t source : stage.inputs)
          for (std::size_t i = 0; i < values[source].size(); ++i) {
            const bool all = stage.kind == Kind::fan_in || origins[source] == kNoStage;
            if (!all && i != c) continue;
            complete &= values[source][i].has_value();
            in.push_back(values[source][i].value_or(Numbers()));
          }
        std::vector<std::vector<Numbers>> made;
        if (complete) {
          try {
            made = compute(stage, in);
          } catch (const Failed&) {
            complete = right = false;
          }
        }
        for (std::size_t o = 0; o < stage.outputs; ++o) {
          for (const std::vector<Numbers>& item : made) values[first + o].emplace_back(item[o]);
          if (!complete && stage.kind == Kind::fan_out) known[first + o] = false;
          if (!complete && stage.kind != Kind::fan_out) values[first + o].emplace_back();
        }
      }
      if (!right) failed.push_back("stage 's" + std::to_string(s) + "': unlucky");
    }
    return values;
  }
};

TEST(RandomFlows, GiveWhatTheirStagesGiveOneAfterAnother) {
  const MixProgram mix;
  int failures = 0, cancels = 0, right = 0, items = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomFlow net(seed);
    FlowGraph graph = net.graph(mix);
    FlowOptions options;
    options.runs = 1 + net.random() % 6;
    options.items = 1 + net.random() % 4;
    Flow flow(std::move(graph), options);
    constexpr std::size_t kRuns = 16;
    std::vector<std::future<FlowOutputs>> runs;
    std::vector<std::vector<Numbers>> inputs;
    std::vector<CancelToken> tokens(kRuns);
    std::atomic<std::size_t> submitted = 0;
    std::jthread canceller([&, r = net.random()]() mutable {  // every fourth run, at some time
      for (std::size_t i = 3; i < kRuns; i += 4) {
        while (submitted + 1 < i) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(r++ % 5 * 40));
        tokens[i].cancel();
      }
    });
    for (std::size_t i = 0; i < kRuns; ++i) {
      Numbers x, z;
      for (int e = 0; e < 3; ++e) {
        x.push_back(static_cast<std::int64_t>(net.random() % 100));
        z.push_back(static_cast<std::int64_t>(net.random() % 100));
      }
      RunOptions run;
      if (i % 4 == 3) run.cancel = &tokens[i];
      inputs.push_back({x, z});
      try {
        runs.push_back(flow.submit({owned(x), owned(z)}, run));
      } catch (const Cancelled&) {
        ASSERT_EQ(i % 4, 3u);
        runs.emplace_back();
      }
      ++submitted;
    }
    flow.drain();
    canceller.join();
    for (std::size_t i = 0; i < kRuns; ++i) {
      if (!runs[i].valid()) continue;
      std::vector<std::string> failed;
      const auto expected = net.evaluate(inputs[i][0], inputs[i][1], failed);
      try {
        const FlowOutputs got = runs[i].get();
        ASSERT_TRUE(failed.empty()) << "seed " << seed << ", run " << i << ": expected " << failed[0];
        for (std::size_t o = 0; o < got.size(); ++o) {
          std::vector<std::optional<Numbers>> found;
          for (const Value& value : got[o]) found.emplace_back(numbers(value));
          ASSERT_EQ(found, expected[net.outputs[o]]) << "seed " << seed << ", run " << i << ", output " << o;
          items += got[o].size() == 1 ? 0 : 1;
        }
        ++right;
      } catch (const Cancelled&) {
        ASSERT_EQ(i % 4, 3u) << "seed " << seed;
        ++cancels;
      } catch (const ExecutionError& error) {
        ASSERT_NE(std::ranges::find(failed, error.what()), failed.end()) << "seed " << seed << ": " << error.what();
        ++failures;
      }
    }
    const FlowCounters counts = flow.counters();
    ASSERT_EQ(counts.submitted, counts.finished);
    ASSERT_LE(counts.most_running, options.runs);
  }
  // The population has all of it.
  EXPECT_GT(right, 1000);
  EXPECT_GT(failures, 100);
  EXPECT_GT(cancels, 20);
  EXPECT_GT(items, 200);
}

}  // namespace
}  // namespace graft
