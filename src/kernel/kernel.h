#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

  // The share [begin, end) of `count` work items of this thread.
  struct Range {
    std::int64_t begin, end;
  };
  Range share(std::int64_t count) const {
    const std::int64_t chunk = (count + threads - 1) / threads;
    const std::int64_t begin = chunk * thread < count ? chunk * thread : count;
    const std::int64_t end = begin + chunk < count ? begin + chunk : count;
    return {begin, end};
  }
};

// The inner loops in use: "avx512".
std::string isa_name();

// A kernel of ours: runs inside the ggml graph as a custom op with the graph's threads. `run` must not throw.
struct Kernel {
  std::string_view name;  // "copy", "binary", "layer_norm": shown by `graft inspect`
  void (*run)(const KernelContext&) noexcept;
  // A launch with fewer elements in its outputs runs on one thread: a second one costs more than it saves.
  std::int64_t parallel_from = 0;
  // The phases of a launch with these descriptors, attributes and number of threads (data pointers are not set). A
  // phase begins when all shares of the one before it are done. Without the function there is one.
  int (*phases)(const KernelContext&) noexcept = nullptr;
  // Why a launch with these descriptors and attributes runs the way it does, for `graft inspect` (data pointers are not
  // set): which layout, which inner loops. Without the function there is one way.
  std::string (*why)(const KernelContext&) = nullptr;
};

}  // namespace graft
