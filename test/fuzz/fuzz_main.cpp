#include <sanitizer/asan_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "feed.h"
#include "graft/error.h"
#include "mutate.h"
#include "seeds.h"

// libFuzzer on the kind of file that GRAFT_FUZZ names (seeds.h has the list).
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                         void (*)(const volatile void*));

namespace graft::fuzz {
namespace {

std::atomic<std::size_t> largest_allowed{0};  // 0: not watched

void on_malloc(const volatile void*, std::size_t bytes) {
  const std::size_t most = largest_allowed.load(std::memory_order_relaxed);
  if (most == 0 || bytes <= most) return;
  largest_allowed = 0;
  std::fprintf(stderr, "a load allocates %zu bytes at once, at most %zu are allowed\n", bytes, most);
  std::abort();
}

void watch_allocations() {
  __sanitizer_install_malloc_and_free_hooks(on_malloc, [](const volatile void*) {});
  set_watch({[](std::size_t bytes) {
               largest_allowed = bytes * kLoadGrowth > kWatchSlack ? bytes * kLoadGrowth : kWatchSlack;
             },
             [] { largest_allowed = 0; }});
}

// Prints now and then, and at the end, how far the inputs came.
void count(const Fate& fate) {
  static struct Counts {
    std::uint64_t all = 0, verified = 0, planned = 0, ran = 0;
    void print() const {
      if (all > 0)
        std::fprintf(stderr, "%llu inputs: %.1f %% read, %.1f %% used, %.1f %% used to the end\n",
                     static_cast<unsigned long long>(all),
                     100. * static_cast<double>(verified) / static_cast<double>(all),
                     100. * static_cast<double>(planned) / static_cast<double>(all),
                     100. * static_cast<double>(ran) / static_cast<double>(all));
    }
    ~Counts() { print(); }
  } counts;
  ++counts.all;
  counts.verified += fate.verified;
  counts.planned += fate.planned;
  counts.ran += fate.ran;
  if (counts.all % 100000 == 0) counts.print();
}

const Target* chosen = nullptr;
std::vector<Blob> seeds;                // of this build: it reads no stored plans of another, which the corpus may have
constexpr std::uint64_t kFromSeed = 8;  // of so many mutants one begins with a seed

}  // namespace
}  // namespace graft::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("GRAFT_FUZZ");
  try {
    graft::fuzz::chosen = &graft::fuzz::target_named(name == nullptr ? "" : name);
  } catch (const graft::Error& error) {
    std::fprintf(stderr, "GRAFT_FUZZ: %s\n", error.what());
    std::exit(2);
  }
  graft::fuzz::seeds = graft::fuzz::chosen->seeds();
  for (const graft::fuzz::Blob& seed : graft::fuzz::seeds) graft::fuzz::chosen->feed(seed);
  graft::fuzz::watch_allocations();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  graft::fuzz::count(graft::fuzz::chosen->feed(std::as_bytes(std::span(data, size))));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  std::span<const std::byte> from = std::as_bytes(std::span(data, size));
  const auto& seeds = graft::fuzz::seeds;
  if (seed % graft::fuzz::kFromSeed == 0) from = seeds[seed / graft::fuzz::kFromSeed % seeds.size()];
  const graft::fuzz::Blob mutant = graft::fuzz::chosen->mutate(from, seed);
  const std::size_t count = mutant.size() < max_size ? mutant.size() : max_size;
  if (count > 0) std::memcpy(data, mutant.data(), count);
  return count;
}
