#define GRAFT_ISA test_reference
#include "kernel/attention/cached_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernel/simd/simd_test_util.h"

// Attention over a cache against a reference in double that follows the definition.
namespace graft {
namespace {

using i64 = std::int64_t;

struct Case {
  i64 heads = 4, shared = 2, tokens = 1, d = 32, dv = 32;
  std::vector<i64> past = {7, 0};  // tokens of each row in the cache before; its size is the batch
  std::vector<i64> padding = {0, 0};
  i64 window = 0, chunk = 0;
  float softcap = 0;
  bool sinks = false;
  i64 block = 0;  // tokens of a block; the first and the last of the run have none
  bool whole_blocks = false;
  simd::RowType type = simd::RowType::f32;
};

struct Tensors {
  std::vector<float> q, k, v, key_cache, value_cache, out, sinks;
  std::vector<i64> position;
};

DType cache_dtype(simd::RowType type) {
  return type == simd::RowType::f32    ? DType::f32
         : type == simd::RowType::f16  ? DType::f16
         : type == simd::RowType::bf16 ? DType::bf16
                                       : DType::u8;
}

// Reads back a stored row as f32.
std::vector<float> read_row(const std::byte* p, simd::RowType type, i64 n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (i64 i = 0; i < n; ++i) {
    std::uint16_t h = 0;
    if (type == simd::RowType::f32) {
      std::memcpy(&out[static_cast<std::size_t>(i)], p + 4 * i, 4);
    } else if (type == simd::RowType::q4_0) {
      std::memcpy(&h, p + i / 32 * 18, 2);
      const int both = static_cast<int>(p[i / 32 * 18 + 2 + i % 16]);
      out[static_cast<std::size_t>(i)] =
          simd::GRAFT_ISA::f16_to_float(h) * static_cast<float>((i % 32 < 16 ? both & 15 : both >> 4) - 8);
    } else if (type == simd::RowType::q8_0) {
      std::memcpy(&h, p + i / 32 * 34, 2);
      out[static_cast<std::size_t>(i)] =
          simd::GRAFT_ISA::f16_to_float(h) * static_cast<float>(static_cast<signed char>(p[i / 32 * 34 + 2 + i % 32]));
    } else {
      std::memcpy(&h, p + 2 * i, 2);
      out[static_cast<std::size_t>(i)] =
          type == simd::RowType::f16 ? simd::GRAFT_ISA::f16_to_float(h) : simd::GRAFT_ISA::bf16_to_float(h);
    }
  }
  return out;
}

void check(const Case& c, const simd::AttentionTable& table, int threads) {
  // How queries are multiplied.
  enum class Products { exact, bf16, bytes };
  const bool blocks_of_bytes = simd::row_elements(c.type) > 1;
  const bool few = (c.tokens == 1 ? c.heads / c.shared : c.tokens) <= 8;
  const auto products = few ? (table.bytes && blocks_of_bytes ? Products::bytes : Products::exact)
                        : table.bf16 && (blocks_of_bytes || c.type == simd::RowType::bf16) ? Products::bf16
                                                                                           : Products::exact;
  // Values are at most 2. In bf16, queries and keys are rounded here too, values and weights are off by at most 2^-8.
  // As bytes, queries are rounded to 2^-15 of the largest: scores are off by 2e-5 on average.
  const double unit = products == Products::exact ? 4e-6 : products == Products::bytes ? 2e-4 : 0x1p-7;
  SCOPED_TRACE(testing::Message() << (table.bf16 ? "bf16" : "f32") << " block " << table.block << " threads " << threads
                                  << " tokens " << c.tokens << " past " << c.past[0] << " window " << c.window
                                  << " chunk " << c.chunk << " softcap " << c.softcap << " sinks " << c.sinks
                                  << " block " << c.block << " whole " << c.whole_blocks << " type "
                                  << static_cast<int>(c.type) << " d " << c.d << " dv " << c.dv);
  std::mt19937 rng(static_cast<unsigned>(c.tokens * 31 + c.past[0]));
  const auto batch = static_cast<i64>(c.past.size());
  constexpr i64 slots = 256;
  // Strides as a projection leaves them: [B, T, H, D] seen as [B, H, T, D].
  const auto heads_of = [&](i64 heads, i64 size) {
    TensorDesc desc(DType::f32, Shape{batch, heads, c.tokens, size});
    desc.strides = {c.tokens * heads * size, size, heads * size, 1};
    return desc;
  };
  TestTensor q(heads_of(c.heads, c.d), batch * c.heads * c.tokens * c.d);
  TestTensor k(heads_of(c.shared, c.d), batch * c.shared * c.tokens * c.d);
  TestTensor v(heads_of(c.shared, c.dv), batch * c.shared * c.tokens * c.dv);
  TestTensor sinks(TensorDesc(DType::f32, Shape{c.heads}));
  TestTensor out(TensorDesc(DType::f32, Shape{batch, c.tokens, c.heads, c.dv}));
  for (TestTensor* t : {&q, &k, &v, &sinks}) t->fill(rng, -2, 2);
  std::vector<i64> position(static_cast<std::size_t>(batch * c.tokens));
  for (i64 b = 0; b < batch; ++b)
    for (i64 t = 0; t < c.tokens; ++t) {
      const i64 pad = c.padding[static_cast<std::size_t>(b)];
      position[static_cast<std::size_t>(b * c.tokens + t)] =
          t < pad ? -1 : c.past[static_cast<std::size_t>(b)] + t - pad;
    }
  std::vector<i64> blocks;  // [batch, tokens, 2]
  for (i64 b = 0; b < batch; ++b)
    for (i64 t = 0; t < c.tokens; ++t) {
      const i64 first = c.padding[static_cast<std::size_t>(b)] + 1,
                p = position[static_cast<std::size_t>(b * c.tokens + t)];
      const bool inside = c.block > 0 && t >= first && t + 1 < c.tokens;
      const i64 begin = inside ? (t - first) / c.block * c.block + first : t;
      const i64 last = inside ? std::min(begin + c.block, c.tokens - 1) - 1 : t;
      blocks.insert(blocks.end(), {p + begin - t, p + last - t});
    }
  const DType stored = cache_dtype(c.type);
  const auto cache_desc = [&](i64 size) {
    const i64 elements = stored == DType::u8 ? simd::row_bytes(c.type, size) : size;
    return TensorDesc(stored, Shape{batch + 1, c.shared, slots, elements});  // one row more than the batch
  };
  std::vector<std::byte> key_cache(cache_desc(c.d).byte_count()), value_cache(cache_desc(c.dv).byte_count());
  const auto row_of = [&](std::vector<std::byte>& cache, i64 size, i64 b, i64 h, i64 slot) {
    return cache.data() + ((b * c.shared + h) * slots + slot) * row_bytes(c.type, size);
  };
  std::uniform_real_distribution<float> values(-2, 2);
  std::vector<float> row(512);
  for (i64 b = 0; b < batch; ++b)
    for (i64 h = 0; h < c.shared; ++h)
      for (i64 s = 0; s < slots; ++s) {
        // Slots beyond the row's length must not be read: NaN where the type has one.
        const bool held = s < c.past[static_cast<std::size_t>(b)];
        for (float& x : row) x = held ? values(rng) : simd::row_elements(c.type) > 1 ? 1e4f : std::nanf("");
        table.store_row(row.data(), DType::f32, c.d, c.type, row_of(key_cache, c.d, b, h, s));
        table.store_row(row.data() + 100, DType::f32, c.dv, c.type, row_of(value_cache, c.dv, b, h, s));
      }

  const float scale = 1.2f / std::sqrt(static_cast<float>(c.d));
  CachedAttentionAttrs attrs{scale, c.softcap, c.window, c.chunk, c.sinks};
  attrs.has_blocks = c.block > 0;
  attrs.whole_blocks = c.whole_blocks;
  std::vector<TensorDesc> in = {q.desc, k.desc, v.desc, TensorDesc(DType::i64, Shape{batch, c.tokens})};
  std::vector<const void*> in_data = {q.data(), k.data(), v.data(), position.data()};
  if (c.sinks) {
    in.push_back(sinks.desc);
    in_data.push_back(sinks.data());
  }
  if (c.block > 0) {
    in.emplace_back(DType::i64, Shape{batch, c.tokens, 2});
    in_data.push_back(blocks.data());
  }
  std::vector<TensorDesc> out_descs = {out.desc, cache_desc(c.d), cache_desc(c.dv)};
  std::vector<void*> out_data = {out.data(), key_cache.data(), value_cache.data()};
  ErrorSlot error;
  KernelContext ctx;
  ctx.tasks = threads;
  ctx.input_descs = in;
  ctx.output_descs = out_descs;
  ctx.inputs = in_data.data();
  ctx.outputs = out_data.data();
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  ctx.error = &error;
  // A single token is written by the task that reads its keys.
  const int phases = kCachedAttention.phases(ctx);
  EXPECT_EQ(phases, c.tokens == 1 && c.heads / c.shared <= 8 ? 1 : 2);
  run_phases(phases, ctx, [&](const KernelContext& mine) { run_cached_attention(mine, table); });
  ASSERT_FALSE(error.failed());
  EXPECT_TRUE(out.guards_intact());

  int wrong = 0;
  for (i64 b = 0; b < batch; ++b)
    for (i64 t = 0; t < c.tokens; ++t)
      for (i64 h = 0; h < c.heads; ++h) {
        const i64 p = position[static_cast<std::size_t>(b * c.tokens + t)], from = h / (c.heads / c.shared);
        const auto operand = [&](double x) {
          using namespace simd::GRAFT_ISA;  // NOLINT
          return products == Products::bf16 ? static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(x))))
                                            : x;
        };
        std::vector<double> want(static_cast<std::size_t>(c.dv), 0);
        double total = c.sinks && p >= 0 ? std::exp(sinks.get(h)) : 0;
        const i64* block = blocks.data() + (b * c.tokens + t) * 2;
        for (i64 s = 0; p >= 0 && s <= block[1]; ++s) {
          const bool hidden = (c.window > 0 && s <= p - c.window) || (c.chunk > 0 && s / c.chunk != p / c.chunk);
          if (hidden && !(c.whole_blocks && s >= block[0])) continue;
          const std::vector<float> key = read_row(row_of(key_cache, c.d, b, from, s), c.type, c.d);
          const std::vector<float> value = read_row(row_of(value_cache, c.dv, b, from, s), c.type, c.dv);
          double x = 0;
          for (i64 i = 0; i < c.d; ++i) {
            const double query = q.get(b * q.desc.strides[0] + h * q.desc.strides[1] + t * q.desc.strides[2] + i);
            x += operand(query) * operand(static_cast<double>(key[static_cast<std::size_t>(i)]));
          }
          x *= static_cast<double>(scale);
          if (c.softcap != 0) x = static_cast<double>(c.softcap) * std::tanh(x / static_cast<double>(c.softcap));
          total += std::exp(x);
          for (i64 i = 0; i < c.dv; ++i)
            want[static_cast<std::size_t>(i)] += std::exp(x) * static_cast<double>(value[static_cast<std::size_t>(i)]);
        }
        for (i64 i = 0; i < c.dv; ++i) {
          const double expected = total == 0 ? 0 : want[static_cast<std::size_t>(i)] / total;
          const double got = out.get(((b * c.tokens + t) * c.heads + h) * c.dv + i);
          if (!(std::fabs(got - expected) <= unit * (1 + std::fabs(expected))) && ++wrong < 4)
            ADD_FAILURE() << "row " << b << ", token " << t << ", head " << h << ", element " << i << ": got " << got
                          << ", expected " << expected;
        }
      }
  EXPECT_EQ(wrong, 0);
  // The new tokens are in the cache.
  for (i64 b = 0; b < batch; ++b)
    for (i64 t = 0; t < c.tokens; ++t) {
      const i64 p = position[static_cast<std::size_t>(b * c.tokens + t)];
      if (p < 0) continue;
      const std::vector<float> key = read_row(row_of(key_cache, c.d, b, 1, p), c.type, c.d);
      const double given = k.get(b * k.desc.strides[0] + k.desc.strides[1] + t * k.desc.strides[2]);
      const double step = c.type == simd::RowType::f32 ? 0 : c.type == simd::RowType::q4_0 ? 0.26 : 0.02;
      EXPECT_NEAR(static_cast<double>(key[0]), given, step);
    }
}

