#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/aligned.h"
#include "device/program_device.h"
#include "graft/graft.h"
#include "ir/program.h"
#include "kernel/matmul/packed_pairs_vec.h"
#include "load/phases.h"
#include "load/placement.h"
#include "pass/graph/partition.h"
#include "pass/pipeline.h"
#include "plan/make_plan.h"
#include "plan/stored_plan.h"
#include "weight/weights.h"

namespace graft {

// Decodes one method of the program again, as it was before folding.
using ReadMethod = std::function<ir::Program(std::size_t method)>;

// A tensor computed once at load from weights alone.
struct FoldedConstant {
  std::shared_ptr<const AlignedMemory> memory;  // shared by all methods that have it
  std::string node;
};

// One method, ready to be planned and run.
struct LoadedMethod {
  MethodInfo info;
  // By weight index of the loaded graph: the file's weights first, then their conversions.
  std::vector<std::byte*> weights;
  // Stored types of the file's weights, as found, and their sizes in the graph.
  std::vector<Stored> stored;
  std::vector<std::size_t> panel_bytes;  // 0: not in panels
  std::vector<std::size_t> weight_bytes;
  std::vector<FoldedConstant> constants;  // by index of constant inputs
  std::vector<std::uint32_t> states;      // by state index of the graph: index into ProgramImpl::states
  bool has_kv_cache = false;              // one of these is a cache of keys and values: its sizes end the plans' keys
  // Output i of the method is output user_outputs[i] of the graph (the others write states and inputs).
  std::vector<std::uint32_t> user_outputs;
  // The method of the package and its part (pass/graph/partition.h); the method itself is part 0.
  std::uint32_t source = 0;
  std::uint32_t part = 0;
  // The steps of a run of a cut method; parts are indices into ProgramImpl::methods. Empty: the method has plans.
  std::vector<Step> steps;
  struct Signature {
    std::size_t values = 0;
    std::vector<ir::Input> inputs;
    std::vector<ir::Arg> outputs;  // by position
  };
  Signature signature;             // of a cut method
  std::vector<PassReport> passes;  // over its graph during load

  // Needed only for planning.
  struct Graph {
    std::mutex mutex;
    std::shared_ptr<const ir::Program> kept;  // exactly one method, constants folded; null after shrink()
    std::weak_ptr<const ir::Program> made;    // read again; alive while somebody plans with it
  };
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
};

// Whether kinds, dtypes and ranks are the method's: what remains to check once the sizes are known to fit.
bool same_types(const MethodInfo& method, std::span<const InputDesc> inputs);

// A mutable buffer of the program; every session has its own memory for it.
struct StateInfo {
  ir::State state;
  const std::byte* initial = nullptr;  // null: zeros
};

// Bounded LRU cache with full-key equality; two threads that miss the same key make one plan.
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
  // Forgets all plans; those that somebody uses or makes stay theirs.
  void clear();
  // The cached plans, for `inspect`.
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
    std::shared_ptr<const Plan> plan;  // written under both mutexes, read under either
    std::list<Key>::iterator used;
  };
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Slot>, KeyHash> slots_;
  std::list<Key> order_;  // most recently used first
};

// Bytes of the plan in the host's memory.
std::uint64_t host_bytes(const Plan& plan);

class LoadedModel;  // loaded_model.h

// Gives the library's own code access to its public classes.
struct Internal {
  using ProgramImpl = Program::Impl;
  using ArenaImpl = Arena::Impl;
  using StatesImpl = States::Impl;
  using SessionImpl = Session::Impl;
  static const ProgramImpl& of(const Program& program) { return *program.impl_; }
  static ArenaImpl& of(const Arena& arena) { return *arena.impl_; }
  static StatesImpl& of(const States& states) { return *states.impl_; }
  static const SessionImpl& of(const Session& session) { return *session.impl_; }
  static std::shared_ptr<const Program> program(std::unique_ptr<ProgramImpl> impl);
};
using ProgramImpl = Internal::ProgramImpl;

