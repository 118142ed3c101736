#include "kernel/random/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace graft {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

namespace {

using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using Block = std::array<u32, 4>;

// The random numbers of one launch.
class Stream {
 public:
  explicit Stream(const KernelContext& ctx)
      : key0_(static_cast<u32>(ctx.random.seed)), key1_(static_cast<u32>(ctx.random.seed >> 32)) {
    u64 hash = 0xCBF29CE484222325u;  // FNV-1a of the node's name
    for (const char c : ctx.node) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    node_ = static_cast<u32>(hash ^ (hash >> 32)) + static_cast<u32>(ctx.random.run >> 32) * 0x9E3779B9u;
    run_ = static_cast<u32>(ctx.random.run);
  }

  Block block(i64 index) const {
    return philox({static_cast<u32>(index), static_cast<u32>(static_cast<u64>(index) >> 32), node_, run_}, key0_,
                  key1_);
  }
  // The 64-bit number at that index.
  u64 wide(i64 index) const {
    const Block b = block(index / 2);
    const std::size_t at = index % 2 == 0 ? 0 : 2;
    return u64{b[at]} << 32 | b[at + 1];
  }

 private:
  u32 key0_, key1_, node_, run_;
};

double uniform(u64 bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

void fill_uniform(const KernelContext& ctx, const Stream& stream, int digits) {
  const auto [begin, end] = ctx.range(ctx.out().numel());
  if (ctx.out().dtype == DType::f64) {
    for (i64 i = begin; i < end; ++i) ctx.output<double>()[i] = uniform(stream.wide(i));
    return;
  }
  const float unit = std::ldexp(1.0f, -digits);
  for (i64 i = begin; i < end;) {
    const Block block = stream.block(i / 4);
    for (const i64 next = std::min(end, i / 4 * 4 + 4); i < next; ++i)
      ctx.output<float>()[i] = static_cast<float>(block[static_cast<std::size_t>(i % 4)] >> (32 - digits)) * unit;
  }
}

// In pairs (Box and Muller).
template <typename T>
void fill_normal(const KernelContext& ctx, const Stream& stream) {
  const auto [begin, end] = ctx.range(ctx.out().numel());
  for (i64 i = begin; i < end;) {
    const i64 pair = i / 2;
    const double radius = std::sqrt(-2 * std::log1p(-uniform(stream.wide(2 * pair))));
    const double angle = 2 * std::numbers::pi * uniform(stream.wide(2 * pair + 1));
    for (const i64 next = std::min(end, 2 * pair + 2); i < next; ++i)
      ctx.output<T>()[i] = static_cast<T>(radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
  }
}

void fill_integers(const KernelContext& ctx, const Stream& stream, const RandomAttrs& attrs) {
  const auto [begin, end] = ctx.range(ctx.out().numel());
  for (i64 i = begin; i < end; ++i) {
    const u64 bits = stream.wide(i);
    ctx.output<i64>()[i] =
        static_cast<i64>(static_cast<u64>(attrs.low) + (attrs.range == 0 ? bits : bits % attrs.range));
  }
}

// Fisher-Yates shuffle; each step depends on the one before.
void fill_order(const KernelContext& ctx, const Stream& stream) {
  if (ctx.task != 0) return;
  i64* const out = ctx.output<i64>();
  const i64 n = ctx.out().numel();
  for (i64 i = 0; i < n; ++i) {
    const auto j = static_cast<i64>(stream.wide(i) % static_cast<u64>(i + 1));
    out[i] = out[j];
    out[j] = i;
  }
}

void random(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<RandomAttrs>();
  const Stream stream(ctx);
  switch (attrs.draw) {
    case Draw::uniform:
      return fill_uniform(ctx, stream, attrs.digits);
    case Draw::normal:
      return ctx.out().dtype == DType::f64 ? fill_normal<double>(ctx, stream) : fill_normal<float>(ctx, stream);
    case Draw::integers:
      return fill_integers(ctx, stream, attrs);
    case Draw::order:
      return fill_order(ctx, stream);
  }
}

}  // namespace

const Kernel kRandom{"random", random, 2048};

}  // namespace graft
