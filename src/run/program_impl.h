#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"
#include "ir/program.h"
#include "plan/make_plan.h"
#include "run/program_device.h"

namespace graft {

// A tensor computed once at load from weights alone.
struct FoldedConstant {
  AlignedMemory memory;
  std::string node;
};

// One method, ready to be planned.
struct LoadedMethod {
  ir::Program ir;  // exactly one method
  MethodInfo info;
  std::vector<std::byte*> weights;        // by weight index of `ir`
  std::vector<FoldedConstant> constants;  // by index of constant inputs
  std::vector<std::uint32_t> states;      // by state index of `ir`: index into Program::Impl::states
  // Output i of the method is output user_outputs[i] of the graph (the others write states and inputs).
  std::vector<std::uint32_t> user_outputs;

  const ir::Method& graph() const { return ir.methods[0]; }
};

// A mutable buffer of the program; every session has memory of its own for it.
struct StateInfo {
  std::string fqn;
  TensorDesc desc;
  const std::byte* initial = nullptr;  // null: zeros
};

// Bounded, least recently used dropped first; full-key equality; two threads that miss one key make one plan.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}
  struct Result {
    std::shared_ptr<const Plan> plan;
    bool hit = false;
  };
  Result get(std::uint32_t method, int threads, const std::vector<std::int64_t>& key,
             const std::function<Plan()>& make);
  std::size_t size() const;
  // The plans now held, for `inspect`.
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const Plan>>> list() const;

 private:
  struct Slot;
  struct Key {
    std::uint32_t method;
    int threads;
    std::vector<std::int64_t> shape;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Slot {
    std::mutex making;
    std::shared_ptr<const Plan> plan;
    std::list<Key>::iterator used;
  };
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Slot>, KeyHash> slots_;
  std::list<Key> order_;  // most recently used first
};

struct WeightStats {
  std::uint64_t count = 0;
  std::uint64_t mapped_bytes = 0;
  std::uint64_t copied_bytes = 0;    // misaligned in the file
  std::uint64_t constant_bytes = 0;  // folded
};

struct Program::Impl {
  explicit Impl(std::size_t max_plans) : plans(max_plans) {}

  std::string source;                      // path, for messages
  std::shared_ptr<const void> keep_alive;  // the mapped files
  std::vector<LoadedMethod> methods;
  std::vector<StateInfo> states;
  std::map<std::string, AlignedMemory, std::less<>> copied_weights;  // by key
  WeightStats weight_stats;
  std::string device;
  std::unique_ptr<ProgramDevice> on_device;  // null for the CPU
  mutable PlanCache plans;

  // Index of the method. Throws NotFound, listing the methods there are.
  std::uint32_t find(std::string_view name) const;
  PlanCache::Result plan(std::uint32_t method, std::span<const InputDesc> inputs, const std::vector<std::int64_t>& key,
                         int threads) const;
};

// What an IR method takes and returns.
MethodInfo method_info(const ir::Method& method);

// Makes a program from IR that is parsed and verified, each with exactly one method: looks up weights, merges states,
// folds constants.
std::unique_ptr<Program::Impl> build_program(std::vector<ir::Program> sources, const Program::WeightLookup& weights,
                                             const LoadOptions& options, std::string source,
                                             std::shared_ptr<const void> keep_alive);

}  // namespace graft
