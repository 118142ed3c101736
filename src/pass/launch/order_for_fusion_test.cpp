#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernel/elementwise/elementwise.h"
#include "lowering/lowering.h"
#include "pass/launch/passes.h"
#include "plan/test_plan_builder.h"

namespace graft {
namespace {

using test::PlanBuilder;
using ::testing::ElementsAre;

// Launches by their places before the pass.
void number(Plan& plan) {
  for (std::size_t i = 0; i < plan.launches.size(); ++i) plan.launches[i].node = static_cast<std::uint32_t>(i);
}
std::vector<std::uint32_t> ordered(Plan& plan) {
  number(plan);
  order_for_fusion(plan);
  std::vector<std::uint32_t> out;
  for (const Launch& launch : plan.launches) out.push_back(launch.node);
  return out;
}
std::vector<std::uint32_t> ordered(PlanBuilder& b) {
  Plan plan = b.uncut();
  return ordered(plan);
}

// A layer by hand, with values of one size.
struct Layer : PlanBuilder {
  Tensor x = vector(MemoryKind::input), positions = vector(MemoryKind::input);

  Tensor weight() { return vector(MemoryKind::weight); }
  Tensor made(int op, std::vector<Tensor> inputs) {
    Tensor out = vector(MemoryKind::arena);
    device(std::move(inputs), out, op);
    return out;
  }
  Tensor product(const Tensor& of) { return made(GGML_OP_MUL_MAT, {weight(), of}); }
  Tensor norm(const Tensor& of) { return made(GGML_OP_MUL, {made(GGML_OP_RMS_NORM, {of}), weight()}); }
  Tensor rope(const Tensor& of) { return made(GGML_OP_ROPE, {of, positions, weight()}); }
};

TEST(OrderForFusion, QueriesKeysAndValuesAndThenTheirNormsAndAngles) {
  Layer b;
  const Tensor x = b.norm(b.x);                                                           // 0, 1
  const Tensor q = b.norm(b.product(x));                                                  // 2: the product; 3, 4
  const Tensor k = b.norm(b.product(x));                                                  // 5; 6, 7
  const Tensor v = b.product(x);                                                          // 8
  const Tensor turned = b.rope(q), key = b.rope(k);                                       // 9, 10
  const Tensor keys = b.vector(MemoryKind::state), values = b.vector(MemoryKind::state);  // of the device
  b.device({key, b.positions}, keys, GGML_OP_SET_ROWS);                                   // 11
  b.device({v, b.positions}, values, GGML_OP_SET_ROWS);                                   // 12
  b.made(GGML_OP_FLASH_ATTN_EXT, {turned, keys, values, x});                              // 13
  Plan plan = b.uncut();
  plan.buffers[keys.buffer].kept_on_device = plan.buffers[values.buffer].kept_on_device = true;
  EXPECT_THAT(ordered(plan), ElementsAre(0, 1, 2, 5, 8, 3, 4, 9, 6, 7, 10, 11, 12, 13));
  EXPECT_EQ(order_for_fusion(plan), 0u) << "once is enough";
}

TEST(OrderForFusion, ASumStaysBehindItsProduct) {
  Layer b;
  const auto projected = [&] { return b.made(GGML_OP_ADD, {b.product(b.x), b.weight()}); };
  const Tensor q = projected();        // 0, 1
  b.rope(q);                           // 2
  b.rope(projected());                 // 3, 4; 5
  b.made(GGML_OP_SQR, {projected()});  // 6, 7; 8
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 3, 4, 6, 7, 2, 5, 8));
}

// Attention and gated layer side by side: the products of both read the same operand.
TEST(OrderForFusion, AGatedLayerMovesWithItsProducts) {
  Layer b;
  b.made(GGML_OP_SQR, {b.product(b.x)});                    // 0; 1
  const Tensor gate = b.product(b.x), up = b.product(b.x);  // 2, 3
  b.made(GGML_OP_SQR, {b.made(GGML_OP_GLU, {gate, up})});   // 4; 5
  EXPECT_THAT(ordered(b), ElementsAre(0, 2, 3, 4, 1, 5));
}

