#include "graft/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/test_errors.h"
#include "exec/test_allocations.h"
#include "llm/test_model.h"

namespace graft {
namespace {

using Ids = std::vector<std::int64_t>;
using Tokens = Decoder::Tokens;
using test::expect_error;
using test::some_ids;

constexpr std::int64_t kSize = test::SmallLanguageModel::kSize, kVocabulary = test::SmallLanguageModel::kVocabulary;

struct AdaptableModel : test::SmallLanguageModel {
  explicit AdaptableModel(std::int64_t rank = 16) : SmallLanguageModel({}, 0.5, 1, kContext, rank) {}

  const std::shared_ptr<const Program>& program() const { return model->program(); }
};

// Of the one linear layer, A [rank, kSize] and B [kVocabulary, rank].
struct Numbers {
  std::vector<float> a, b;
  std::int64_t rank;

  explicit Numbers(std::int64_t of_rank = 3, unsigned seed = 7)
      : a(static_cast<std::size_t>(of_rank * kSize)),
        b(static_cast<std::size_t>(of_rank * kVocabulary)),
        rank(of_rank) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    for (std::vector<float>* matrix : {&a, &b})
      for (float& value : *matrix) value = values(rng);
  }

  AdapterLayer layer(double scale = 1) {
    return {"head", {a.data(), DType::f32, {rank, kSize}}, {b.data(), DType::f32, {kVocabulary, rank}}, scale};
  }
  std::shared_ptr<const Adapter> of(const AdaptableModel& model, double scale = 1) {
    const AdapterLayer only = layer(scale);
    return Adapter::of(model.program(), {&only, 1});
  }
};

std::vector<float> logits(Decoder& decoder, const std::vector<Ids>& rows, std::span<const Adapter* const> adapters) {
  std::vector<Tokens> feeds(rows.begin(), rows.end());
  std::size_t width = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    decoder.truncate(r, 0);
    width = std::max(width, rows[r].size());
  }
  RunOptions options;
  options.adapters = adapters;
  const auto found = decoder.run(feeds, static_cast<std::int64_t>(width), 1, options);
  return {found.begin(), found.end()};
}

TEST(Adapter, AddsItsProduct) {
  AdaptableModel model;
  EXPECT_EQ(adapter_modules(*model.program()), std::vector<std::string>{"head"});
  // With A = 1 and B twice the layer's own weight the logits are three times as large.
  Numbers numbers(kSize);
  for (std::int64_t i = 0; i < kSize * kSize; ++i) numbers.a[static_cast<std::size_t>(i)] = i % (kSize + 1) == 0;
  Decoder decoder(model.model, {.threads = 1, .rows = 3});
  const Ids ids = some_ids(5, 1);
  std::vector<float> weight;  // found by adapters that each change one number
  const std::vector<float> plain = logits(decoder, {ids}, {});
  std::ranges::fill(numbers.b, 0.f);
  const auto nothing = numbers.of(model);
  const Adapter* chosen[] = {nothing.get()};
  EXPECT_EQ(logits(decoder, {ids}, chosen), plain);
  for (std::size_t i = 0; i < numbers.b.size(); ++i) numbers.b[i] = static_cast<float>(i % 7) / 8;
  const auto once = numbers.of(model), twice = numbers.of(model, 2);
  chosen[0] = once.get();
  const std::vector<float> one = logits(decoder, {ids}, chosen);
  chosen[0] = twice.get();
  const std::vector<float> two = logits(decoder, {ids}, chosen);
  for (std::size_t j = 0; j < plain.size(); ++j) EXPECT_NEAR(two[j] - plain[j], 2 * (one[j] - plain[j]), 1e-5);
  EXPECT_NE(one, plain);
  // Rows of a batch, padding included, have their own.
  const Adapter* rows[] = {twice.get(), nullptr, once.get()};
  const std::vector<float> all = logits(decoder, {ids, ids, ids}, rows);
  const std::vector<float> expected[] = {two, plain, one};
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t j = 0; j < plain.size(); ++j) EXPECT_NEAR(all[r * plain.size() + j], expected[r][j], 1e-6) << r;
}

TEST(Adapter, SwapsMakeNoPlanAndAllocateNothing) {
  AdaptableModel model;
  Numbers first(3, 1), second(5, 2);
  auto one = first.of(model), other = second.of(model);
  Decoder decoder(model.model, {.threads = 1, .rows = 2});
  const Ids ids = {3};
  const std::vector<Tokens> feeds = {ids, ids};
  const auto run = [&](std::span<const Adapter* const> adapters) {
    RunOptions options;
    options.adapters = adapters;
    decoder.truncate(0, 0), decoder.truncate(1, 0);
    decoder.run(feeds, 1, 1, options);
  };
  const Adapter* rows[][2] = {
      {one.get(), nullptr}, {other.get(), one.get()}, {nullptr, nullptr}, {other.get(), other.get()}};
  for (const auto& row : rows) run(row);
  run({});
  const Counters before = decoder.session().counters();
  const std::uint64_t plans = model.program()->stats().plans_made;
  const auto third = second.of(model, 3);  // loaded meanwhile
  rows[2][1] = third.get();
  test::begin_counting_allocations();
  for (int i = 0; i < 50; ++i) {
    for (const auto& row : rows) run(row);
    run({});
  }
  const long allocations = test::end_counting_allocations();
  if (test::kCountsAllocations) {
    EXPECT_EQ(allocations, 0);
  }
  const Counters& after = decoder.session().counters();
  EXPECT_EQ(after.plan_misses, before.plan_misses);
  EXPECT_EQ(after.graphs_built, before.graphs_built);
  EXPECT_EQ(after.rewrites, before.rewrites);
  EXPECT_EQ(after.arena_allocations, before.arena_allocations);
  EXPECT_EQ(model.program()->stats().plans_made, plans);
  EXPECT_EQ(after.runs, before.runs + 250);
}