void check_everywhere(const Case& c) {
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>()) {
    check(c, simd::attention(isa), 1);
    check(c, simd::attention(isa), 3);
  }
}

TEST(CachedAttention, TokensAndPasts) {
  for (const i64 tokens : {1, 2, 8, 9, 33, 70}) {
    for (const i64 past : {0, 1, 47, 48, 75}) check_everywhere({.tokens = tokens, .past = {past, 3}});
  }
}

TEST(CachedAttention, WindowsAndChunks) {
  for (const i64 tokens : {1, 5, 40}) {
    for (const i64 size : {1, 4, 33, 200}) {
      for (const i64 past : {0, 50, 100}) {
        check_everywhere({.tokens = tokens, .past = {past, 2}, .window = size});
        check_everywhere({.tokens = tokens, .past = {past, 2}, .chunk = size});
      }
    }
  }
}

// Tokens of a block see each other; the window hides some of them, but for whole blocks.
TEST(CachedAttention, Blocks) {
  for (const auto type : {simd::RowType::f32, simd::RowType::bf16}) {
    for (const i64 tokens : {1, 2, 8, 33, 70}) {
      for (const i64 block : {3, 16, 200}) {
        for (const i64 window : {0, 9, 50})
          for (const bool whole : {false, true})
            check_everywhere({.tokens = tokens,
                              .past = {window + 2, 0},
                              .padding = {0, tokens / 3},
                              .window = window,
                              .sinks = block == 3,
                              .block = block,
                              .whole_blocks = whole,
                              .type = type});
      }
    }
  }
  check_everywhere({.tokens = 9, .past = {5, 10}, .padding = {9, 1}, .window = 3, .block = 4, .whole_blocks = true});
}