struct Program::Impl {
  // The caller may change his tensors, and their weights are not copied: then no linear layer is packed.
  explicit Impl(const LoadOptions& options)
      : limits{options.max_plan_bytes, options.max_plan_launches},
        max_graph_calls(static_cast<std::uint64_t>(options.max_graph_calls)),
        matmul_precision(options.matmul_precision),
        pack_linear_layers(options.pack_weights && options.tensors.empty()),
        adapters(options.max_adapter_rank > 0 ? std::make_shared<AdapterLayers>(options.max_adapter_rank) : nullptr),
        plans(std::make_shared<PlanCache>(options.max_plans)),
        cpu_plans(std::make_shared<PlanCache>(options.max_plans)),
        is_delegate(!options.delegate_of.empty()) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  std::string source;                                    // path, for messages
  std::vector<std::shared_ptr<const MappedFile>> files;  // the package first
  std::shared_ptr<const void> keep_alive;                // of the caller's memory
  ReadMethod read_method;
  // The package's methods first, then the parts of cut ones.
  std::vector<LoadedMethod> methods;
  std::size_t public_methods = 0;
  PartitionOptions partition;
  std::vector<StateInfo> states;
  std::vector<std::shared_ptr<const AlignedMemory>> made_weights;  // copies and conversions
  std::vector<std::span<const std::byte>> placed;                  // weights where they were found
  std::shared_ptr<LoadedModel> model;                              // of programs with the same weights
  ProgramStats weight_stats;                                       // counts and bytes of weights and constants
  std::string device;
  std::shared_ptr<ProgramDevice> on_device;  // null for the CPU
  Placement placement;                       // of weights and states, where there is a device
  std::unique_ptr<ProgramDevice> plain;      // ggml's CPU ops, without LoadOptions::fast_kernels
  // What a state file depends on: SHA-256 of methods, states and weights by name and type and, if known, content.
  std::array<std::uint8_t, 32> fingerprint{};
  std::vector<StoredPlan> stored_plans;  // those of the package that were made for this machine
  PlanLimits limits;
  std::uint64_t max_graph_calls;
  MatmulPrecision matmul_precision;
  bool pack_linear_layers;
  OtherStages others;  // of a model in stages
  // Filled by the load; null: runs have no adapters (LoadOptions::max_adapter_rank).
  std::shared_ptr<AdapterLayers> adapters;
  std::shared_ptr<PlanCache> plans;      // of programs with the same files and options
  std::shared_ptr<PlanCache> cpu_plans;  // of a device's program, for sessions that left the device
  bool is_delegate;
  // Those that sessions of this program have asked for: the cache may be shared with other programs.
  mutable std::mutex own_plans_mutex;
  mutable std::vector<std::pair<std::uint32_t, std::weak_ptr<const Plan>>> own_plans;  // with their methods
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const Plan>>> list_own_plans() const;
  mutable PhaseLog phases;
  mutable std::atomic<std::uint64_t> graph_bytes_freed = 0;
  mutable std::atomic<std::uint64_t> graphs_read_again = 0;
  mutable std::atomic<std::uint64_t> plans_made = 0, plans_loaded = 0, plans_stale = 0;

  bool has_kv_cache() const;
  bool has_recurrent_states() const;
  PassOptions pass_options() const {
    return {.on_device = on_device != nullptr,
            .plain = plain != nullptr,
            .pack_linear_layers = pack_linear_layers,
            .others = &others,
            .adapters = adapters.get(),
            .in_bf16 = matmul_precision == MatmulPrecision::medium && simd::packed_pairs() != nullptr,
            .halves_as_stored =
                matmul_precision == MatmulPrecision::medium || (on_device != nullptr && on_device->multiplies_halves()),
            .computes_angles = on_device != nullptr && on_device->computes_angles()};
  }
  // Index of the method. Throws NotFound, listing the program's methods.
  std::uint32_t find(std::string_view name) const;
  // `leaves_device`: for a session of a device's program that goes on on the CPU.
  PlanCache::Result plan(std::uint32_t method, std::span<const InputDesc> inputs, const std::vector<std::int64_t>& key,
                         int threads, const KvOptions& kv, const KvExtent& extent, bool leaves_device = false) const;
  const StoredPlan* stored_plan(std::uint32_t method, const std::vector<std::int64_t>& key, int threads) const;
  // How many numbers of a plan's key are input sizes.
  std::size_t size_count(std::uint32_t method, const std::vector<std::int64_t>& key) const {
    return key.size() - (methods[method].has_kv_cache ? kKvKeyNumbers : 0);
  }
  // The graph of a method (one method, constants folded), read again if it was dropped. Throws InvalidProgram if the
  // files changed since the load. Thread-safe.
  std::shared_ptr<const ir::Program> graph(std::uint32_t method) const;
  // Throws InvalidArgument naming the input that the method does not accept.
  void check_inputs(std::uint32_t method, std::span<const InputDesc> inputs) const;
  void shrink() const;
  ProgramStats stats() const;
};

// The signature of an IR method.
MethodInfo method_info(const ir::Method& method);
// By position of a user output: its index among the method's outputs.
std::vector<std::uint32_t> user_outputs(const ir::Method& method);

// Reads elements of a graph's weights, which must be placed.
UniformWeight uniform_weights(const ir::Program& graph, const LoadedMethod& method);

// Makes a program from graphs with one method each: the phases of a load after the files are opened. Calls `find` once
// per key; `read_method` must return the same graphs again.
std::unique_ptr<ProgramImpl> build_program(std::vector<ir::Program> sources, const FindWeight& find,
                                           const ReadMethod& read_method, const LoadOptions& options,
                                           std::string source);

}  // namespace graft