TEST(Adapter, ProgramsWithoutThemHaveThePlansOfBefore) {
  test::SmallLanguageModel plain;
  AdaptableModel with;
  const auto has_launches = [](const test::SmallLanguageModel& model) {
    Decoder decoder(model.model, {.threads = 1});
    decoder.prepare(1, 4, 1);
    return model.model->program()->describe(true).find("graft add_adapter") != std::string::npos;
  };
  EXPECT_FALSE(has_launches(plain));
  EXPECT_TRUE(has_launches(with));
}

// A package from a stranger may name any operator.
TEST(Adapter, NodesInAPackageAreRefused) {
  const auto program = [](std::int64_t layer, std::int64_t rank, std::int64_t option) {
    test::GraphBuilder graph;
    const std::vector<ir::Dim> dims = {test::dynamic(1, 8, "n"), test::fixed(4)};
    const auto x = ir::Arg::of_value(graph.input("x", DType::f32, dims));
    graph.output(graph.node("graft.add_adapter",
                            {{"self", x},
                             {"input", x},
                             {"batch", test::of_none()},
                             {"layer", test::of_int(layer)},
                             {"most_rank", test::of_int(rank)}},
                            DType::f32, dims));
    LoadOptions options;
    options.max_adapter_rank = option;
    std::vector<float> numbers(8, 2.f);
    Session session(graph.build(options));
    const std::vector<Value> out = session.run("forward", std::vector{test::tensor(numbers, {2, 4})});
    return static_cast<const float*>(out[0].tensor.data)[7];
  };
  EXPECT_EQ(program(1 << 20, 8, 0), 2.f);  // no run has adapters
  expect_error<InvalidProgram>([&] { program(0, 8, 8); }, "which only a load makes");
  expect_error<Unsupported>([&] { program(0, INT64_MAX, 0); }, "most_rank must be from 1 to 4096");
  expect_error<Unsupported>([&] { program(-1, 8, 0); }, "layer must be known");
}

TEST(Adapter, WorksAfterShrink) {
  AdaptableModel model;
  const auto adapter = Numbers().of(model);
  const Adapter* const chosen[] = {adapter.get()};
  Decoder whole(model.model, {.threads = 1});
  const Ids ids = some_ids(9, 4);
  const std::vector<float> expected = logits(whole, {ids}, chosen);
  AdaptableModel again;
  again.program()->shrink();
  const auto same = Numbers().of(again);
  const Adapter* const same_chosen[] = {same.get()};
  Decoder shrunk(again.model, {.threads = 1});
  EXPECT_EQ(logits(shrunk, {ids}, same_chosen), expected);
  EXPECT_GT(again.program()->stats().graphs_read_again, 0u);
  EXPECT_EQ(logits(shrunk, {ids}, chosen), expected);  // a program with the same layers may have it too
}

TEST(Adapter, IdsAreThoseOfTheNumbers) {
  AdaptableModel model, again;
  Numbers numbers;
  const auto adapter = numbers.of(model);
  EXPECT_EQ(adapter->layers(), 1u);
  EXPECT_EQ(adapter->rank(), 3);
  EXPECT_EQ(adapter->bytes(), sizeof(float) * 3 * (kSize + kVocabulary));
  EXPECT_NE(adapter->id(), 0u);
  EXPECT_EQ(numbers.of(again)->id(), adapter->id());
  EXPECT_NE(numbers.of(model, 2)->id(), adapter->id());
  numbers.a[5] += 1;
  EXPECT_NE(numbers.of(model)->id(), adapter->id());
}