TEST(CachedAttention, SoftcapAndSinks) {
  for (const i64 tokens : {1, 5, 40}) {
    check_everywhere({.tokens = tokens, .past = {60, 0}, .softcap = 0.7f});
    check_everywhere({.tokens = tokens, .past = {60, 0}, .sinks = true});
    check_everywhere({.tokens = tokens, .past = {60, 0}, .window = 9, .softcap = 2, .sinks = true});
  }
}

TEST(CachedAttention, PaddingIsNotWrittenAndGivesZeros) {
  for (const i64 tokens : {4, 40}) {
    check_everywhere({.tokens = tokens, .past = {0, 10}, .padding = {3, 2}});
    check_everywhere({.tokens = tokens, .past = {5, 10}, .padding = {tokens, 1}, .sinks = true});
    check_everywhere({.tokens = tokens, .past = {0, 90}, .padding = {1, 2}, .window = 3});
  }
  check_everywhere({.tokens = 1, .past = {5, 10}, .padding = {1, 0}});
}

TEST(CachedAttention, TypesOfTheCache) {
  for (const auto type : {simd::RowType::f16, simd::RowType::bf16, simd::RowType::q8_0, simd::RowType::q4_0}) {
    for (const i64 tokens : {1, 7, 40}) check_everywhere({.tokens = tokens, .past = {100, 3}, .type = type});
    check_everywhere({.tokens = 3, .d = 128, .dv = 96, .past = {100, 3}, .type = type});
  }
}

