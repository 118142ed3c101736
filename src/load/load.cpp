#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "base/rethrow.h"
#include "base/sha256.h"
#include "device/device.h"
#include "device/device_budget.h"
#include "exec/cpus.h"
#include "graft/graft.h"
#include "kernel/matmul/block_matmul.h"
#include "kernel/matmul/low_rank.h"
#include "kernel/simd/cpu_check.h"
#include "load/fold.h"
#include "load/loaded_model.h"
#include "load/placement.h"
#include "load/program_impl.h"
#include "lowering/kv_shape.h"
#include "op/operator.h"
#include "op/rows.h"
#include "package/package.h"
#include "plan/stored_plan.h"
#include "weight/packed_store.h"
#include "weight/stored_weight.h"
#include "weight/weight_placer.h"

namespace graft {
namespace {

// FlatBuffers reads scalars in place; ExecuTorch aligns segments to at least 16.
constexpr std::size_t kPackageAlignment = 16;

// Prefix of the keys of named data that hold plans.
constexpr std::string_view kPlanKey = "graft.plan.";

// What pack() adds to the name of a package.
constexpr const char* kPackedSuffix = ".packed";

void check_operators(const ir::Program& program) {
  const ir::Method& method = program.methods[0];
  for (const ir::Node& node : method.nodes) {
    const Refusal reason = refuse(NodeView(program, method, node));
    GRAFT_CHECK(Unsupported, reason.empty(), "method '", method.name, "': node ", node.name, " (",
                program.op_of(node).target, ") cannot run: ", reason);
  }
}

// Opens files as the options say.
OpenFile opener(const LoadOptions& options) {
  return [&options](const std::string& path) -> std::shared_ptr<const MappedFile> {
    const auto check = [&](std::uint64_t bytes) {
      GRAFT_CHECK(Unsupported, bytes <= static_cast<std::uint64_t>(options.max_file_bytes), "'", path, "' has ", bytes,
                  " bytes, at most ", options.max_file_bytes, " are allowed (max_file_bytes)");
    };
    if (!options.map) {
      check(MappedFile::size_of(path));  // before anything is read
      return MappedFile::read_in(path);
    }
    auto file = MappedFile::open(path);
    check(file->bytes().size());
    return file;
  };
}

// Of the sub-graphs too.
std::int64_t node_count(const ir::Program& program) {
  std::size_t count = 0;
  for (const auto* list : {&program.methods, &program.subgraphs})
    for (const ir::Method& method : *list) count += method.nodes.size();
  return static_cast<std::int64_t>(count);
}

void check_nodes(std::int64_t nodes, const LoadOptions& options, const std::string& source) {
  GRAFT_CHECK(Unsupported, nodes <= options.max_nodes, source, " has ", nodes, " nodes, at most ", options.max_nodes,
              " are allowed (max_nodes)");
}

void append(std::vector<PassReport>& to, std::vector<PassReport> more) {
  to.insert(to.end(), more.begin(), more.end());
}

// A program during the phases of its load. Everything is freed if one of them throws.
class Loader {
 public:
  Loader(const LoadOptions& options, std::string source)
      : options_(options),
        impl_(std::make_unique<ProgramImpl>(options)),
        placer_(options.verify_hashes, resolve_threads(0), impl_->made_weights, impl_->weight_stats) {
    for (const auto& [limit, name] :
         {std::pair(options.max_file_bytes, "max_file_bytes"), std::pair(options.max_nodes, "max_nodes"),
          std::pair(options.max_graph_calls, "max_graph_calls"), std::pair(options.max_state_bytes, "max_state_bytes"),
          std::pair(options.max_adapter_rank, "max_adapter_rank")})
      GRAFT_CHECK(InvalidArgument, limit >= 0, name, " must not be negative, got ", limit);
    GRAFT_CHECK(InvalidArgument, options.max_adapter_rank <= kMaxAdapterRank, "max_adapter_rank is ",
                options.max_adapter_rank, ", expected at most ", kMaxAdapterRank);
    check_ggml();
    simd::check_cpu();
    install_ggml_log();
    impl_->source = std::move(source);
    impl_->keep_alive = options.keep_alive;
    impl_->partition.merge = options.merge_segments;
    const DeviceChoice choice = resolve_device(options.device);
    impl_->device = choice.name;
    layers_ = choice.layers;
    if (ggml_backend_dev_t device = find_device(impl_->device))
      impl_->on_device = std::make_shared<ProgramDevice>(device, impl_->device);
    if (!options.fast_kernels && !impl_->on_device)
      impl_->plain = std::make_unique<ProgramDevice>(cpu_device(), impl_->device);
  }