TEST(Adapter, WhatDoesNotFitIsAnError) {
  AdaptableModel model(4);
  Numbers numbers;
  const auto make = [&](const AdapterLayer& layer) { return Adapter::of(model.program(), {&layer, 1}); };
  const auto with = [&](const auto& change) {
    AdapterLayer layer = numbers.layer();
    change(layer);
    return [&make, layer] { make(layer); };
  };
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.module = "tail"; }), "no such linear layer");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) {
                                  l.a.shape = {3, 15};
                                }),
                                "layer 'head' takes 16 numbers, the adapter's A has shape [3, 15]");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.b.shape = {23, 3}; }), "expected [24, 3]");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.a.shape = {48}; }), "expected [rank, 16]");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.a.shape = {0, 16}; }), "has rank 0");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.a.dtype = DType::i32; }), "type i32");
  expect_error<InvalidArgument>(with([](AdapterLayer& l) { l.a.data = nullptr; }), "no data");
  Numbers large(5);
  expect_error<InvalidArgument>([&] { large.of(model); }, "has rank 5, the program was loaded for at most 4");
  const AdapterLayer both[] = {numbers.layer(), numbers.layer()};
  expect_error<InvalidArgument>([&] { Adapter::of(model.program(), both); }, "changes layer 'head' twice");
  expect_error<InvalidArgument>([&] { Adapter::of(model.program(), {}); }, "changes no layer");
  expect_error<InvalidArgument>([] { Adapter::of(nullptr, {}); }, "needs a program");
  test::SmallLanguageModel without;
  expect_error<Unsupported>([&] { Adapter::of(without.model->program(), both); }, "loaded without adapters");
  EXPECT_TRUE(adapter_modules(*without.model->program()).empty());

  // Runs that cannot have them, and the session after.
  const auto adapter = numbers.of(model);
  const Adapter* rows[] = {adapter.get(), nullptr, nullptr};
  Decoder plain(without.model, {.threads = 1});
  const Ids ids = some_ids(4, 2);
  const std::vector<float> expected = logits(plain, {ids}, {});
  expect_error<InvalidArgument>([&] { logits(plain, {ids}, std::span(rows).first(1)); }, "loaded without adapters");
  EXPECT_EQ(logits(plain, {ids}, {}), expected);
  Decoder decoder(model.model, {.threads = 1, .rows = 2});
  expect_error<InvalidArgument>([&] { logits(decoder, {ids, ids}, rows); }, "a batch of 2 got 3 adapters");
  EXPECT_EQ(logits(decoder, {ids}, {}), expected);
  expect_error<InvalidArgument>([] { AdaptableModel(-1); }, "must not be negative");
  expect_error<InvalidArgument>([] { AdaptableModel(1 << 20); }, "at most 4096");
}

TEST(Adapter, GeneratorsTakeThem) {
  AdaptableModel model;
  const auto one = Numbers(3, 1).of(model, 4), other = Numbers(3, 2).of(model, 4);
  const std::vector<std::shared_ptr<const Adapter>> kinds = {one, nullptr, other};
  const Ids prompt = some_ids(12, 3);
  const auto alone = [&](const std::shared_ptr<const Adapter>& adapter) {
    TextGenerator generator(model.model, {.threads = 1});
    GenerationOptions options;
    options.max_new_tokens = 9;
    options.adapters = {adapter};
    return generator.generate(prompt, options).tokens;
  };
  std::vector<Ids> expected;
  for (const auto& adapter : kinds) expected.push_back(alone(adapter));
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_NE(expected[0], expected[2]);

  TextGenerator batch(model.model, {.threads = 1, .rows = 3});
  GenerationOptions options;
  options.max_new_tokens = 9;
  options.adapters = kinds;
  const auto results = batch.generate(std::vector<Ids>(3, prompt), options);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(results[r].tokens, expected[r]);
  options.adapters.pop_back();
  expect_error<InvalidArgument>([&] { batch.generate(std::vector<Ids>(3, prompt), options); },
                                "a batch of 3 prompts got 2 adapters");

  BatchGenerator queue(model.model, {.threads = 1, .rows = 2});
  std::vector<BatchGenerator::Id> ids;
  for (int round = 0; round < 2; ++round)
    for (const auto& adapter : kinds) {
      GenerationOptions own;
      own.max_new_tokens = 9;
      own.adapters = {adapter};
      ids.push_back(queue.submit(prompt, own));
    }
  while (queue.step()) {
  }
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(queue.take(ids[i])->tokens, expected[i % 3]) << i;
  const Adapter* const raw[] = {one.get()};
  RunOptions run;
  run.adapters = raw;
  expect_error<InvalidArgument>([&] { queue.step(run); }, "adapters are those of requests");
}

TEST(Adapters, HaveNames) {
  AdaptableModel model;
  const auto one = Numbers(3, 1).of(model), other = Numbers(3, 2).of(model);
  Adapters adapters(model.program());
  expect_error<NotFound>([&] { adapters.find("a"); }, "there is no adapter 'a'; none is loaded");
  adapters.add("a", one);
  adapters.add("b", other);
  EXPECT_EQ(adapters.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(adapters.find("a"), one);
  adapters.add("a", other);
  EXPECT_EQ(adapters.find("a"), other);
  adapters.remove("a");
  EXPECT_FALSE(adapters.has("a"));
  EXPECT_TRUE(adapters.has("b"));
  expect_error<NotFound>([&] { adapters.remove("a"); }, "there are 'b'");
  expect_error<InvalidArgument>([&] { adapters.add("", one); }, "needs a name");
  expect_error<InvalidArgument>([&] { adapters.add("c", nullptr); }, "is null");
  expect_error<NotFound>([&] { adapters.load("c", "/nowhere/at/all"); }, "/nowhere/at/all");
  AdaptableModel small(2);
  Adapters others(small.program());
  expect_error<InvalidArgument>([&] { others.add("a", one); }, "of another program");
}

}  // namespace
}  // namespace graft
