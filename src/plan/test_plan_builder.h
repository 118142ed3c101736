#pragma once

// Test only.

#include <cstdint>
#include <utility>
#include <vector>

#include "ggml.h"
#include "kernel/elementwise/elementwise.h"
#include "plan/stages.h"

namespace graft::test {

// Plans by hand: vectors of f32, one buffer each, arena buffers one after the other at multiples of 64.
class PlanBuilder {
 public:
  Tensor vector(MemoryKind memory, std::int64_t n = 16) {
    Buffer buffer;
    buffer.memory = memory;
    buffer.index = static_cast<std::uint32_t>(plan_.buffers.size());
    buffer.bytes = n * 4;
    if (memory == MemoryKind::arena) {
      if (arena_ < 0) {
        arena_ = static_cast<std::int64_t>(plan_.allocations.size());
        plan_.allocations.push_back({MemoryKind::arena, 0, 0});
      }
      buffer.allocation = static_cast<std::uint32_t>(arena_);
      Allocation& arena = plan_.allocations[buffer.allocation];
      buffer.offset = arena.bytes;
      arena.bytes = plan_.arena_bytes = (buffer.offset + buffer.bytes + 63) / 64 * 64;
    } else {
      buffer.allocation = static_cast<std::uint32_t>(plan_.allocations.size());
      plan_.allocations.push_back({memory, buffer.index, buffer.bytes});
    }
    plan_.buffers.push_back(buffer);
    Tensor t;
    t.buffer = static_cast<BufferId>(plan_.buffers.size() - 1);
    t.desc = TensorDesc(DType::f32, {n});
    return t;
  }
  Tensor matrix(MemoryKind memory, std::int64_t rows, std::int64_t columns) {
    Tensor t = vector(memory, rows * columns);
    t.desc = TensorDesc(DType::f32, {rows, columns});
    return t;
  }
  void device(std::vector<Tensor> inputs, const Tensor& out, int op = GGML_OP_ADD) {
    Launch launch;
    launch.ggml_op = op;
    launch.inputs = std::move(inputs);
    launch.outputs = {out};
    launch.on_device = launch.on_host_too = true;
    plan_.launches.push_back(launch);
  }
  void host(std::vector<Tensor> inputs, const Tensor& out) {
    Launch launch;
    launch.ggml_op = GGML_OP_CUSTOM;
    launch.kernel = &kElementwise;
    launch.inputs = std::move(inputs);
    launch.outputs = {out};
    plan_.launches.push_back(launch);
  }
  Plan uncut() {
    plan_.commit_begin = static_cast<std::uint32_t>(plan_.launches.size());
    return plan_;
  }
  Plan cut() {
    plan_.commit_begin = static_cast<std::uint32_t>(plan_.launches.size());
    cut_stages(plan_, 64);
    return plan_;
  }

 private:
  Plan plan_;
  std::int64_t arena_ = -1;
};

}  // namespace graft::test
