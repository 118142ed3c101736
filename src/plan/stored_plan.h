#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/arena.h"
#include "plan/plan.h"

// Plans stored in packages. Only decisions of the planner are stored: the offsets of the arena's buffers. Launches are
// always lowered from the verified graph, so a file can name neither a kernel nor its arguments, and every offset is
// checked against the lifetimes derived from the graph before it is used.
namespace graft {

// What engine and machine must match before a stored plan is used.
struct PlanOrigin {
  std::string version;       // of graft and of ggml
  std::string device;        // "cpu"
  std::string instructions;  // "avx512, products avx512vnni"
  bool operator==(const PlanOrigin&) const = default;
};
PlanOrigin plan_origin(const std::string& device);

struct StoredPlan {
  std::string method;
  int threads = 1;                  // scratch sizes depend on it
  std::vector<std::int64_t> sizes;  // the plan's key without the sizes of a KV cache
  std::vector<Lifetime> lifetimes;  // of the arena's buffers, in the order of the plan's buffers
  std::vector<std::int64_t> offsets;
  std::int64_t arena_bytes = 0;
};

// `size_count`: how many numbers of the plan's key are input sizes.
StoredPlan stored_plan_of(const Plan& plan, std::string method, int threads, std::size_t size_count);

std::vector<std::byte> encode(const StoredPlan& plan, const PlanOrigin& origin);
// nullopt for a plan of another origin or format. Throws InvalidProgram, its message beginning with `label`, for bytes
// that are damaged or no plan.
std::optional<StoredPlan> decode_stored_plan(std::span<const std::byte> bytes, const PlanOrigin& origin,
                                             const std::string& label);

// Whether the plan is for exactly these buffers.
bool fits(const StoredPlan& plan, std::span<const Lifetime> lifetimes);
// Throws InvalidProgram if the layout of a plan that fits is invalid: an offset beyond the arena or misaligned, or two
// live buffers that share a byte.
void check_layout(const StoredPlan& plan, std::int64_t alignment);

}  // namespace graft
