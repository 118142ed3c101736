#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "lowering/dependencies.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// A launch moves past so many others at most, and a group of products spans so many: what later layers make of one
// operand would take memory all the time before.
constexpr std::uint32_t kFarthest = 16;
constexpr std::uint32_t kNone = UINT32_MAX;

bool reads(const Launch& launch, const Launch& producer) {
  return std::ranges::any_of(launch.inputs,
                             [&](const Tensor& t) { return t.buffer == producer.outputs[0].buffer && t.numel() > 0; });
}

// Whether a launch that stands directly behind another one may be one kernel with it, so that nothing may come between.
bool continues(const Launch& launch, const Launch& last) {
  switch (launch.ggml_op) {
    case GGML_OP_ADD:
    case GGML_OP_MUL:
    case GGML_OP_GLU:
      return reads(launch, last);
    default:
      return false;
  }
}

// Whether the launch belongs directly behind the other one, which made its input 0.
bool follows(const Launch& launch, const Launch& last) {
  const bool may =
      launch.ggml_op == GGML_OP_ROPE || (launch.ggml_op == GGML_OP_SET_ROWS && last.ggml_op == GGML_OP_ROPE);
  return may && launch.inputs[0].buffer == last.outputs[0].buffer;
}

// Takes launches one by one, each once all that it waits for has been taken. Only launches of the device that no launch
// of the host comes between change places: stages and transfers stay the same.
class FusionOrder {
 public:
  explicit FusionOrder(const LaunchSequence& sequence)
      : sequence_(sequence), count_(sequence.commit_begin), dependencies_(sequence, count_), taken_(count_, false) {}

  std::vector<std::uint32_t> run() {
    order_.reserve(count_);
    for (std::uint32_t begin = 0; begin < count_;) {
      end_ = begin + 1;
      if (!moves(begin)) {
        take(begin);
      } else {
        while (end_ < count_ && moves(end_)) ++end_;
        arrange(begin);
      }
      begin = end_;
    }
    return order_;
  }

 private:
  bool moves(std::uint32_t i) const {
    const Launch& launch = sequence_.launches[i];
    return launch.on_device && launch.kernel == nullptr;
  }
  bool is_ready(std::uint32_t i) const { return i < end_ && !taken_[i] && dependencies_.waits[i] == 0; }

  void take(std::uint32_t i) {
    GRAFT_ASSERT(!taken_[i] && dependencies_.waits[i] == 0);
    taken_[i] = true;
    order_.push_back(i);
    for (const std::uint32_t next : dependencies_.after[i]) --dependencies_.waits[next];
  }

  // Launches [begin, end_) of the device. The first that is left is always ready, and its turn comes when nothing
  // belongs behind the last one taken.
  void arrange(std::uint32_t begin) {
    for (std::uint32_t first = begin; first < end_; ++first) {
      if (taken_[first]) continue;
      std::uint32_t product = kNone;  // the first of its group
      for (std::uint32_t next = first; next != kNone;) {
        const std::uint32_t last = next;
        take(last);
        if (product == kNone && is_product(last)) product = last;
        next = fused(last);
        if (next == kNone && product != kNone) next = mate(product);
        if (next == kNone) {
          product = kNone;
          next = follower(last);
        }
      }
    }
  }

  bool is_product(std::uint32_t i) const {
    const Launch& launch = sequence_.launches[i];
    if (launch.ggml_op != GGML_OP_MUL_MAT) return false;
    const MemoryKind memory = sequence_.buffers[launch.inputs[0].buffer].memory;
    return memory == MemoryKind::weight || memory == MemoryKind::constant;
  }

  // The next launch of the sequence, if it may be one kernel with the last one taken.
  std::uint32_t fused(std::uint32_t last) const {
    const std::uint32_t next = last + 1;
    if (is_ready(next) && continues(sequence_.launches[next], sequence_.launches[last])) return next;
    return kNone;
  }

  // Another product of the operand.
  std::uint32_t mate(std::uint32_t product) const {
    const Tensor& operand = sequence_.launches[product].inputs[1];
    for (std::uint32_t i = product + 1; i < end_ && i - product <= kFarthest; ++i)
      if (is_ready(i) && is_product(i) && same_tensor(sequence_.launches[i].inputs[1], operand)) return i;
    return kNone;
  }

  std::uint32_t follower(std::uint32_t last) const {
    for (const std::uint32_t i : dependencies_.after[last])
      if (is_ready(i) && i - last <= kFarthest && follows(sequence_.launches[i], sequence_.launches[last])) return i;
    return kNone;
  }

  const LaunchSequence& sequence_;
  const std::uint32_t count_;
  Dependencies dependencies_;
  std::vector<bool> taken_;
  std::vector<std::uint32_t> order_;
  std::uint32_t end_ = 0;
};

}  // namespace

std::size_t order_for_fusion(LaunchSequence& sequence) {
  GRAFT_ASSERT(sequence.sections.empty() && sequence.groups.empty());
  return reorder(sequence, FusionOrder(sequence).run());
}

}  // namespace graft