  ProgramImpl& impl() { return *impl_; }

  // Runs one phase. `work` opens, decodes or checks what only the caller knows, and returns the bytes to report.
  void phase(std::string_view name, const std::function<std::uint64_t()>& work) {
    run_phase(impl_->phases, options_, name, work);
  }

  // The graphs, valid and with one method each. Parts of cut methods follow after all of them.
  void set_graphs(std::vector<ir::Program> wholes) {
    std::vector<std::vector<Part>> parts;
    std::vector<std::vector<PassReport>> reports;  // of whole methods
    for (ir::Program& whole : wholes) {
      independent_rows_.push_back(rows_are_independent(whole, whole.methods[0]));  // of ATen's operators alone
      GraphPasses passes{whole, impl_->pass_options(), impl_->partition};
      reports.push_back(run_graph_passes(PassStage::read, passes));
      verify_weights(whole);
      check_operators(whole);
      append(reports.back(), run_graph_passes(PassStage::cut, passes));
      parts.push_back(std::move(passes.parts));
    }
    impl_->public_methods = parts.size();
    std::size_t behind = parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<std::uint32_t> index = {static_cast<std::uint32_t>(i)};
      for (std::size_t p = 1; p < parts[i].size(); ++p) index.push_back(static_cast<std::uint32_t>(behind++));
      for (Part& part : parts[i])
        for (Step& step : part.steps)
          for (std::uint32_t& named : step.parts) named = index[named];
    }
    const auto take = [&](std::size_t source, std::size_t p) {
      Part& part = parts[source][p];
      if (p > 0 && part.steps.empty()) ir::verify(part.graph, UINT64_MAX);
      LoadedMethod method;
      method.source = static_cast<std::uint32_t>(source);
      method.part = static_cast<std::uint32_t>(p);
      method.steps = std::move(part.steps);
      if (p == 0) method.passes = std::move(reports[source]);
      if (!method.steps.empty()) {
        const ir::Method& whole = part.graph.methods[0];
        method.signature.values = whole.values.size();
        method.signature.inputs = whole.inputs;
        for (const std::uint32_t position : user_outputs(whole))
          method.signature.outputs.push_back(whole.outputs[position].arg);
      }
      impl_->methods.push_back(std::move(method));
      graphs_.push_back(std::move(part.graph));
    };
    for (std::size_t i = 0; i < parts.size(); ++i) take(i, 0);
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (std::size_t p = 1; p < parts[i].size(); ++p) take(i, p);
  }
  const std::vector<ir::Program>& graphs() const { return graphs_; }

  // Before weights are placed. Programs with these sources of weights share what is made of them; none: nobody else
  // has this program's.
  void share(LoadedModel::Sources sources) {
    impl_->model = LoadedModel::of(std::move(sources), settings());
    sharing_ = std::unique_lock(impl_->model->mutex);
    placer_.share(impl_->model->weights);
  }
  // The same for a delegate, whose weights lie in another place in each program that ExecuTorch has loaded. `graph`
  // tells the methods of a program apart.
  void share_by_content(std::string graph) {
    LoadedModel::Claims claims;
    for (const ir::Program& program : graphs_)
      for (const ir::Weight& weight : program.weights)
        claims.try_emplace(weight.key, std::pair(weight.sha256, weight.byte_size));
    impl_->model = LoadedModel::of_content(settings() + " " + options_.delegate_of, std::move(claims));
    graph_ = std::move(graph);
    sharing_ = std::unique_lock(impl_->model->mutex);
    placer_.share(impl_->model->weights, [this](const ir::Weight& weight, const FoundWeight& found) {
      return impl_->model->identity(weight.key, found.bytes, *impl_);
    });
  }