TEST(OrderForFusion, SeveralOperandsHaveTheirOwnGroups) {
  Layer b;
  const Tensor other = b.vector(MemoryKind::input);
  b.product(b.x);    // 0
  b.product(other);  // 1
  b.product(b.x);    // 2
  b.product(other);  // 3
  EXPECT_THAT(ordered(b), ElementsAre(0, 2, 1, 3));
}

TEST(OrderForFusion, AnOperandThatChangesBetweenIsAnother) {
  Layer b;
  const Tensor x = b.made(GGML_OP_SQR, {b.x});  // 0
  b.product(x);                                 // 1
  b.device({x}, x, GGML_OP_SQR);                // 2: in place
  b.product(x);                                 // 3
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3));
}

TEST(OrderForFusion, WhatAProductOverwritesIsReadFirst) {
  Layer b;
  const Tensor first = b.vector(MemoryKind::arena), second = b.vector(MemoryKind::arena);
  b.device({b.x}, second, GGML_OP_SQR);                  // 0
  b.device({b.weight(), b.x}, first, GGML_OP_MUL_MAT);   // 1
  b.made(GGML_OP_SQR, {second});                         // 2
  b.device({b.weight(), b.x}, second, GGML_OP_MUL_MAT);  // 3
  b.made(GGML_OP_SQR, {second});                         // 4
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3, 4));
}

TEST(OrderForFusion, WhatIsOverwrittenLaterIsWrittenFirst) {
  Layer b;
  const Tensor out = b.vector(MemoryKind::arena);
  b.product(b.x);                                     // 0
  b.device({b.positions}, out, GGML_OP_SQR);          // 1
  b.device({b.weight(), b.x}, out, GGML_OP_MUL_MAT);  // 2
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2));
}

TEST(OrderForFusion, RopeWaitsForItsPositions) {
  Layer b;
  const Tensor x = b.norm(b.x);                                 // 0, 1
  const Tensor y = b.norm(b.x);                                 // 2, 3
  const Tensor positions = b.made(GGML_OP_CPY, {b.positions});  // 4
  b.made(GGML_OP_ROPE, {x, positions});                         // 5
  b.made(GGML_OP_ROPE, {y, b.positions});                       // 6
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3, 6, 4, 5));
}

TEST(OrderForFusion, ARopeWhoseInputChangesBetweenStays) {
  Layer b;
  const Tensor x = b.norm(b.x);      // 0, 1
  b.made(GGML_OP_SQR, {b.x});        // 2
  b.device({x, x}, x, GGML_OP_MUL);  // 3: in place
  b.made(GGML_OP_SQR, {b.x});        // 4
  b.rope(x);                         // 5
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3, 5, 4));
}

TEST(OrderForFusion, ProductsOfTwoActivationsStay) {
  Layer b;
  const Tensor scores = b.vector(MemoryKind::arena);
  b.device({b.x}, scores, GGML_OP_SQR);    // 0
  b.product(b.x);                          // 1
  b.made(GGML_OP_SQR, {b.x});              // 2
  b.made(GGML_OP_MUL_MAT, {scores, b.x});  // 3
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3));
}

// The keys of all layers of a decoder are products of what the encoder made.
TEST(OrderForFusion, ProductsOfALaterLayerStayThere) {
  Layer b;
  b.product(b.x);                                           // 0
  for (int i = 0; i < 15; ++i) b.made(GGML_OP_SQR, {b.x});  // 1 to 15
  b.product(b.x);                                           // 16: near enough
  b.product(b.x);                                           // 17
  const std::vector<std::uint32_t> order = ordered(b);
  EXPECT_EQ(order[1], 16u);
  EXPECT_EQ(order[17], 17u);
}

TEST(OrderForFusion, NothingMovesPastALaunchOfTheHost) {
  Layer b;
  const Tensor y = b.vector(MemoryKind::arena);
  b.product(b.x);              // 0
  b.made(GGML_OP_SQR, {b.x});  // 1
  b.host({b.x}, y);            // 2
  b.product(b.x);              // 3
  b.made(GGML_OP_SQR, {y});    // 4
  b.product(b.x);              // 5
  EXPECT_THAT(ordered(b), ElementsAre(0, 1, 2, 3, 5, 4));
}

