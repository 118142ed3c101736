#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernel/kernel_test_util.h"
#include "kernel/simd/dispatch.h"
#include "kernel/simd/half.h"

// For tests of vector kernels: tensors whose values are exactly those the kernel sees, and runs on any number of
// threads with scratch. The including file defines GRAFT_ISA for half.h.
namespace graft {

inline double rounded_to_bf16(double x) {
  return static_cast<double>(simd::GRAFT_ISA::bf16_to_float(simd::GRAFT_ISA::float_to_bf16(static_cast<float>(x))));
}

// A tensor in memory of its own, deliberately aligned only to its elements, with guard bytes before and after that
// reveal stray writes.
class TestTensor {
 public:
  TestTensor(const TensorDesc& d, std::int64_t elements) : desc(d), elements_(elements) {
    bytes_.assign(static_cast<std::size_t>(elements) * byte_size(d.dtype) + 2 * guard(), std::byte{0x5a});
  }
  explicit TestTensor(const TensorDesc& d) : TestTensor(d, d.numel()) {}

  void* data() { return bytes_.data() + guard(); }
  const void* data() const { return bytes_.data() + guard(); }
  std::int64_t elements() const { return elements_; }

  void fill(std::mt19937& rng, float low, float high) {
    std::uniform_real_distribution<float> values(low, high);
    for (std::int64_t i = 0; i < elements_; ++i) set(i, values(rng));
  }
  void set(std::int64_t i, double value) {
    std::byte* p = bytes_.data() + guard() + static_cast<std::size_t>(i) * byte_size(desc.dtype);
    const float f = static_cast<float>(value);
    if (desc.dtype == DType::f32) std::memcpy(p, &f, 4);
    if (desc.dtype == DType::b8) *p = value != 0 ? std::byte{1} : std::byte{0};
    const std::uint16_t h =
        desc.dtype == DType::bf16 ? simd::GRAFT_ISA::float_to_bf16(f) : simd::GRAFT_ISA::float_to_f16(f);
    if (byte_size(desc.dtype) == 2) std::memcpy(p, &h, 2);
  }
  double get(std::int64_t i) const {
    const std::byte* p = bytes_.data() + guard() + static_cast<std::size_t>(i) * byte_size(desc.dtype);
    if (desc.dtype == DType::b8) return static_cast<double>(*p);
    if (desc.dtype == DType::f32) {
      float f;
      std::memcpy(&f, p, 4);
      return static_cast<double>(f);
    }
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    return static_cast<double>(desc.dtype == DType::bf16 ? simd::GRAFT_ISA::bf16_to_float(h)
                                                         : simd::GRAFT_ISA::f16_to_float(h));
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < guard(); ++i) {
      if (bytes_[i] != std::byte{0x5a} || bytes_[bytes_.size() - 1 - i] != std::byte{0x5a}) return false;
    }
    return true;
  }

  TensorDesc desc;

 private:
  // An odd multiple of 4 or 8: elements are aligned, vectors are not.
  std::size_t guard() const { return byte_size(desc.dtype) == 8 ? 24 : 12; }
  std::int64_t elements_;
  std::vector<std::byte> bytes_;
};

// Calls `run` on each of `threads` threads with a context for these operands.
template <typename Attrs>
void run_on_threads(const std::vector<const TestTensor*>& inputs, const std::vector<TestTensor*>& outputs,
                    const Attrs& attrs, std::int64_t scratch_bytes, int threads,
                    const std::function<void(const KernelContext&)>& run,
                    const std::function<int(const KernelContext&)>& phases = nullptr) {
  std::vector<TensorDesc> in, out;
  std::vector<const void*> in_data;
  std::vector<void*> out_data;
  for (const TestTensor* t : inputs) {
    in.push_back(t->desc);
    in_data.push_back(t->data());
  }
  for (TestTensor* t : outputs) {
    out.push_back(t->desc);
    out_data.push_back(t->data());
  }
  // Exactly the size that the kernel states, so that an address sanitizer sees every byte past it.
  std::vector<std::byte> memory(static_cast<std::size_t>(scratch_bytes) + 64);
  std::byte* scratch = memory.data() + memory.size() - static_cast<std::size_t>(scratch_bytes);
  scratch -= reinterpret_cast<std::uintptr_t>(scratch) % 64;
  ErrorSlot error;
  KernelContext ctx;
  ctx.tasks = threads;
  ctx.input_descs = in;
  ctx.output_descs = out;
  ctx.inputs = in_data.data();
  ctx.outputs = out_data.data();
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  ctx.scratch_bytes = scratch;
  ctx.error = &error;
  ctx.node = "node";
  run_phases(phases ? phases(ctx) : 1, ctx, run);
}

}  // namespace graft
