#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "graft/tensor.h"

namespace graft {

// The first failure of a run. Kernels write it from any thread; the executor polls it after every node.
class ErrorSlot {
 public:
  static constexpr std::size_t kMaxMessage = 512;  // bytes; longer messages are truncated

  // Keeps the first message. Never throws; safe from several threads.
  void fail(std::string_view message) noexcept;
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) == kWritten; }
  std::string_view message() const noexcept { return {text_, length_}; }
  void clear() noexcept;

 private:
  enum : int { kEmpty, kWriting, kWritten };
  std::atomic<int> state_{kEmpty};
  char text_[kMaxMessage] = {};
  std::size_t length_ = 0;
};

// A string or a number in a message.
struct MessagePart {
  MessagePart(std::string_view t) : text(t) {}
  MessagePart(std::integral auto i) : integer(static_cast<std::int64_t>(i)), kind(Kind::integer) {}
  MessagePart(double r) : real(r), kind(Kind::real) {}

  enum class Kind : std::uint8_t { text, integer, real };
  std::string_view text;
  std::int64_t integer = 0;
  double real = 0;
  Kind kind = Kind::text;
};

// What random numbers are derived from, besides the node and the element's index.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t run = 0;  // runs that the session has finished
};

// Two-ended work stealing: a range of work items from which one task takes chunks at the front and another at the
// back, without locks.
class alignas(64) TwoEndedRange {
 public:
  struct Range {
    std::int64_t begin, end;
  };
  // A chunk has at least `min` (except half of the rest at the end) and at most `max` items and, while two times
  // `multiple` are left, a multiple of `multiple`: items that are cheaper together, such as the tiles that read one
  // panel.
  struct Chunking {
    std::int64_t min = 1, max = std::numeric_limits<std::int64_t>::max(), multiple = 1;
  };
  void clear() noexcept { taken_.store(0, std::memory_order_relaxed); }
  // Guided scheduling: takes a third of what is left of `size` items (fewer than 2^31), within `chunking`, from the
  // front or from the back; an empty range when nothing is left.
  Range take(std::int64_t size, const Chunking& chunking, bool from_back) noexcept;

 private:
  std::atomic<std::uint64_t> taken_{0};  // low half: from the front; high half: from the back
};

// What an adapter adds to a product x W^T: (x A^T) B^T. All adapters of a program have the same list of these.
struct LowRank {
  const float* a = nullptr;  // A [rank, in]
  const float* b = nullptr;  // B transposed and scaled [rank, out]
  std::int64_t rank = 0;     // 0: it leaves the product as it is
};

// A kernel's view of one task of one phase of a launch. A phase has one task per thread or several (lowering/tasks.h).
// Tasks run concurrently, in any order, on any thread; phases are separated by barriers. Data pointers are those of
// element [0, 0, ...]. An empty operand may have a null pointer.
struct KernelContext {
  int task = 0;  // 0 .. tasks - 1
  int tasks = 1;
  int phase = 0;  // 0 .. phases - 1
  std::span<const TensorDesc> input_descs;
  std::span<const TensorDesc> output_descs;
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;
  const std::byte* attr_bytes = nullptr;  // the launch's attributes, a POD
  std::byte* scratch_bytes = nullptr;     // shared by the tasks, 64-byte aligned, as large as the launch states
  ErrorSlot* error = nullptr;
  RandomKey random;
  std::span<const std::int64_t> kv_rows;  // for each row of the batch the row of the cache; empty: the same row
  // For each row of the batch the list of its adapter, null without one. One entry: that of all rows. Empty: none has.
  std::span<const LowRank* const> adapters;
  std::string_view node;  // name of the PyTorch node, for messages
  // For kernels with `steals_work`: one range for tasks 0 and 1, one for 2 and 3, ..., cleared before the phase. Null
  // with one task.
  TwoEndedRange* steal_ranges = nullptr;

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
  // Records a failure that names the node; the parts (strings and numbers) form its message. Does not allocate. The
  // kernel should then return (after its barriers) without touching bad data.
  template <typename... Parts>
  void fail(const Parts&... parts) const noexcept {
    fail_with({MessagePart(parts)...});
  }

  // This task's range [begin, end) of `count` work items under static scheduling; ranges differ by at most one item.
  using Range = TwoEndedRange::Range;
  Range range(std::int64_t count) const {
    const std::int64_t each = count / tasks, more = count % tasks;
    const auto begin_of = [&](std::int64_t i) { return i * each + (i < more ? i : more); };
    return {begin_of(task), begin_of(task + 1)};
  }

  // Work stealing: calls run(begin, end) for chunks of `count` work items (fewer than 2^31) until all are taken: first
  // those of this task and its neighbour, for locality, then what other pairs have left.
  template <typename Run>
  void for_chunks(std::int64_t count, const TwoEndedRange::Chunking& chunking, Run&& run) const {
    if (steal_ranges == nullptr) return run(std::int64_t{0}, count);
    if (count == 0) return;  // chunking.multiple may be 0 then
    const int pairs = (tasks + 1) / 2;
    // Pairs split at multiples when each task gets some.
    const std::int64_t multiple = count >= 2 * tasks * chunking.multiple ? chunking.multiple : 1;
    const auto cut = [&](int i) { return i == tasks ? count : count / multiple * i / tasks * multiple; };
    for (int i = 0; i < pairs; ++i) {
      const int pair = (task / 2 + i) % pairs;
      const std::int64_t first = cut(2 * pair), size = cut(2 * pair + 2 < tasks ? 2 * pair + 2 : tasks) - first;
      for (;;) {
        const auto [begin, end] = steal_ranges[pair].take(size, chunking, task % 2 != 0);
        if (begin == end) break;
        run(first + begin, first + end);
      }
    }
  }

 private:
  void fail_with(std::initializer_list<MessagePart> parts) const noexcept;
};

// The instruction set of the inner loops in use: "avx512".
std::string isa_name();
// The same with that of byte products, where it differs: "avx512, products avx512vnni". Layouts made at load and at
// export depend on it.
std::string isa_names();

struct Fusion;

// One of graft's own kernels. An exception thrown by `run` is an error of the run.
struct Kernel {
  std::string_view name;  // "copy", "binary", "layer_norm": shown by `graft inspect`
  void (*run)(const KernelContext&);
  // A launch with less work runs on one thread: a second one costs more than it saves.
  std::int64_t parallel_from = 0;
  // The number of phases of a launch with these descriptors, attributes and number of threads (data pointers are not
  // set). A phase begins when all tasks of the one before it are done. Null: one phase.
  int (*phases)(const KernelContext&) noexcept = nullptr;
  // How a launch with these descriptors and attributes runs, for `graft inspect` (data pointers are not set): which
  // layout, which inner loops. Null: there is only one way.
  std::string (*explain)(const KernelContext&) = nullptr;
  // The work of a launch with these descriptors and attributes in multiply-adds (data pointers are not set); 0 when
  // tasks cannot divide it. Null: the number of elements of the largest output.
  std::int64_t (*work)(const KernelContext&) = nullptr;
  // Tasks call KernelContext::for_chunks.
  bool steals_work = false;
  // Which neighbouring launches it can absorb (kernel/fusion.h). Null: none.
  const Fusion* fusion = nullptr;
  // What a launch with these descriptors and attributes computes, shown after the name. Null: the name tells it.
  std::string (*label)(const KernelContext&) = nullptr;
  // Writes one element of the output per element of input 0, not all of the output.
  bool writes_by_input = false;
  // Runs code of the user, whose launches may share data: no other launch runs beside it.
  bool of_user = false;
};

}  // namespace graft