  std::uint64_t host_bytes() const {
    std::uint64_t bytes = 0;
    for (const ir::Program& graph : graphs_) bytes += ir::host_bytes(graph);
    return bytes;
  }

  std::vector<const ir::Weight*> weights() const {
    std::vector<const ir::Weight*> out;
    for (const ir::Program& graph : graphs_)
      for (const ir::Weight& weight : graph.weights) out.push_back(&weight);
    return out;
  }

  std::uint64_t place_weights(const FindWeight& find) {
    for (std::size_t g = 0; g < graphs_.size(); ++g) {
      ir::Program& graph = graphs_[g];
      LoadedMethod& method = impl_->methods[g];
      method.info = method_info(graph.methods[0]);
      method.info.segments = std::max<std::size_t>(method.steps.size(), 1);
      method.info.independent_rows = g < independent_rows_.size() && independent_rows_[g];
      std::vector<FoundWeight> found;
      for (ir::Weight& weight : graph.weights) {
        found.push_back(placer_.find(weight, find));
        method.weight_bytes.push_back(static_cast<std::size_t>(weight.byte_size));
        method.stored.push_back(*found.back().stored);
        set_stored(weight, *found.back().stored);
      }
      GraphPasses passes{graph, impl_->pass_options()};
      append(method.passes, run_graph_passes(PassStage::stored, passes));
      method.weights.assign(graph.weights.size(), nullptr);
      converted_.emplace_back();
      for (const ConvertedWeight& c : passes.converted) {
        method.weights[c.weight] = placer_.converted(graph.weights[c.weight], found[c.source]);
        converted_.back().emplace(c.weight, c.source);
      }
      for (std::size_t i = 0; i < found.size(); ++i)
        if (!method.weights[i]) method.weights[i] = place(graph, i, found[i]);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const ir::Weight& weight = graph.weights[i];
        method.panel_bytes.push_back(weight.storage == ir::Storage::panels ? weight.byte_size : 0);
      }
      found_.push_back(std::move(found));
    }
    return impl_->weight_stats.weight_bytes;
  }

  // Weights still in blocks are read by operators that also take panels, stacks of matrices by kExpertLinear.
  std::byte* place(ir::Program& graph, std::size_t index, const FoundWeight& found) {
    ir::Weight& weight = graph.weights[index];
    const bool matrices = weight.shape.rank() == 2 || (weight.shape.rank() == 3 && are_experts(graph, index));
    const bool panels = !impl_->on_device && options_.pack_weights && options_.fast_kernels &&
                        !found.stored->is_plain() && matrices && weight.shape.numel() > 0 &&
                        readable_panels(found.stored->block);
    return panels ? placer_.in_panels(weight, found) : placer_.as_stored(weight, found);
  }

  // Whether the matrices of a stack have whole panels, and kExpertLinear alone reads them.
  static bool are_experts(const ir::Program& graph, std::size_t weight) {
    if (graph.weights[weight].shape[1] % kPanelColumns != 0) return false;
    const ir::Method& method = graph.methods[0];
    std::set<ir::ValueId> values;  // that are the weight
    for (const ir::Input& input : method.inputs)
      if (input.kind == ir::InputKind::weight && input.index == weight) values.insert(input.value);
    return std::ranges::all_of(method.nodes, [&](const ir::Node& node) {
      bool reads = false;
      ir::for_each_value(node, [&](ir::ValueId id) { reads |= values.contains(id); });
      return !reads || graph.op_of(node).target == "graft.expert_linear.default";
    });
  }

  // The package's plans, under keys that begin with kPlanKey. Plans of another origin are skipped.
  void set_others(OtherStages others) { impl_->others = std::move(others); }
  void take_plans(const WeightFile& data) {
    if (!options_.stored_plans || !options_.fast_kernels || impl_->adapters) return;
    const PlanOrigin origin = plan_origin(impl_->device);
    for (auto it = data.tensors.lower_bound(kPlanKey); it != data.tensors.end(); ++it) {
      if (!it->first.starts_with(kPlanKey)) break;
      std::optional<StoredPlan> plan =
          decode_stored_plan(it->second.bytes, origin, str(impl_->source, ": stored plan '", it->first, "'"));
      if (!plan) {
        ++impl_->plans_stale;
        log(LogLevel::info, str("stored plan '", it->first, "' was made by another version or for another machine"));
        continue;
      }
      const bool known =
          std::ranges::any_of(graphs_, [&](const ir::Program& g) { return g.methods[0].name == plan->method; });
      if (!known && !options_.methods.empty()) continue;  // of a method that is not loaded
      GRAFT_CHECK(InvalidProgram, known, impl_->source, ": stored plan '", it->first, "' is of method '", plan->method,
                  "', which there is not");
      impl_->stored_plans.push_back(*std::move(plan));
    }
  }

