#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "graft/tensor.h"

namespace graft {

// The first failure of a run. Kernels write it from any thread; the executor polls it after every node.
class ErrorSlot {
 public:
  // Keeps the first message. Never throws; safe from several threads.
  void fail(std::string_view message) noexcept;
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) == kWritten; }
  std::string_view message() const noexcept { return {text_, length_}; }
  void clear() noexcept;

 private:
  enum : int { kEmpty, kWriting, kWritten };
  std::atomic<int> state_{kEmpty};
  char text_[512] = {};
  std::size_t length_ = 0;
};

// What random numbers follow from, besides the node and the place.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t run = 0;  // runs that the session has finished
};

// Where two shares that come towards each other on the same units of work are.
class alignas(64) Meeting {
 public:
  struct Range {
    std::int64_t begin, end;
  };
  // At least `least` (but half of what is left at the end) and at most `most` units are taken at a time, and, while two
  // of them are left, multiples of `whole`, which cost less together (the tiles that read one panel of a weight).
  struct Portion {
    std::int64_t least = 1, most = std::numeric_limits<std::int64_t>::max(), whole = 1;
  };
  void clear() noexcept { taken_.store(0, std::memory_order_relaxed); }
  // Takes a third of what is left of `size` units (fewer than 2^31), within what `portion` says, from the front or
  // from the back; none when none is left.
  Range take(std::int64_t size, const Portion& portion, bool from_back) noexcept;

 private:
  std::atomic<std::uint64_t> taken_{0};  // low half: from the front; high half: from the back
};

// What a kernel of ours sees of one share of one phase of a launch. The work of a phase is divided into one share per
// thread of the run or several (plan/shares.h); they run side by side in any order on any thread, the phases one after
// the other. Data pointers are those of element [0, 0, ...]. An empty operand may have a null pointer.
struct KernelContext {
  int thread = 0;  // the share: 0 .. threads - 1
  int threads = 1;
  int phase = 0;  // 0 .. phases - 1
  std::span<const TensorDesc> input_descs;
  std::span<const TensorDesc> output_descs;
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;
  const std::byte* attr_bytes = nullptr;  // the POD given at emission
  std::byte* scratch_bytes = nullptr;     // shared by the threads, 64-byte aligned, as large as asked for at emission
  ErrorSlot* error = nullptr;
  RandomKey random;
  std::span<const std::int64_t> kv_rows;  // by row of the batch: the row of the cache; empty: the same one
  std::string_view node;                  // name of the PyTorch node, for messages
  // For kernels with `shares_meet`: of shares 0 and 1, 2 and 3, ..., cleared before the phase. Null: one share.
  Meeting* meetings = nullptr;

  const TensorDesc& in(int i) const { return input_descs[static_cast<std::size_t>(i)]; }
  const TensorDesc& out(int i = 0) const { return output_descs[static_cast<std::size_t>(i)]; }
  template <typename T>
  const T* input(int i) const {
    return static_cast<const T*>(inputs[i]);
  }
  template <typename T>
  T* output(int i = 0) const {
    return static_cast<T*>(outputs[i]);
  }
  template <typename Attrs>
  Attrs attrs() const {
    Attrs a;
    std::memcpy(&a, attr_bytes, sizeof(a));
    return a;
  }
  std::int64_t kv_row(std::int64_t b) const { return kv_rows.empty() ? b : kv_rows[static_cast<std::size_t>(b)]; }
  // Records a failure that names the node. The kernel should then return (after its barriers) without touching bad
  // data.
  void fail(const std::string& what) const noexcept;

  // The share [begin, end) of `count` work items of this thread: as many as of any other, or one more.
  using Range = Meeting::Range;
  Range share(std::int64_t count) const {
    const std::int64_t least = count / threads, more = count % threads;
    const auto begin_of = [&](std::int64_t share) { return share * least + (share < more ? share : more); };
    return {begin_of(thread), begin_of(thread + 1)};
  }

  // Calls run(begin, end) for ranges of `count` work items (fewer than 2^31) until all are taken: those that this share
  // and its neighbour have between them, which stay near each other, then what other pairs have left. See
  // Meeting::take.
  template <typename Run>
  void meet(std::int64_t count, const Meeting::Portion& portion, Run&& run) const {
    if (meetings == nullptr) return run(std::int64_t{0}, count);
    if (count == 0) return;  // a whole unit may be 0 then
    const int pairs = (threads + 1) / 2;
    // A pair's units end with whole ones where each share has some.
    const std::int64_t whole = count >= 2 * threads * portion.whole ? portion.whole : 1;
    const auto place = [&](int share) { return share == threads ? count : count / whole * share / threads * whole; };
    for (int i = 0; i < pairs; ++i) {
      const int pair = (thread / 2 + i) % pairs;
      const std::int64_t first = place(2 * pair), size = place(2 * pair + 2 < threads ? 2 * pair + 2 : threads) - first;
      for (;;) {
        const auto [begin, end] = meetings[pair].take(size, portion, thread % 2 != 0);
        if (begin == end) break;
        run(first + begin, first + end);
      }
    }
  }
};

// The inner loops in use: "avx512".
std::string isa_name();

// A kernel of ours: runs inside the ggml graph as a custom op with the graph's threads. `run` must not throw.
struct Kernel {
  std::string_view name;  // "copy", "binary", "layer_norm": shown by `graft inspect`
  void (*run)(const KernelContext&) noexcept;
  // A launch with less work runs on one thread: a second one costs more than it saves.
  std::int64_t parallel_from = 0;
  // The phases of a launch with these descriptors, attributes and number of threads (data pointers are not set). A
  // phase begins when all shares of the one before it are done. Without the function there is one.
  int (*phases)(const KernelContext&) noexcept = nullptr;
  // Why a launch with these descriptors and attributes runs the way it does, for `graft inspect` (data pointers are not
  // set): which layout, which inner loops. Without the function there is one way.
  std::string (*why)(const KernelContext&) = nullptr;
  // The work of a launch with these descriptors and attributes, 0 when threads cannot share it (data pointers are not
  // set): multiply-adds. Without the function it is the elements of the largest output.
  std::int64_t (*work)(const KernelContext&) = nullptr;
  // Pairs of shares divide their work while they run: KernelContext::meetings.
  bool shares_meet = false;
};

}  // namespace graft
