// The machine's peak rates, for the limits of the chart's bars: products of f32, bf16 and int8 from registers, and
// reading memory outside the caches. usage: graft_roofline [THREADS]; prints JSON {gflops_f32, gflops_bf16, gops_int8,
// gb_read}. Each figure is the best of several short runs; 0 where the CPU has no such instruction.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr int kChains = 12;  // independent accumulators: more than an FMA's latency times the number of its units
constexpr std::int64_t kSteps = 4'000'000;
constexpr int kTries = 7;

volatile float sink;

__attribute__((target("avx2,fma"))) void f32_avx2() {
  __m256 a = _mm256_set1_ps(1.F), b = _mm256_set1_ps(1e-9F), sums[kChains];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.F);
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
    __asm__ volatile("" : "+x"(a), "+x"(b));
  }
  __m256 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_ps(total, sums[i]);
  sink = _mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) void f32_avx512() {
  __m512 a = _mm512_set1_ps(1.F), b = _mm512_set1_ps(1e-9F), sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.F);
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sums[i]);
  sink = _mm512_reduce_add_ps(total);
}

__attribute__((target("avx512f,avx512bf16"))) void bf16_avx512() {
  __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = a;
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.F);
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sums[i]);
  sink = _mm512_reduce_add_ps(total);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void int8_avx512() {
  __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2), sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_set1_epi32(1);
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  __m512i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_epi32(total, sums[i]);
  sink = static_cast<float>(_mm512_reduce_add_epi32(total));
}

__attribute__((target("avx2"))) void int8_avx2() {
  __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2), sums[kChains];
  const __m256i ones = _mm256_set1_epi16(1);
  for (__m256i& sum : sums) sum = _mm256_set1_epi32(1);
  for (std::int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m256i& sum : sums)
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    __asm__ volatile("" : "+x"(a), "+x"(b));
  }
  __m256i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_epi32(total, sums[i]);
  sink = static_cast<float>(_mm256_extract_epi32(total, 0));
}

double seconds(int threads, const std::function<void(int)>& work) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// In 1e9 per second, of `count` operations per thread.
double rate(int threads, double count, const std::function<void(int)>& work) {
  double best = 0;
  for (int i = 0; i < kTries; ++i) best = std::max(best, threads * count / seconds(threads, work) / 1e9);
  return best;
}

double products(int threads, void (*work)(), int per_instruction) {
  if (!work) return 0;
  return rate(threads, 2.0 * kSteps * kChains * per_instruction, [=](int) { work(); });
}

// Sums words, which the compiler vectorizes, over far more memory than the last-level cache holds.
double read(int threads) {
  constexpr std::size_t kWords = std::size_t{24} << 20;  // per thread: 192 MB
  const std::vector<std::uint64_t> memory(kWords * static_cast<std::size_t>(threads), 1);
  const auto work = [&](int thread) {
    const std::uint64_t* at = memory.data() + kWords * static_cast<std::size_t>(thread);
    std::uint64_t sums[32] = {};
    for (std::size_t i = 0; i < kWords; i += 32) {
      __builtin_prefetch(at + i + 512);
      for (std::size_t k = 0; k < 32; ++k) sums[k] += at[i + k];
    }
    std::uint64_t total = 0;
    for (const std::uint64_t sum : sums) total += sum;
    sink = static_cast<float>(total);
  };
  return rate(threads, 8.0 * kWords, work);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : static_cast<int>(std::thread::hardware_concurrency());
  const bool wide = __builtin_cpu_supports("avx512f"), narrow = __builtin_cpu_supports("avx2");
  const double f32 = wide ? products(threads, f32_avx512, 16) : narrow ? products(threads, f32_avx2, 8) : 0;
  const double bf16 = __builtin_cpu_supports("avx512bf16") ? products(threads, bf16_avx512, 32) : 0;
  const double int8 = __builtin_cpu_supports("avx512vnni") ? products(threads, int8_avx512, 64)
                      : narrow                             ? products(threads, int8_avx2, 32)
                                                           : 0;
  std::printf("{\"gflops_f32\": %.1f, \"gflops_bf16\": %.1f, \"gops_int8\": %.1f, \"gb_read\": %.2f}\n", f32, bf16, int8,
              read(threads));
  return 0;
}