  std::uint64_t fold() {
    ConstantPool& pool = impl_->model->constants;
    const std::set<const AlignedMemory*> of_others = pool.alive();
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      LoadedMethod& method = impl_->methods[i];
      if (!method.steps.empty()) continue;
      GraphPasses passes{graphs_[i], impl_->pass_options()};
      const UniformWeight uniform = uniform_weights(graphs_[i], method);
      passes.uniform = [&](std::uint32_t weight) {
        const std::optional<double> value = uniform(weight);
        seen_ += str(" ", i, ":", weight, "=", value ? std::bit_cast<std::uint64_t>(*value) : 0, value.has_value());
        return value;
      };
      passes.fold = [&] { return fold_constants(graphs_[i], method, impl_->limits, pool, folded_weights(i)); };
      append(method.passes, run_graph_passes(PassStage::placed, passes));
      check_operators(graphs_[i]);
      append(method.passes, run_graph_passes(PassStage::fold, passes));
    }
    std::set<const AlignedMemory*> counted;
    for (const LoadedMethod& method : impl_->methods) {
      for (const FoldedConstant& constant : method.constants) {
        const AlignedMemory* memory = constant.memory.get();
        if (!counted.insert(memory).second) continue;
        impl_->weight_stats.constant_bytes += memory->size();
        if (of_others.contains(memory)) impl_->weight_stats.shared_bytes += memory->size();
      }
    }
    place_on_device();
    release_weights();
    if (impl_->is_delegate) impl_->model->release_sources();
    share_plans();
    sharing_ = {};
    return impl_->weight_stats.constant_bytes;
  }

  std::uint64_t place_states() {
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      LoadedMethod& method = impl_->methods[i];
      for (const ir::State& state : graphs_[i].states) method.states.push_back(place_state(state, method));
      method.has_kv_cache = has_kv_cache(graphs_[i].states);
      method.user_outputs = user_outputs(graphs_[i].methods[0]);
    }
    std::uint64_t bytes = 0;
    const auto most = static_cast<std::uint64_t>(options_.max_state_bytes);
    std::uint64_t plain = 0;
    for (const StateInfo& state : impl_->states) {
      const std::uint64_t more = state_desc(state.state, {}).byte_count();
      bytes += more;
      if (state.state.kind != ir::StateKind::plain) continue;
      plain = __builtin_add_overflow(plain, more, &plain) ? UINT64_MAX : plain;
      GRAFT_CHECK(Unsupported, plain <= most, "the states up to '", state.state.fqn, "' take ", plain,
                  " bytes, at most ", most, " are allowed (max_state_bytes)");
    }
    impl_->fingerprint = fingerprint();
    return bytes;
  }

  // Before weights are placed: looks for what is made of them in this file (not for an empty path), and in the folder
  // of the options. Not for devices, which have memory of their own.
  void find_packed(const std::string& beside, bool hash_content) {
    if (impl_->on_device || !options_.map) return;
    const char* named = std::getenv("GRAFT_PACKED_FOLDER");
    const std::string folder = !options_.packed_folder.empty() || named == nullptr ? options_.packed_folder : named;
    if (!options_.packed_files || (beside.empty() && folder.empty())) return;
    make_store();
    if (!beside.empty()) store_->add_file(beside);
    store_->set_folder(folder);
    placer_.use(&*store_, hash_content);
  }
  // Instead: remembers what is made, for write_packed().
  void record_packed() {
    GRAFT_CHECK(Unsupported, !impl_->on_device, "weights are packed for the CPU, not for device '", impl_->device, "'");
    make_store();
    store_->record();
    placer_.use(&*store_, /*hash_content=*/false);
  }
  PackedInfo write_packed(const std::string& path) const {
    GRAFT_CHECK(InvalidProgram, placer_.unconfirmed().empty(), placer_.unconfirmed(),
                " is not what the package states: its SHA-256 is another one");
    return store_->write(path);
  }

  std::unique_ptr<ProgramImpl> finish(ReadMethod read_method) {
    if (store_) {
      store_->finish();
      impl_->weight_stats.packed_file_bytes = store_->used_bytes();
      impl_->weight_stats.packed_files_written = store_->written();
      impl_->weight_stats.packed_files_refused = store_->refused();
      impl_->weight_stats.packed_refusal = store_->refusal();
    }
    impl_->read_method = std::move(read_method);
    impl_->placed = placer_.placed();
    for (std::size_t i = 0; i < graphs_.size(); ++i)
      impl_->methods[i].graph->kept = std::make_shared<const ir::Program>(std::move(graphs_[i]));
    impl_->model->add_user(*impl_);
    return std::move(impl_);
  }

 private:
  void make_store() {
    const PlanOrigin origin = plan_origin(impl_->device);
    store_.emplace(str(origin.version, "; ", origin.device, "; ", origin.instructions, "; ", settings()),
                   options_.verify_hashes);
  }

  FoldedWeights folded_weights(std::size_t graph) {
    const auto source = [this, graph](std::uint32_t weight) {
      const std::map<std::uint32_t, std::uint32_t>& converted = converted_[graph];
      const auto of = converted.find(weight);
      return of == converted.end() ? weight : of->second;
    };
    FoldedWeights out;
    out.identity = [this, graph](std::uint32_t weight) -> const void* {
      if (weight >= found_[graph].size()) return impl_->methods[graph].weights[weight];  // a conversion
      return placer_.identity(graphs_[graph].weights[weight], found_[graph][weight]);
    };
    out.read = [this, graph](std::uint32_t weight) {
      if (weight >= found_[graph].size()) return;
      // Other readers page the bytes in again.
      const FoundWeight& found = found_[graph][weight];
      if (found.file) found.file->release(found.bytes);
    };
    if (!store_) return out;
    out.store = &*store_;
    out.content = [this, graph, source](std::uint32_t weight) -> std::optional<std::string> {
      const std::uint32_t of = source(weight);
      const FoundWeight& found = found_[graph].at(of);
      std::optional<std::string> content = placer_.content(graphs_[graph].weights[of], found);
      if (content && of != weight) content = str("f32 of ", found.stored->str(), " ", *content);
      return content;
    };
    out.confirm = [this, graph, source](std::uint32_t weight) {
      const std::uint32_t of = source(weight);
      return placer_.confirm(graphs_[graph].weights[of], found_[graph].at(of));
    };
    return out;
  }

  // Which weights and states the device has no room for. Constants go there first; an eighth is left for runs.
  void place_on_device() {
    if (!impl_->on_device) return;
    std::vector<PlacedTensor> tensors;
    for (std::size_t g = 0; g < graphs_.size(); ++g)
      for (std::size_t i = 0; i < graphs_[g].weights.size(); ++i) {
        const ir::Weight& weight = graphs_[g].weights[i];
        tensors.push_back({weight.fqn.empty() ? weight.key : weight.fqn, impl_->methods[g].weights[i],
                           static_cast<std::size_t>(weight.byte_size)});
      }
    const std::size_t available = DeviceBudget::available(impl_->on_device->handle()) / 8 * 7;
    const std::size_t constants = static_cast<std::size_t>(impl_->weight_stats.constant_bytes);
    // Caches as large as by default: sessions are not known yet.
    for (const StateInfo& state : impl_->states)
      tensors.push_back({state.state.fqn, nullptr, state_desc(state.state, KvOptions()).byte_count()});
    impl_->placement = place_layers(tensors, layers_, available - std::min(available, constants));
  }

  // What constants depend on beside weights.
  std::string settings() const {
    return str(static_cast<int>(options_.matmul_precision), options_.fast_kernels, " ", impl_->device);
  }

  // Plans follow from the graphs after passes, and these from what they were before, from options and from the weights
  // that passes looked at. Which ops a device runs is asked of this program's own handle of it.
  void share_plans() {
    if (impl_->on_device || impl_->plain) return;
    std::string methods;  // plans name methods by number
    for (const ir::Program& graph : graphs_) methods += graph.methods[0].name + '\n';
    impl_->plans =
        impl_->model->plans(str(graph_, " ", methods, options_.pack_weights, options_.stored_plans, " ",
                                options_.merge_segments, " ", options_.max_plan_bytes, " ", options_.max_plan_launches,
                                " ", options_.max_plans, " ", options_.max_adapter_rank, seen_),
                            options_.max_plans);
  }

  // Releases the pages of weights that only constants were computed from.
  void release_weights() {
    std::map<const std::byte*, bool> read;  // by address: some graph still reads it
    for (std::size_t m = 0; m < graphs_.size(); ++m) {
      const std::vector<bool> uses = used_weights(graphs_[m]);
      for (std::size_t i = 0; i < found_[m].size(); ++i) {
        const bool in_place = impl_->methods[m].weights[i] == found_[m][i].bytes.data();
        read[found_[m][i].bytes.data()] |= uses[i] || !in_place;
      }
    }
    for (const std::vector<FoundWeight>& found : found_) {
      for (const FoundWeight& weight : found) {
        bool& kept = read[weight.bytes.data()];
        if (kept || weight.bytes.empty()) continue;
        kept = true;  // once
        impl_->weight_stats.released_bytes += weight.bytes.size();
        if (weight.file) weight.file->release(weight.bytes);
      }
    }
    found_.clear();
  }

  static std::vector<bool> used_weights(const ir::Program& graph) {
    const ir::Method& method = graph.methods[0];
    std::vector<bool> values(method.values.size(), false), weights(graph.weights.size(), false);
    const auto mark = [&](ir::ValueId id) { values[id] = true; };
    for (const ir::Node& node : method.nodes) ir::for_each_value(node, mark);
    for (const ir::Output& output : method.outputs) ir::for_each_value(output.arg, mark);
    for (const ir::Input& input : method.inputs)
      if (input.kind == ir::InputKind::weight && values[input.value]) weights[input.index] = true;
    for (const ir::State& state : graph.states)
      if (state.initial >= 0) weights[static_cast<std::size_t>(state.initial)] = true;
    return weights;
  }

  std::uint32_t place_state(const ir::State& state, const LoadedMethod& method) {
    const std::byte* initial = state.initial >= 0 ? method.weights[static_cast<std::size_t>(state.initial)] : nullptr;
    std::vector<StateInfo>& states = impl_->states;
    for (std::uint32_t i = 0; i < states.size(); ++i) {
      const ir::State& known = states[i].state;
      if (known.fqn != state.fqn) continue;
      GRAFT_CHECK(InvalidProgram,
                  known.dtype == state.dtype && known.shape == state.shape && known.kind == state.kind &&
                      known.windows == state.windows,
                  "state '", state.fqn, "' is ", TensorDesc(known.dtype, known.shape).str(), " in one method and ",
                  TensorDesc(state.dtype, state.shape).str(), " in method '", method.info.name, "'");
      return i;
    }
    states.push_back({state, initial});
    return static_cast<std::uint32_t>(states.size() - 1);
  }

  std::array<std::uint8_t, 32> fingerprint() const {
    std::string text;
    for (const ir::Program& graph : graphs_) {
      text += "method " + graph.methods[0].name + "\n";
      for (const ir::Weight& weight : graph.weights) {
        text += str("weight ", weight.fqn, " ", name(weight.dtype), weight.shape.str(), " ");
        text.append(weight.sha256.begin(), weight.sha256.end());
      }
    }
    for (const StateInfo& state : impl_->states)
      text += str("state ", state.state.fqn, " ", state_desc(state.state, {}).str(), "\n");
    return sha256(std::as_bytes(std::span(text)));
  }

  const LoadOptions& options_;
  std::optional<std::int64_t> layers_;  // that the device is to have
  std::unique_ptr<ProgramImpl> impl_;
  WeightPlacer placer_;
  std::unique_lock<std::recursive_mutex> sharing_;  // from share() to the end of fold()
  std::optional<PackedStore> store_;
  std::vector<std::map<std::uint32_t, std::uint32_t>> converted_;  // by graph: the weight that a conversion was made of
  std::string graph_;                                              // of a delegate
  std::string seen_;                                               // what passes asked of the values of weights
  std::vector<ir::Program> graphs_;
  std::vector<bool> independent_rows_;           // by public method
  std::vector<std::vector<FoundWeight>> found_;  // by graph and weight, until constants are folded
};

