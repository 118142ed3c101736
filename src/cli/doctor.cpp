#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/python.h"
#include "cli/text.h"
#include "graft/build.h"

namespace graft::cli {
namespace {

// The value behind `key` and a colon in a file of /proc; empty if there is none.
std::string value_in(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::string kibibytes(const char* key) {
  const std::string text = value_in("/proc/meminfo", key);
  return text.empty() ? "unknown" : bytes_text(std::strtoull(text.c_str(), nullptr, 10) * 1024);
}

// The first words of these files, the first that exists; empty if none does.
std::string word_of(std::initializer_list<const char*> files) {
  std::string word;
  for (const char* file : files)
    if (std::ifstream(file) >> word) return word;
  return {};
}

std::string cgroup_memory() {
  const std::string word = word_of({"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"});
  const std::uint64_t bytes = std::strtoull(word.c_str(), nullptr, 10);
  // cgroup v1 has no word for "none": it says the largest number of pages.
  return bytes == 0 || bytes > (1ULL << 60) ? "none" : bytes_text(bytes);
}

// What `threads` threads read per second from memory that no cache holds, in GB/s; the best of the passes that
// `seconds` leave time for.
double read_rate(const std::vector<std::uint64_t>& words, int threads, double seconds) {
  const std::size_t count = words.size();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads) * 8);  // a cache line each
  const auto pass = [&] {
    const Clock::time_point begin = Clock::now();
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < static_cast<std::size_t>(threads); ++t) {
      workers.emplace_back([&, t] {
        std::uint64_t sum = 0;
        for (std::size_t i = count * t / threads, end = count * (t + 1) / threads; i < end; ++i) sum += words[i];
        sums[t * 8] += sum;
      });
    }
    workers.clear();
    return seconds_since(begin);
  };
  const Clock::time_point end = Clock::now() + duration_of(seconds);
  double best = pass();
  while (Clock::now() < end) best = std::min(best, pass());
  const bool whole = std::ranges::any_of(sums, [](std::uint64_t sum) { return sum != 0; });
  return whole ? static_cast<double>(count) * sizeof(std::uint64_t) / best * 1e-9 : 0;
}

void measure_reading(Table& table, int threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // beyond the caches of most CPUs
  try {
    const std::vector<std::uint64_t> words(kBytes / sizeof(std::uint64_t), 1);
    std::string text = fixed(read_rate(words, 1, 0.4), 1) + " GB/s by one thread";
    if (threads > 1)
      text += ", " + fixed(read_rate(words, threads, 0.4), 1) + " by " + std::to_string(threads) +
              "; a token of a language model reads all weights once";
    table.add({"reading memory", text});
  } catch (const std::bad_alloc&) {
    table.add({"reading memory", "not measured: no " + bytes_text(kBytes) + " free"});
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out.empty() ? "none" : out;
}

// Which packages of Python are there, by their metadata: importing them would take seconds.
constexpr const char* kPackages = R"(
import importlib.metadata, platform, sys
def row(name, text):
    print(f"{name:16}  {text}")
row("Python", f"{platform.python_version()} at {sys.executable}")
needs = {
    "graft": "the Python side", "numpy": "arrays", "torch": "graft.export, torch tensors",
    "executorch": "the delegate and packages with nodes left to ExecuTorch", "transformers": "graft.compile, graft export",
    "safetensors": "checkpoints", "tokenizers": "checkpoints without tokenizer.json",
}
for name, use in needs.items():
    try:
        row(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        row(name, f"missing; needed for {use}")
)";

}  // namespace

std::string version_text() {
  const BuildInfo build = build_info();
  return str("graft ", build.version, build.commit.empty() ? "" : " (" + build.commit + ")", ", ggml ", build.ggml,
             ", instruction sets: ", joined(build.instruction_sets), "; in use: ", build.instruction_set);
}

void doctor() {
  const BuildInfo build = build_info();
  Table table({{"what"}, {"found"}});
  table.add({"graft", build.version + (build.commit.empty() ? "" : ", commit " + build.commit)});
  table.add({"ggml", build.ggml});
  const std::string cpu = value_in("/proc/cpuinfo", "model name");
  table.add({"CPU", cpu.empty() ? "unknown" : cpu});
  table.add({"instruction sets", joined(build.instruction_sets) + "; in use: " + build.instruction_set});
  table.add({"not on this CPU", joined(build.not_available)});
  const std::string quota = word_of({"/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"});
  const bool unlimited = quota.empty() || quota == "max" || quota == "-1";
  table.add({"CPUs", str(std::thread::hardware_concurrency(), " online, ", build.cpus,
                         " usable (affinity, cgroup quota ", unlimited ? "none" : quota + " us", ")")});
  table.add({"threads", str(build.threads, " by default", std::getenv("GRAFT_THREADS") ? " (GRAFT_THREADS)" : "")});
  table.add({"memory",
             kibibytes("MemTotal") + ", available " + kibibytes("MemAvailable") + ", cgroup limit " + cgroup_memory()});
  measure_reading(table, build.threads);
  for (const DeviceInfo& device : devices())
    table.add({"device " + device.name, bytes_text(device.memory_total) + ", " + device.description});
  std::cout << table.text();

  const std::string python = find_python();
  if (python.empty()) {
    std::cout << "Python            none beside this program or in VIRTUAL_ENV; needed for graft export alone\n";
    return;
  }
  std::cout.flush();
  become_python(python, kPackages, {});
}

}  // namespace graft::cli
