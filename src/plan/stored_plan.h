#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/arena.h"
#include "plan/plan.h"

// Plans made ahead of time, as packages hold them. Only what planning decides is stored: where each buffer of the arena
// lies. Launches are always lowered from the verified graph, so a file can name no kernel and no argument of one, and
// every offset is checked against the lifetimes that follow from the graph before it is used.
namespace graft {

// What the engine and the machine must have in common with those that made a plan.
struct PlanOrigin {
  std::string version;       // of graft and of ggml
  std::string device;        // "cpu"
  std::string instructions;  // "avx512, products avx512vnni"
  bool operator==(const PlanOrigin&) const = default;
};
PlanOrigin plan_origin(const std::string& device);

struct StoredPlan {
  std::string method;
  int threads = 1;                  // sizes of scratch depend on it
  std::vector<std::int64_t> sizes;  // the plan's key without the sizes of a cache of keys and values
  std::vector<Lifetime> lifetimes;  // of the arena's buffers, in the order of the plan's buffers
  std::vector<std::int64_t> offsets;
  std::int64_t arena_bytes = 0;
};

// `size_count`: how many numbers of the plan's key are sizes of inputs.
StoredPlan stored_plan_of(const Plan& plan, std::string method, int threads, std::size_t size_count);

std::vector<std::byte> encode(const StoredPlan& plan, const PlanOrigin& origin);
// nullopt for a plan of another origin or format. Throws InvalidProgram, beginning with `label`, for bytes that are no
// plan or damaged.
std::optional<StoredPlan> decode_stored_plan(std::span<const std::byte> bytes, const PlanOrigin& origin,
                                             const std::string& label);

// Whether the plan is of exactly these buffers.
bool fits(const StoredPlan& plan, std::span<const Lifetime> lifetimes);
// Throws InvalidProgram naming what is wrong with the offsets of a plan that fits: beyond the arena, misaligned, or two
// buffers that share a byte while both are alive.
void check_layout(const StoredPlan& plan, std::int64_t alignment);

}  // namespace graft