std::uint64_t host_bytes(const WeightFile& file) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) bytes += sizeof(name) + sizeof(tensor) + name.size();
  return bytes;
}

// Called at the end of a load that records what it makes of weights.
using LoadEnd = std::function<void(const Loader& loader)>;

std::shared_ptr<const Program> load_package(const std::function<std::shared_ptr<const MappedFile>()>& open,
                                            const std::string& source, const std::string& beside,
                                            const LoadOptions& options, const LoadEnd& end = nullptr) {
  Loader loader(options, source);
  std::shared_ptr<const MappedFile> file;
  Package package;
  std::vector<std::size_t> in_file;  // by method: its index there
  loader.phase("parse", [&] {
    file = open();
    package = read_package(file, options.methods);
    std::uint64_t bytes = 0;
    std::int64_t nodes = 0;
    for (const PackageMethod& method : package.methods) {
      bytes += ir::host_bytes(method.program);
      nodes += node_count(method.program);
    }
    check_nodes(nodes, options, source);
    return bytes;
  });
  loader.phase("verify", [&] {
    verify(package, static_cast<std::uint64_t>(options.max_graph_calls));
    std::vector<ir::Program> graphs;
    for (PackageMethod& method : package.methods) {
      in_file.push_back(method.index);
      GRAFT_CHECK(Unsupported, method.fully_delegated, source, ": method '", method.name,
                  "' needs ExecuTorch's runtime, graft alone cannot run it: ", method.refusal);
      graphs.push_back(std::move(method.program));
    }
    loader.set_graphs(std::move(graphs));
    loader.take_plans(package.data);
    return 0;
  });
  std::vector<std::string> weight_files = options.weights;
  if (weight_files.empty() && options.tensors.empty()) weight_files = weight_files_of(package.data);
  loader.set_others(other_stages_of(package.data));
  std::optional<WeightStore> store(std::move(package.data));
  loader.phase("weights", [&] {
    for (const std::string& path : weight_files) store->add_files(path, opener(options));
    store->add_memory(options.tensors);
    store->check(loader.weights());
    LoadedModel::Sources sources;
    if (options.tensors.empty()) {
      for (const WeightFile& from : store->files())
        if (!from.file->is_memory()) sources.push_back(from.file);
      if (sources.size() != store->files().size()) sources.clear();
    }
    loader.share(std::move(sources));
    if (end) {
      loader.record_packed();
    } else {
      loader.find_packed(beside, /*hash_content=*/false);
    }
    const std::uint64_t bytes = loader.place_weights([&](const ir::Weight& weight) { return store->find(weight); });
    store->check_memory_used();
    return bytes;
  });
  loader.phase("constants", [&] { return loader.fold(); });
  loader.phase("states", [&] { return loader.place_states(); });
  loader.phase("shrink", [&] {
    std::uint64_t bytes = 0;
    for (const WeightFile& from : store->files()) {
      from.file->check_unchanged();  // the checked file is still the mapped one
      loader.impl().files.push_back(from.file);
      bytes += host_bytes(from);
    }
    store.reset();
    if (end) end(loader);
    return bytes;
  });
  return Internal::program(loader.finish([file, in_file](std::size_t method) {
    PackageMethod again = read_method(file, in_file[method]);
    GRAFT_CHECK(InvalidProgram, again.fully_delegated, "method '", again.name, "' of '", file->path(),
                "' changed on disk since it was loaded");
    return std::move(again.program);
  }));
}

