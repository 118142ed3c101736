// Times each launch of a run, for bench/kernels.py.
// usage: graft_kernel_times PACKAGE.pte THREADS TOKENS PAST [SEQUENCES [KV_TYPE]]
// Prints the JSON of `graft inspect --plan --json` with "milliseconds", the least of several runs, for each entry of
// the plan's "order".
// Dynamic sizes of inputs become SEQUENCES (the first, 1 by default) and TOKENS; the KV cache holds PAST tokens of each
// before.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "graft/graft.h"

namespace {

using graft::Value;

constexpr int kRuns = 15;

class Inputs {
 public:
  Inputs(const graft::MethodInfo& method, std::int64_t tokens, std::int64_t past, std::int64_t sequences) {
    std::mt19937 random(0);
    for (const graft::ValueInfo& info : method.inputs) {
      graft::Shape shape;
      for (const graft::DimInfo& dim : info.dims)
        shape.push_back(dim.min == dim.max     ? dim.min
                        : shape.rank() > 0     ? tokens
                        : info.dims.size() > 1 ? sequences
                                               : 1);
      std::int64_t count = 1;
      for (const std::int64_t size : shape.sizes()) count *= size;
      if (info.dtype == graft::DType::f32) {
        std::vector<float>& data = reals_.emplace_back(static_cast<std::size_t>(count));
        for (float& x : data) x = std::normal_distribution<float>()(random);
        values.push_back(Value::of(graft::TensorView{data.data(), info.dtype, shape}));
        continue;
      }
      if (info.dtype != graft::DType::i64) throw std::runtime_error("expected inputs of f32 and i64: " + info.name);
      std::vector<std::int64_t>& data = integers_.emplace_back(static_cast<std::size_t>(count), 1);
      for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t& x = data[static_cast<std::size_t>(i)];
        if (info.name.find("position") != std::string::npos) x = past + i % tokens;
        if (info.name == "input_ids") x = 1000 + static_cast<std::int64_t>(random() % 20000);
        if (info.name == "logits_to_keep") x = tokens - 1;
      }
      values.push_back(Value::of(graft::TensorView{data.data(), info.dtype, shape}));
    }
  }
  std::vector<Value> values;

 private:
  std::vector<std::vector<float>> reals_;
  std::vector<std::vector<std::int64_t>> integers_;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5 || argc > 7) {
    std::fprintf(stderr, "usage: %s PACKAGE.pte THREADS TOKENS PAST [SEQUENCES [KV_TYPE]]\n", argv[0]);
    return 2;
  }
  const std::int64_t tokens = std::atoll(argv[3]), past = std::atoll(argv[4]);
  const std::int64_t sequences = argc > 5 ? std::atoll(argv[5]) : 1;
  const auto program = graft::Program::load(argv[1]);
  const std::vector<std::string> names = program->method_names();
  const std::string name = std::ranges::count(names, "step") > 0 ? "step" : names.front();  // of a language model
  const graft::MethodInfo& method = program->method(name);
  graft::SessionOptions options;
  options.threads = std::atoi(argv[2]);
  options.kv = {.rows = sequences, .length = 2048, .type = graft::kv_type_named(argc > 6 ? argv[6] : "bf16")};
  graft::Session session(program, options);
  const bool has_cache =
      std::ranges::any_of(method.inputs, [](const graft::ValueInfo& info) { return info.name == "logits_to_keep"; });
  if (past > 0) session.run(name, Inputs(method, past, 0, sequences).values);
  const Inputs inputs(method, tokens, past, sequences);
  std::vector<double> least;
  for (int i = 0; i < kRuns; ++i) {
    if (has_cache) session.kv_truncate(past);
    std::vector<graft::NodeTiming> profile;
    graft::RunOptions run_options;
    run_options.profile = &profile;
    session.run(name, inputs.values, run_options);
    least.resize(profile.size(), std::numeric_limits<double>::infinity());
    for (std::size_t k = 0; k < profile.size(); ++k)
      least[k] = std::min(least[k], static_cast<double>(profile[k].end_ns - profile[k].start_ns) / 1e6);
  }
  auto described = nlohmann::json::parse(program->describe(true));
  described["milliseconds"] = least;
  std::cout << described << "\n";
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
