#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "load/program_impl.h"
#include "weight/packed_store.h"

namespace graft {

// Constants of methods: equal expressions over the same weights are computed once, and kept as long as somebody holds
// them.
class ConstantPool {
 public:
  using Memory = std::shared_ptr<const AlignedMemory>;

  // Equal expressions get equal numbers.
  std::size_t number_of(const std::string& expression) {
    return numbers_.try_emplace(expression, numbers_.size()).first->second;
  }
  // The memory of the constant with this number; null if it does not exist.
  Memory find(std::size_t number) const {
    const auto it = memory_.find(number);
    return it == memory_.end() ? nullptr : it->second.lock();
  }
  Memory keep(std::size_t number, AlignedMemory memory) {
    Memory kept = std::make_shared<const AlignedMemory>(std::move(memory));
    memory_[number] = kept;
    return kept;
  }
  // Constants that somebody holds.
  std::set<const AlignedMemory*> alive() const {
    std::set<const AlignedMemory*> found;
    for (const auto& [number, memory] : memory_)
      if (const Memory held = memory.lock()) found.insert(held.get());
    return found;
  }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::map<std::size_t, std::weak_ptr<const AlignedMemory>> memory_;
};

// What folding asks of the weights of the graph, by index.
struct FoldedWeights {
  // What stands for a weight's bytes in the pool.
  std::function<const void*(std::uint32_t weight)> identity;
  // Called once a weight has been read for constants, some megabytes of them at a time.
  std::function<void(std::uint32_t weight)> read;
  // Where constants may be that another process computed; null: nowhere. The others as in WeightPlacer.
  PackedStore* store = nullptr;
  std::function<std::optional<std::string>(std::uint32_t weight)> content;
  std::function<bool(std::uint32_t weight)> confirm;
};

// Constant folding: nodes that depend only on weights run once, here, and their results become constants of the method.
// Views stay views, and small results are computed of views too; results much larger than their inputs are left to each
// run, so that folding never costs more memory than it saves work. `graph` has one method, that of `method`, whose
// weights are placed. Returns the number of constants.
std::size_t fold_constants(ir::Program& graph, LoadedMethod& method, const PlanLimits& limits, ConstantPool& pool,
                           const FoldedWeights& weights);

// The same for a graph that was read again: which nodes are folded depends on the graph alone, and their results exist.
// Throws InvalidProgram if they do not match this graph.
std::size_t fold_again(ir::Program& graph, const LoadedMethod& method);

}  // namespace graft