TEST(CachedAttention, Bf16AroundTheBordersOfTiles) {
  const auto type = simd::RowType::bf16;
  for (const i64 tokens : {8, 9, 15, 16, 17, 31, 32, 33, 65})
    for (const i64 past : {0, 1, 2, 3, 14, 15, 16, 47})
      check_everywhere({.tokens = tokens, .past = {past}, .padding = {0}, .type = type});
  for (const i64 d : {1, 2, 6, 34, 128})
    for (const i64 dv : {1, 2, 11, 12, 13, 31, 32, 33, 96})
      check_everywhere({.tokens = 17, .d = d, .dv = dv, .past = {50}, .padding = {0}, .type = type});
  check_everywhere({.tokens = 40, .past = {60, 0}, .softcap = 0.7f, .sinks = true, .type = type});
  check_everywhere({.tokens = 40, .past = {60, 0}, .window = 9, .type = type});
  check_everywhere({.tokens = 40, .past = {60, 0}, .padding = {3, 40}, .chunk = 7, .type = type});
}

// Heads that are whole panels: decoding reads keys and values in place, several queries and panels at a time.
TEST(CachedAttention, FewQueriesOfWholePanels) {
  for (const auto type : {simd::RowType::f32, simd::RowType::f16, simd::RowType::bf16}) {
    for (const i64 group : {1, 2, 3, 4, 5, 7, 8})
      check_everywhere(
          {.heads = 2 * group, .shared = 2, .tokens = 1, .d = 64, .dv = 64, .past = {97, 3}, .type = type});
    for (const i64 d : {8, 16, 32, 96, 128, 512})
      for (const i64 dv : {8, 32, 48, 160})
        for (const i64 tokens : {1, 3})
          check_everywhere({.tokens = tokens, .d = d, .dv = dv, .past = {50}, .padding = {0}, .type = type});
    for (const i64 past : {0, 1, 2, 3, 4, 94, 95, 96, 97, 192, 200})
      check_everywhere({.tokens = 1, .d = 128, .dv = 128, .past = {past}, .padding = {0}, .type = type});
    check_everywhere({.tokens = 5, .d = 64, .dv = 64, .past = {150, 0}, .window = 99, .sinks = true, .type = type});
  }
}