ir::Program method_of(ir::Program program, std::size_t method) {
  ir::Method one = std::move(program.methods[method]);
  program.methods.clear();
  program.methods.push_back(std::move(one));
  return program;
}

}  // namespace

std::unique_ptr<ProgramImpl> build_program(std::vector<ir::Program> sources, const FindWeight& find,
                                           const ReadMethod& read_method, const LoadOptions& options,
                                           std::string source) {
  Loader loader(options, std::move(source));
  loader.phase("verify", [&] {
    loader.set_graphs(std::move(sources));
    return 0;
  });
  loader.share({});
  loader.phase("weights", [&] { return loader.place_weights(find); });
  loader.phase("constants", [&] { return loader.fold(); });
  loader.phase("states", [&] { return loader.place_states(); });
  return loader.finish(read_method);
}

std::shared_ptr<const Program> Program::from_ir(std::span<const std::byte> blob, const WeightLookup& weights,
                                                const LoadOptions& options) try {
  GRAFT_CHECK(InvalidArgument, options.weights.empty() && options.tensors.empty(),
              "from_ir takes its weights from the lookup alone, got files or memory besides");
  Loader loader(options, "the IR");
  const auto kept = std::make_shared<const std::vector<std::byte>>(blob.begin(), blob.end());
  ir::Program parsed;
  loader.phase("parse", [&] {
    parsed = ir::parse(*kept);
    check_nodes(node_count(parsed), options, "the IR");
    return ir::host_bytes(parsed);
  });
  loader.phase("verify", [&] {
    ir::verify(parsed, static_cast<std::uint64_t>(options.max_graph_calls));
    std::vector<ir::Program> graphs;
    for (std::size_t i = 0; i < parsed.methods.size(); ++i)
      graphs.push_back(method_of(parsed.methods.size() == 1 ? std::move(parsed) : parsed, i));
    loader.set_graphs(std::move(graphs));
    return 0;
  });
  loader.phase("weights", [&] {
    if (options.delegate_of.empty()) {
      loader.share({});
    } else {
      const auto digest = sha256(*kept);
      loader.share_by_content({reinterpret_cast<const char*>(digest.data()), digest.size()});
      loader.find_packed("", /*hash_content=*/true);
    }
    std::map<std::string, std::span<const std::byte>, std::less<>> answers;
    return loader.place_weights([&](const ir::Weight& weight) {
      auto known = answers.find(weight.key);
      if (known == answers.end())
        known = answers.emplace(weight.key, call_back([&] { return weights(weight.key); })).first;
      FoundWeight found{known->second, FoundWeight::Origin::file, "the data"};
      check_size(weight, found);
      return found;
    });
  });
  loader.phase("constants", [&] { return loader.fold(); });
  loader.phase("states", [&] { return loader.place_states(); });
  loader.phase("shrink", [&] { return std::uint64_t{0}; });
  return Internal::program(loader.finish([kept](std::size_t method) { return method_of(ir::parse(*kept), method); }));
} catch (...) {
  rethrow_typed();
}

