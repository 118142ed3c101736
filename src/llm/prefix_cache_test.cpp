#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/test_errors.h"
#include "exec/test_allocations.h"
#include "llm/test_model.h"
#include "package/test_package.h"

// Keys and values of finished and running sequences serve later ones: the texts are those without them.
namespace graft {
namespace {

using test::SmallLanguageModel;
using test::some_ids;
using Ids = std::vector<std::int64_t>;
using Id = BatchGenerator::Id;

constexpr std::int64_t kContext = 600;

Ids joined(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  const SmallLanguageModel small{{}, 0.5, 1, kContext};
  const DecoderOptions decoder{.threads = 1, .rows = 2, .prefill_chunk_size = 64};
  const std::uint64_t block_bytes = PrefixCacheOptions::block_bytes(small.model, decoder);
  test::TemporaryFolder folder;
  const std::string file = (folder.path() / "prefixes").string();

  static GenerationOptions tokens(std::int64_t count) { return {.max_new_tokens = count}; }

  Ids alone(const Ids& prompt, const GenerationOptions& options) const {
    return TextGenerator(small.model, {.threads = 1}).generate(prompt, options).tokens;
  }
  // The text, which must be the one it has alone; how many tokens of the prompt were not computed.
  std::int64_t reused(BatchGenerator& batch, const Ids& prompt, std::uint64_t salt = 0, std::int64_t count = 10) {
    const Id id = batch.submit(prompt, tokens(count), {.cache_salt = salt});
    while (batch.step()) {
    }
    const std::int64_t reused = batch.state(id).reused_tokens;
    EXPECT_EQ(batch.take(id)->tokens, alone(prompt, tokens(count)));
    return reused;
  }
};

TEST_F(PrefixCacheTest, ASecondTurnComputesWhatIsNewInWhicheverRow) {
  BatchGenerator batch(small.model, decoder, {.max_bytes = 100 * block_bytes});
  const Ids first = some_ids(200, 1);
  EXPECT_EQ(reused(batch, first, 0, 70), 0);
  const Ids second = joined(joined(first, alone(first, tokens(70))), some_ids(30, 2));
  // Others take both rows.
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(reused(batch, some_ids(150, 10 + i)), 0);
  EXPECT_EQ(reused(batch, second), 256);  // of 269 tokens with keys and values
  EXPECT_EQ(batch.prefix_cache().restored, 4u);
  // Never the whole prompt: the logits of its last token are needed.
  EXPECT_EQ(reused(batch, Ids(first.begin(), first.begin() + 128)), 64 + 63);  // the row has them all
  for (unsigned i = 0; i < 2; ++i) reused(batch, some_ids(150, 20 + i));
  EXPECT_EQ(reused(batch, Ids(first.begin(), first.begin() + 128)), 64);
}

TEST_F(PrefixCacheTest, OfASequenceThatRuns) {
  BatchGenerator batch(small.model, decoder, {.max_bytes = 100 * block_bytes});
  const Ids system = some_ids(130, 1);
  const Ids first = joined(system, some_ids(20, 2)), second = joined(system, some_ids(25, 3));
  const Id a = batch.submit(first, tokens(200));
  for (int i = 0; i < 10; ++i) batch.step();
  const Id b = batch.submit(second, tokens(20));
  while (batch.step()) {
  }
  EXPECT_EQ(batch.state(b).reused_tokens, 128);
  EXPECT_EQ(batch.take(a)->tokens, alone(first, tokens(200)));
  EXPECT_EQ(batch.take(b)->tokens, alone(second, tokens(20)));
}

TEST_F(PrefixCacheTest, OnlyOfTheSameSalt) {
  BatchGenerator batch(small.model, decoder, {.max_bytes = 100 * block_bytes});
  const Ids prompt = some_ids(200, 1);
  EXPECT_EQ(reused(batch, prompt, 7), 0);
  for (unsigned i = 0; i < 2; ++i) reused(batch, some_ids(100, 10 + i));
  EXPECT_EQ(reused(batch, prompt, 8), 0);
  for (unsigned i = 0; i < 2; ++i) reused(batch, some_ids(100, 20 + i));
  EXPECT_EQ(reused(batch, prompt, 7), 192);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedBlockThatNoneContinuesMakesRoom) {
  BatchGenerator batch(small.model, {.threads = 1, .rows = 1}, {.max_bytes = 4 * block_bytes});
  const Ids a = some_ids(130, 1), b = some_ids(130, 2), c = some_ids(130, 3);
  EXPECT_EQ(reused(batch, a), 0);
  EXPECT_EQ(reused(batch, b), 0);
  EXPECT_EQ(reused(batch, a), 128);
  EXPECT_EQ(reused(batch, c), 0);  // at the expense of b
  EXPECT_EQ(batch.prefix_cache().evicted, 2u);
  EXPECT_EQ(reused(batch, a), 128);
  EXPECT_EQ(reused(batch, b), 0);
  EXPECT_EQ(batch.prefix_cache().blocks, 4u);
  // Longer than there is room: its first blocks stay.
  const Ids all = some_ids(400, 4);
  EXPECT_EQ(reused(batch, all), 0);
  reused(batch, some_ids(10, 5));
  EXPECT_EQ(reused(batch, all), 256);
}

// Chats that branch, at random, in a cache that is too small for them and in a file that is opened again and again.
TEST_F(PrefixCacheTest, TextsAreThoseWithoutIt) {
  for (const bool in_file : {false, true})
    for (const std::uint64_t blocks : {3, 10, 60}) {
      std::filesystem::remove(file);
      const PrefixCacheOptions options{blocks * block_bytes, in_file ? file : ""};
      std::optional<BatchGenerator> batch;
      std::mt19937 rng(static_cast<unsigned>(blocks));
      std::vector<Ids> chats = {some_ids(70, 1)};
      std::int64_t all = 0;
      for (int turn = 0; turn < 40; ++turn) {
        if (!batch || turn % 13 == 0) {
          batch.reset();
          batch.emplace(small.model, decoder, options);
        }
        const Ids& from = chats[rng() % chats.size()];
        const std::size_t keep = 1 + rng() % from.size();
        Ids prompt = joined(Ids(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(keep)),
                            some_ids(1 + rng() % 90, static_cast<unsigned>(turn)));
        if (prompt.size() > 500) prompt.resize(500);
        all += reused(*batch, prompt, rng() % 2);
        chats.push_back(prompt);
        const PrefixCacheStats stats = batch->prefix_cache();
        EXPECT_LE(stats.blocks, blocks);
        EXPECT_EQ(stats.damaged, 0u);
      }
      EXPECT_GT(all, 0);
    }
}

TEST_F(PrefixCacheTest, AFileServesTheNextProcess) {
  const Ids prompt = some_ids(200, 1);
  const PrefixCacheOptions options{50 * block_bytes, file};
  {
    BatchGenerator batch(small.model, decoder, options);
    EXPECT_EQ(reused(batch, prompt), 0);
    test::expect_error<Busy>([&] { BatchGenerator(small.model, decoder, options); }, "another process has");
  }
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  {
    BatchGenerator batch(small.model, decoder, options);
    EXPECT_EQ(batch.prefix_cache().blocks, 3u);
    EXPECT_EQ(reused(batch, prompt), 192);
  }
  // Another model, another type of keys and values, another size: empty.
  const SmallLanguageModel other({}, 0.5, 2, kContext);
  EXPECT_EQ(BatchGenerator(other.model, decoder, options).prefix_cache().blocks, 0u);
  reused(*std::make_unique<BatchGenerator>(small.model, decoder, options), prompt);
  EXPECT_EQ(BatchGenerator(small.model, decoder, {60 * block_bytes, file}).prefix_cache().blocks, 0u);
  reused(*std::make_unique<BatchGenerator>(small.model, decoder, options), prompt);
  DecoderOptions halves = decoder;
  halves.kv_type = KvType::f16;
  EXPECT_EQ(BatchGenerator(small.model, halves, options).prefix_cache().blocks, 0u);
}

// Any byte of the blocks: texts are right, whatever the file holds.
TEST_F(PrefixCacheTest, WhatIsDamagedIsNotUsed) {
  const Ids prompt = some_ids(200, 1);
  const PrefixCacheOptions options{3 * block_bytes, file};
  { EXPECT_EQ(reused(*std::make_unique<BatchGenerator>(small.model, decoder, options), prompt), 0); }
  std::string whole;
  {
    std::ifstream in(file, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::mt19937 rng(3);
  std::uint64_t damaged = 0;
  for (int i = 0; i < 60; ++i) {
    std::string bytes = whole;
    const bool entry = i % 2 == 0;
    const std::size_t at = entry ? 4096 + rng() % (3 * 288) : 8192 + rng() % (whole.size() - 8192);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng() % 8));
    std::ofstream(file, std::ios::binary) << bytes;
    BatchGenerator batch(small.model, decoder, options);
    const std::int64_t first = reused(batch, prompt);
    EXPECT_LT(first, 192) << "byte " << at;
    damaged += batch.prefix_cache().damaged;
    // It was computed again, and is kept again.
    for (unsigned other = 0; other < 2; ++other) reused(batch, some_ids(10, other));
    EXPECT_EQ(reused(batch, prompt), 192) << "byte " << at;
  }
  EXPECT_GT(damaged, 30u);
  std::filesystem::resize_file(file, whole.size() - 1);
  EXPECT_EQ(BatchGenerator(small.model, decoder, options).prefix_cache().blocks, 0u);
}

TEST_F(PrefixCacheTest, WhatCannotBeOpened) {
  std::ofstream(file) << "something of the user's";
  test::expect_error<InvalidArgument>(
      [&] {
        BatchGenerator(small.model, decoder, {9 * block_bytes, file});
      },
      "is something else than a prefix cache; it stays as it is");
  EXPECT_EQ(std::filesystem::file_size(file), 23u);
  test::expect_error<SystemError>(
      [&] {
        BatchGenerator(small.model, decoder, {9 * block_bytes, file + "/none"});
      },
      "cannot open the prefix cache");
  test::expect_error<InvalidArgument>(
      [&] {
        BatchGenerator(small.model, decoder, {9 * block_bytes, "/dev/null"});
      },
      "not a regular file");
  test::expect_error<InvalidArgument>([&] { BatchGenerator(small.model, decoder, {block_bytes - 1}); },
                                      "has no room for a block of 64 tokens");
}

// As where the disk is full.
TEST_F(PrefixCacheTest, AFileThatCannotGrowEndsTheKeepingAlone) {
  const Ids prompt = some_ids(200, 1);
  BatchGenerator batch(small.model, decoder, {50 * block_bytes, file});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small_files = before;
  small_files.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small_files), 0);
  EXPECT_EQ(reused(batch, prompt), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(batch.prefix_cache().error, ::testing::HasSubstr("cannot write the prefix cache"));
  EXPECT_EQ(batch.prefix_cache().blocks, 0u);
  for (unsigned i = 0; i < 2; ++i) reused(batch, some_ids(100, 10 + i));
  EXPECT_EQ(reused(batch, prompt), 0);
}

TEST_F(PrefixCacheTest, AStepAllocatesNothingOfOurs) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "a sanitizer owns malloc";
  BatchGenerator batch(small.model, decoder, {.max_bytes = 2 * block_bytes});
  batch.prepare();
  batch.submit(some_ids(300, 1), tokens(200));
  batch.submit(some_ids(20, 2), tokens(300));
  for (int i = 0; i < 3; ++i) batch.step();
  test::begin_counting_allocations();
  for (int i = 0; i < 150; ++i) batch.step();
  // ggml makes two small allocations in each run, of which a step has up to two; graft makes none.
  EXPECT_LE(test::end_counting_allocations(), 150 * 2 * 2);
  EXPECT_GT(batch.prefix_cache().stored, 2u);
}

}  // namespace
}  // namespace graft