// Rows in blocks: groups of four keys and their rest, blocks of keys, and all numbers of queries and of blocks of a
// row.
TEST(CachedAttention, FewQueriesOfBlocks) {
  for (const auto type : {simd::RowType::q8_0, simd::RowType::q4_0}) {
    for (const i64 group : {1, 2, 3, 4, 5, 6, 7, 8, 9})
      check_everywhere(
          {.heads = 2 * group, .shared = 2, .tokens = 1, .d = 64, .dv = 64, .past = {97, 3}, .type = type});
    for (const i64 d : {32, 64, 96, 128, 160, 512})
      for (const i64 dv : {32, 64, 96, 128, 160, 384})
        for (const i64 tokens : {1, 3, 9})
          check_everywhere({.tokens = tokens, .d = d, .dv = dv, .past = {50}, .padding = {0}, .type = type});
    for (i64 past = 0; past < 22; ++past)
      check_everywhere({.tokens = 1, .d = 128, .dv = 128, .past = {past}, .padding = {0}, .type = type});
    for (i64 past = 88; past < 108; ++past)
      check_everywhere({.tokens = 1, .d = 64, .dv = 32, .past = {past, 191}, .type = type});
    for (const i64 window : {1, 3, 50, 97, 99})
      check_everywhere(
          {.tokens = 5, .d = 64, .dv = 64, .past = {150, 0}, .window = window, .sinks = true, .type = type});
    check_everywhere({.tokens = 5, .past = {100, 3}, .padding = {2, 0}, .chunk = 7, .softcap = 0.7f, .type = type});
  }
}

// A query that is no number gives none, also where it is rounded; the other query of the call is as without it.
TEST(CachedAttention, QueriesThatAreNoNumbers) {
  constexpr i64 kSize = 64, kKeys = 9;
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>())
    for (const auto type : {simd::RowType::f32, simd::RowType::bf16, simd::RowType::q8_0, simd::RowType::q4_0}) {
      SCOPED_TRACE(testing::Message() << simd::name(isa) << " type " << static_cast<int>(type));
      const simd::AttentionTable& table = simd::attention(isa);
      std::mt19937 rng(1);
      std::uniform_real_distribution<float> values(-2, 2);
      std::vector<float> q(2 * kSize), row(kSize), out(2 * kSize), expected(2 * kSize);
      std::vector<std::byte> rows(static_cast<std::size_t>(kKeys * simd::row_bytes(type, kSize)));
      for (i64 s = 0; s < kKeys; ++s) {
        for (float& x : row) x = values(rng);
        table.store_row(row.data(), DType::f32, kSize, type, rows.data() + s * simd::row_bytes(type, kSize));
      }
      for (float& x : q) x = values(rng);
      simd::AttentionHead head;
      head.t = 2;
      head.s = kKeys;
      head.d = head.dv = head.q_row = head.k_row = head.v_row = head.out_row = kSize;
      head.kv = type;
      head.q = q.data();
      head.k = head.v = rows.data();
      head.out = expected.data();
      table.run(head, 0, 2);
      head.out = out.data();
      for (const float odd : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        q[3] = odd;
        table.run(head, 0, 2);
        for (std::size_t i = 0; i < kSize; ++i) {
          EXPECT_FALSE(std::isfinite(out[i]));
          EXPECT_EQ(out[kSize + i], expected[kSize + i]);
        }
      }
    }
}

TEST(CachedAttention, HeadsOfAnySizeAndGroup) {
  for (const i64 tokens : {1, 12}) {
    check_everywhere({.heads = 3, .shared = 3, .tokens = tokens, .d = 20, .dv = 7});
    check_everywhere({.heads = 20, .shared = 2, .tokens = tokens, .d = 80, .dv = 80});
    check_everywhere({.heads = 2, .shared = 2, .tokens = tokens, .d = 256, .dv = 128});
    check_everywhere({.heads = 66, .shared = 2, .tokens = tokens, .d = 16, .dv = 16});
  }
}

}  // namespace
}  // namespace graft