MatmulPrecision matmul_precision_named(std::string_view name) try {
  if (name == "medium") return MatmulPrecision::medium;
  GRAFT_CHECK(InvalidArgument, name == "highest" || name == "high",
              "the precision of matrix products must be highest, high or medium, got '", name, "'");
  return MatmulPrecision::highest;
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const Program> Program::load(const std::string& path, const LoadOptions& options) try {
  return load_package([&] { return opener(options)(path); }, path, path + kPackedSuffix, options);
} catch (...) {
  rethrow_typed();
}

PackedInfo pack(const std::string& package, const std::string& output, const LoadOptions& options) try {
  GRAFT_CHECK(InvalidArgument, options.tensors.empty(), "weights in memory of the caller are not packed");
  PackedInfo info;
  load_package(
      [&] { return opener(options)(package); }, package, "", options,
      [&](const Loader& loader) { info = loader.write_packed(output.empty() ? package + kPackedSuffix : output); });
  return info;
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const Program> Program::load_memory(std::span<const std::byte> package,
                                                    const LoadOptions& options) try {
  const std::string label = "the package in memory";
  return load_package(
      [&] {
        GRAFT_CHECK(InvalidArgument,
                    package.empty() || reinterpret_cast<std::uintptr_t>(package.data()) % kPackageAlignment == 0, label,
                    " must be aligned to ", kPackageAlignment, " bytes, its address is ",
                    static_cast<const void*>(package.data()));
        return MappedFile::of_memory(package, label, options.keep_alive);
      },
      label, "", options);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