TEST(OrderForFusion, LaunchesThatCommitStayLast) {
  Layer b;
  const Tensor s = b.vector(MemoryKind::state);
  b.product(b.x);                                   // 0
  b.made(GGML_OP_SQR, {b.x});                       // 1
  b.device({b.weight(), b.x}, s, GGML_OP_MUL_MAT);  // 2: finished
  Plan plan = b.uncut();
  plan.commit_begin = 2;
  EXPECT_THAT(ordered(plan), ElementsAre(0, 1, 2));
}

// What a state held is kept until the run ends: the mark moves with the launch that copies it.
TEST(OrderForFusion, MarksOfUndoMove) {
  Layer b;
  const Tensor s = b.vector(MemoryKind::state), kept = b.vector(MemoryKind::arena);
  b.product(b.x);                    // 0
  b.device({s}, kept, GGML_OP_CPY);  // 1
  b.device({b.x}, s, GGML_OP_SQR);   // 2
  b.product(b.x);                    // 3
  Plan plan = b.uncut();
  UndoLaunch undo;
  undo.launch.kernel = &kCopy;
  undo.launch.inputs = {kept};
  undo.launch.outputs = {s};
  undo.after = 2;
  plan.undo.push_back(undo);
  EXPECT_THAT(ordered(plan), ElementsAre(0, 3, 1, 2));
  EXPECT_EQ(plan.undo[0].after, 3u);
}

// Random sequences over buffers of two halves.
class RandomSequence {
 public:
  explicit RandomSequence(std::uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) values_.push_back(b_.vector(MemoryKind::input, 2 * kHalf));
    values_.push_back(b_.vector(MemoryKind::state, 2 * kHalf));
    for (int i = 0; i < 3; ++i) weights_.push_back(b_.vector(MemoryKind::weight, 2 * kHalf));
    const std::size_t launches = 6 + pick(30);
    for (std::size_t i = 0; i < launches; ++i) add();
    plan_ = b_.uncut();
    plan_.commit_begin -= static_cast<std::uint32_t>(pick(3));
    number(plan_);
  }
  const Plan& plan() const { return plan_; }

 private:
  static constexpr std::int64_t kHalf = 64;  // elements: all windows begin where tensors of ggml may

  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }
  Tensor window(const Tensor& t) {
    const std::size_t which = pick(6);
    return which < 2 ? sliced(t, 0, static_cast<std::int64_t>(which) * kHalf, kHalf) : t;
  }
  // Mostly what was made last.
  Tensor value() { return window(values_[values_.size() - 1 - pick(std::min<std::size_t>(values_.size(), 4))]); }
  Tensor target() {
    if (pick(4) == 0) return window(values_[pick(values_.size())]);
    values_.push_back(b_.vector(pick(8) == 0 ? MemoryKind::output : MemoryKind::arena, 2 * kHalf));
    return values_.back();
  }
  void add() {
    constexpr std::array kOps = {GGML_OP_MUL_MAT, GGML_OP_MUL_MAT,  GGML_OP_RMS_NORM, GGML_OP_MUL, GGML_OP_ROPE,
                                 GGML_OP_ROPE,    GGML_OP_SET_ROWS, GGML_OP_ADD,      GGML_OP_GLU, GGML_OP_CPY};
    const int op = kOps[pick(kOps.size())];
    const Tensor first = op == GGML_OP_MUL_MAT && pick(5) > 0 ? weights_[pick(weights_.size())] : value();
    const std::vector<Tensor> inputs{first, value()};
    if (pick(12) == 0) {
      b_.host(inputs, target());
    } else {
      b_.device(inputs, target(), op);
    }
  }

  std::mt19937 random_;
  PlanBuilder b_;
  std::vector<Tensor> values_, weights_;
  Plan plan_;
};

// The halves of buffers that a tensor has.
std::vector<std::size_t> halves(const Plan& plan, const Tensor& t) {
  const std::int64_t half = plan.buffers[t.buffer].bytes / 2;
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * half;
    if (t.offset < begin + half && begin < t.offset + static_cast<std::int64_t>(t.desc.byte_count()))
      out.push_back(2 * t.buffer + i);
  }
  return out;
}

