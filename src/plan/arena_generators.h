#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "plan/arena.h"

// Seeded graphs for the tests of the arena planner: one seed gives the same lifetimes on every machine (the standard
// library's distributions do not, so numbers are drawn by modulus).
namespace graft::testing {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  // A number from `low` to `high`, both inclusive.
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// One buffer per launch, read by the next launch and sometimes by one up to 12 launches later: a network with skips.
inline std::vector<Lifetime> chain_with_skips(std::uint64_t seed) {
  Draw draw(seed);
  const std::int64_t launches = draw(2, 200);
  std::vector<Lifetime> buffers;
  for (std::int64_t launch = 0; launch < launches; ++launch) {
    const std::int64_t reach = draw(0, 3) == 0 ? draw(2, 12) : 1;
    buffers.push_back({draw(0, 15) == 0 ? 0 : draw(1, 4000) * (draw(0, 4) == 0 ? 64 : 1),
                       static_cast<std::int32_t>(launch),
                       static_cast<std::int32_t>(std::min(launch + reach, launches - 1))});
  }
  return buffers;
}

// The launches of an encoder or decoder of 1 to 12 layers in the sizes of known models: grouped heads, plain or gated
// feed-forward, kernels with scratch memory, a mask and position tables that live through all layers.
inline std::vector<Lifetime> transformer_like(std::uint64_t seed) {
  Draw draw(seed);
  const std::int64_t tokens = draw(1, 512);
  // hidden, heads, key and value heads, head size, inner: MiniLM, BERT base and large, GPT-2 medium, Qwen3 0.6B and
  // 1.7B, Llama 3.2 1B, Gemma 3 1B, SmolLM 135M, ViT tiny.
  static constexpr std::int64_t kSizes[][5] = {
      {384, 12, 12, 32, 1536},  {768, 12, 12, 64, 3072},  {1024, 16, 16, 64, 4096}, {1024, 16, 16, 64, 4096},
      {1024, 16, 8, 128, 3072}, {2048, 16, 8, 128, 6144}, {2048, 32, 8, 64, 8192},  {1152, 4, 1, 256, 6912},
      {576, 9, 3, 64, 1536},    {192, 3, 3, 64, 768}};
  const auto& [hidden, heads, shared_heads, head_size, inner] = kSizes[draw(0, 9)];
  const bool gated = draw(0, 1) == 0;
  const bool rotary = draw(0, 1) == 0;
  const bool fused_attention = draw(0, 1) == 0;
  std::vector<Lifetime> buffers;
  std::int32_t launch = 0;
  // A new tensor of that many floats, written by the next launch; each reader extends its life.
  const auto make = [&](std::int64_t floats, std::int64_t scratch = 0) {
    if (scratch > 0) buffers.push_back({scratch, launch, launch});
    buffers.push_back({floats * 4, launch, launch});
    ++launch;
    return buffers.size() - 1;
  };
  const auto read = [&](std::size_t buffer) { buffers[buffer].last = std::max(buffers[buffer].last, launch); };
  const auto apply = [&](std::initializer_list<std::size_t> inputs, std::int64_t floats, std::int64_t scratch = 0) {
    for (const std::size_t input : inputs) read(input);
    return make(floats, scratch);
  };

  const std::size_t mask = make(tokens * tokens);
  const std::size_t tables = make(2 * tokens * head_size);
  std::size_t stream = make(tokens * hidden);
  for (std::int64_t layer = draw(1, 12); layer > 0; --layer) {
    const std::size_t normed = apply({stream}, tokens * hidden);
    std::size_t query = apply({normed}, tokens * heads * head_size, 256);
    std::size_t key = apply({normed}, tokens * shared_heads * head_size, 256);
    const std::size_t value = apply({normed}, tokens * shared_heads * head_size, 256);
    if (rotary) {
      query = apply({query, tables}, tokens * heads * head_size);
      key = apply({key, tables}, tokens * shared_heads * head_size);
    }
    std::size_t context = 0;
    if (fused_attention) {
      context = apply({query, key, value, mask}, tokens * heads * head_size, 4096);
    } else {
      const std::size_t scores = apply({query, key}, heads * tokens * tokens);
      const std::size_t weights = apply({scores, mask}, heads * tokens * tokens);
      context = apply({weights, value}, tokens * heads * head_size);
    }
    const std::size_t attended = apply({context}, tokens * hidden, 256);
    stream = apply({stream, attended}, tokens * hidden);
    const std::size_t second = apply({stream}, tokens * hidden);
    std::size_t up = apply({second}, tokens * inner, 256);
    if (gated) {
      const std::size_t gate = apply({second}, tokens * inner, 256);
      up = apply({up, gate}, tokens * inner);
    } else {
      up = apply({up}, tokens * inner);
    }
    const std::size_t down = apply({up}, tokens * hidden, 256);
    stream = apply({stream, down}, tokens * hidden);
  }
  apply({stream}, tokens * hidden);
  return buffers;
}

// Any number of buffers with random sizes and lifetimes.
inline std::vector<Lifetime> random_intervals(std::uint64_t seed, std::int64_t most_buffers = 150) {
  Draw draw(seed);
  const std::int64_t launches = draw(1, 100);
  const std::int64_t longest = draw(1, launches);
  const std::int64_t largest = std::int64_t{1} << draw(4, 24);
  std::vector<Lifetime> buffers;
  for (std::int64_t left = draw(1, most_buffers); left > 0; --left) {
    const std::int64_t first = draw(0, launches - 1);
    const std::int64_t last = std::min(launches - 1, first + draw(0, longest - 1));
    buffers.push_back({draw(0, largest), static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)});
  }
  return buffers;
}

}  // namespace graft::testing