// All that the halves hold after a run, where a launch makes another value of all that it reads. SET_ROWS reads what it
// writes.
std::vector<std::uint64_t> results(const Plan& plan) {
  std::vector<std::uint64_t> held(2 * plan.buffers.size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = i + 1;
  for (const Launch& launch : plan.launches) {
    std::uint64_t value = launch.node + 1;
    const auto mix = [&](const Tensor& t) {
      for (const std::size_t half : halves(plan, t)) value = (value ^ held[half]) * 0x9e3779b97f4a7c15 + (value >> 29);
    };
    for (const Tensor& t : launch.inputs) mix(t);
    if (launch.ggml_op == GGML_OP_SET_ROWS) mix(launch.outputs[0]);
    for (const std::size_t half : halves(plan, launch.outputs[0])) held[half] = value += half;
  }
  return held;
}

// Whether one of the launches writes what the other one touches.
bool depend(const Launch& a, const Launch& b) {
  const auto end = [](const Tensor& t) { return t.offset + static_cast<std::int64_t>(t.desc.byte_count()); };
  const auto touches = [&](const Launch& launch, const Tensor& written) {
    const auto overlaps = [&](const Tensor& t) {
      return t.buffer == written.buffer && t.offset < end(written) && written.offset < end(t);
    };
    return std::ranges::any_of(launch.inputs, overlaps) || std::ranges::any_of(launch.outputs, overlaps);
  };
  return touches(b, a.outputs[0]) || touches(a, b.outputs[0]);
}

// ROPE directly behind what made its input, and products directly behind those of the same operand.
std::size_t neighbours(const Plan& plan) {
  std::size_t count = 0;
  for (std::size_t i = 1; i < plan.launches.size(); ++i) {
    const Launch &last = plan.launches[i - 1], &launch = plan.launches[i];
    if (!last.on_device || !launch.on_device) continue;
    if (launch.ggml_op == GGML_OP_ROPE) count += launch.inputs[0].buffer == last.outputs[0].buffer;
    if (launch.ggml_op == GGML_OP_MUL_MAT && last.ggml_op == GGML_OP_MUL_MAT)
      count += same_tensor(launch.inputs[1], last.inputs[1]);
  }
  return count;
}

TEST(OrderForFusion, RandomSequencesKeepTheirDependenciesResultsAndStages) {
  std::size_t moved = 0, before_count = 0, after_count = 0;
  for (std::uint32_t round = 0; round < 300; ++round) {
    const RandomSequence sequence(round);
    Plan before = sequence.plan();
    order_for_stages(before);
    number(before);
    Plan after = before;
    moved += order_for_fusion(after);
    ASSERT_EQ(after.launches.size(), before.launches.size());
    std::vector<std::size_t> place(before.launches.size(), SIZE_MAX);
    for (std::size_t i = 0; i < place.size(); ++i) place[after.launches[i].node] = i;
    for (std::size_t i = 0; i < place.size(); ++i) {
      ASSERT_NE(place[i], SIZE_MAX) << "sequence " << round;
      for (std::size_t j = 0; j < i; ++j) {
        const bool fixed = i >= before.commit_begin || depend(before.launches[j], before.launches[i]);
        ASSERT_TRUE(!fixed || place[j] < place[i]) << "sequence " << round << ": " << j << ", " << i;
      }
    }
    ASSERT_EQ(results(after), results(before)) << "sequence " << round;
    before_count += neighbours(before);
    after_count += neighbours(after);
    // Launches that commit are the host's.
    for (Plan* plan : {&before, &after}) {
      for (std::size_t i = plan->commit_begin; i < plan->launches.size(); ++i)
        if (plan->launches[i].on_device) plan->launches[i].on_device = false;
      cut_stages(*plan, 64);
    }
    ASSERT_EQ(after.stages.size(), before.stages.size());
    for (std::size_t s = 0; s < before.stages.size(); ++s) {
      ASSERT_EQ(after.stages[s].begin, before.stages[s].begin);
      ASSERT_EQ(after.stages[s].side, before.stages[s].side);
    }
    const Traffic then = traffic(before), now = traffic(after);
    ASSERT_EQ(now.uploads + now.downloads, then.uploads + then.downloads) << "sequence " << round;
    ASSERT_EQ(now.upload_bytes + now.download_bytes, then.upload_bytes + then.download_bytes) << "sequence " << round;
  }
  EXPECT_GT(moved, 300u);
  EXPECT_GT(after_count, before_count + 100);
}

}  // namespace
}  // namespace graft
