#include "load/fold.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "base/check.h"
#include "exec/executor.h"
#include "op/operator.h"
#include "op/user.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

// Limits the bytes of all folded results together: a chain of nodes that each double could grow without bound.
constexpr std::int64_t kMaxGrowthOfAll = 8;
constexpr std::int64_t kAlwaysKeptOfAll = 512 * 1024;
// Of a result that is computed of views of constants: large weights, such as those of experts, are read where they lie.
constexpr std::int64_t kOfViews = std::int64_t{1} << 20;
// Bytes of results computed at once; the weights they were computed from may leave memory afterwards.
constexpr std::int64_t kAtOnce = std::int64_t{16} << 20;

std::int64_t budget_of(const ir::Program& graph) {
  std::int64_t bytes = 0;
  std::set<std::string_view> keys;
  for (const ir::Weight& weight : graph.weights)
    if (keys.insert(weight.key).second) bytes += static_cast<std::int64_t>(weight.byte_size);
  return bytes > ir::kUnbounded / 16 ? bytes : kAlwaysKeptOfAll + bytes * kMaxGrowthOfAll;
}

bool is_static(const ir::Value& value) {
  return std::all_of(value.dims.begin(), value.dims.end(), [](const ir::Dim& d) { return d.is_static(); });
}

std::int64_t static_bytes(const ir::Value& value) {
  auto bytes = static_cast<std::int64_t>(byte_size(value.dtype));
  for (const ir::Dim& d : value.dims)
    if (__builtin_mul_overflow(bytes, d.min, &bytes)) return ir::kUnbounded;
  return bytes;
}

class Folder {
 public:
  explicit Folder(ir::Program& graph)
      : graph_(graph),
        method_(graph.methods[0]),
        constant_(method_.values.size()),
        view_(constant_),
        budget_(budget_of(graph)) {}

  // Removes the constant nodes from the graph. `evaluate` gets them as a method whose only inputs are weights, and the
  // ids of its results, which become inputs of the rest.
  template <typename Evaluate>
  void run(Evaluate&& evaluate) {
    for (const ir::Input& input : method_.inputs) constant_[input.value] = input.kind == ir::InputKind::weight;
    // Views stay views, but those that constants are computed of are needed beside these.
    std::vector<bool> folded(method_.nodes.size(), false), viewed(folded), needed(folded);
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      viewed[i] = views_constants(method_.nodes[i]);
      folded[i] = !viewed[i] && foldable(method_.nodes[i]);
      for (ir::ValueId id : method_.nodes[i].outputs) {
        constant_[id] = folded[i] || viewed[i];
        view_[id] = viewed[i];
      }
    }
    if (std::none_of(folded.begin(), folded.end(), [](bool f) { return f; })) {
      evaluate(ir::Method{}, std::vector<ir::ValueId>{});
      return;
    }
    const auto writes_any = [&](std::size_t i, const std::vector<bool>& of) {
      return std::ranges::any_of(method_.nodes[i].outputs, [&](ir::ValueId id) { return of[id]; });
    };
    std::vector<bool> computed_of(method_.values.size(), false);
    for (std::size_t i = method_.nodes.size(); i-- > 0;) {
      needed[i] = viewed[i] && writes_any(i, computed_of);
      if (folded[i] || needed[i]) ir::for_each_value(method_.nodes[i], [&](ir::ValueId id) { computed_of[id] = true; });
    }

    // The values that the rest of the method still reads; views that nothing else reads are no part of it.
    std::vector<bool> read(method_.values.size(), false);
    const auto mark = [&](ir::ValueId id) { read[id] = true; };
    for (const ir::Output& output : method_.outputs) ir::for_each_value(output.arg, mark);
    std::vector<bool> stays(method_.nodes.size(), false);
    for (std::size_t i = method_.nodes.size(); i-- > 0;) {
      stays[i] = !folded[i] && (!needed[i] || writes_any(i, read));
      if (stays[i]) ir::for_each_value(method_.nodes[i], mark);
    }

    ir::Method constants = method_;
    constants.outputs.clear();
    constants.nodes.clear();
    constants.user_input_names.clear();
    std::vector<ir::Node> rest;
    std::vector<ir::ValueId> results;
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      if (stays[i]) rest.push_back(method_.nodes[i]);
      if (folded[i])
        for (ir::ValueId id : method_.nodes[i].outputs) {
          if (!read[id]) continue;
          ir::Output output;
          output.arg = ir::Arg::of_value(id);
          output.index = static_cast<std::uint32_t>(results.size());
          constants.outputs.push_back(output);
          results.push_back(id);
        }
      if (folded[i] || needed[i]) constants.nodes.push_back(std::move(method_.nodes[i]));
    }
    std::erase_if(constants.inputs, [](const ir::Input& input) { return input.kind != ir::InputKind::weight; });
    evaluate(constants, results);
    for (std::size_t i = 0; i < results.size(); ++i)
      method_.inputs.push_back({results[i], ir::InputKind::constant, static_cast<std::uint32_t>(i)});
    method_.nodes = std::move(rest);
  }

 private:
  // Adds up the bytes of constant tensors; false if one of them is not constant.
  bool constant_bytes(const ir::Arg& arg, std::int64_t& bytes, bool& of_views) const {
    if (arg.is_value()) {
      if (!constant_[arg.value()]) return false;
      of_views = of_views || view_[arg.value()];
      if (__builtin_add_overflow(bytes, static_bytes(method_.values[arg.value()]), &bytes)) return false;
    }
    return std::all_of(arg.items.begin(), arg.items.end(),
                       [&](const ir::Arg& item) { return constant_bytes(item, bytes, of_views); });
  }

  bool views_constants(const ir::Node& node) const {
    const Operator* op = find_operator(graph_.op_of(node).target);
    std::int64_t in = 0;
    bool of_views = false;
    return op != nullptr && op->view &&
           std::ranges::all_of(node.args, [&](const ir::Arg& arg) { return constant_bytes(arg, in, of_views); }) &&
           std::ranges::all_of(node.outputs, [&](ir::ValueId id) {
             return method_.values[id].kind == ir::ValueKind::tensor && is_static(method_.values[id]);
           });
  }

  bool foldable(const ir::Node& node) {
    const Operator* op = find_operator(graph_.op_of(node).target);
    if (!op || op->view || op->random) return false;
    std::int64_t in = 0;
    bool of_views = false;
    for (const ir::Arg& arg : node.args)
      if (!constant_bytes(arg, in, of_views)) return false;
    std::int64_t out = 0;
    for (ir::ValueId id : node.outputs) {
      const ir::Value& value = method_.values[id];
      if (value.kind != ir::ValueKind::tensor || !is_static(value)) return false;
      if (__builtin_add_overflow(out, static_bytes(value), &out)) return false;
    }
    if (out > budget_ || !is_kept_at_load(in, out) || (of_views && out > kOfViews)) return false;
    budget_ -= out;
    return true;
  }

  ir::Program& graph_;
  ir::Method& method_;
  std::vector<bool> constant_, view_;  // by value; view_: of those, views
  std::int64_t budget_;
};

// The results of a method that reads only weights.
std::vector<AlignedMemory> evaluate(const ir::Program& graph, const ir::Method& constants,
                                    std::span<std::byte* const> weights, const PlanLimits& limits) {
  PlanOptions options;
  options.max_threads = 1;  // the session's number of threads is not known yet
  options.limits = limits;
  const auto plan = std::make_shared<const Plan>(make_plan(graph, constants, {}, options));
  std::vector<std::size_t> sizes;
  for (const PlanOutput& out : plan->outputs) sizes.push_back(out.desc.byte_count());
  std::vector<AlignedMemory> memory = AlignedMemory::together_on_huge_pages(sizes);
  const AlignedMemory arena(static_cast<std::size_t>(plan->arena_bytes));
  std::vector<std::byte*> bases;
  for (const Allocation& a : plan->allocations) {
    switch (a.memory) {
      case MemoryKind::weight:
        bases.push_back(weights[a.index]);
        break;
      case MemoryKind::arena:
        bases.push_back(arena.data());
        break;
      case MemoryKind::output:
        bases.push_back(memory[a.index].data());
        break;
      default:
        GRAFT_ASSERT(false);
    }
  }
  RunControl control;
  const std::unique_ptr<Executor> executor = make_executor(plan, 1, control);
  executor->bind(bases);
  executor->run();
  GRAFT_CHECK(InvalidProgram, !control.error.failed(), "method '", constants.name,
              "': constant folding failed: ", control.error.message());
  return memory;
}

// The expression of each value of a method that reads only weights: by number in the pool, and by a digest that is
// equal in other processes.
class Expressions {
 public:
  Expressions(const ir::Program& graph, const ir::Method& constants, const FoldedWeights& weights, ConstantPool& pool)
      : numbers_(constants.values.size()), digests_(constants.values.size()) {
    std::set<ir::ValueId> read;
    for (const ir::Node& node : constants.nodes) ir::for_each_value(node, [&](ir::ValueId id) { read.insert(id); });
    for (const ir::Input& input : constants.inputs) {
      if (!read.contains(input.value)) continue;
      const ir::Weight& weight = graph.weights[input.index];
      const std::string as = str(" ", static_cast<int>(weight.storage), " ", name(weight.dtype), " ", weight.block_type,
                                 " ", constants.values[input.value].str());
      numbers_[input.value] = pool.number_of(str("weight ", weights.identity(input.index), as));
      if (weights.store == nullptr) continue;
      if (const auto content = weights.content(input.index))
        digests_[input.value] = weights.store->digest(str("weight ", *content, as));
    }
    for (const ir::Node& node : constants.nodes) {
      const ir::Op& op = graph.op_of(node);
      const auto text_with = [&](const auto& name_of) {
        std::string text = op.target;
        for (std::size_t a = 0; a < node.args.size(); ++a)
          text += str(" ", op.arg_names[a], "=", text_of(node.args[a], name_of));
        return text;
      };
      std::string text = text_with([&](ir::ValueId id) { return str(numbers_[id]); });
      // Sub-graphs are not compared: such a node equals no other. Operators of the user are known to this process only.
      const bool has_graph = std::ranges::any_of(node.args, [](const ir::Arg& arg) { return contains_graph(arg); });
      if (has_graph) text += str(" ", static_cast<const void*>(&graph), " ", node.name);
      bool told = weights.store != nullptr && !has_graph && find_user_operator(op.target) == nullptr;
      ir::for_each_value(node, [&](ir::ValueId id) { told = told && digests_[id].has_value(); });
      const std::string description =
          told ? text_with([&](ir::ValueId id) { return hex(*digests_[id]); }) : std::string();
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        const std::string value = str(" ", i, " ", constants.values[node.outputs[i]].str());
        numbers_[node.outputs[i]] = pool.number_of(text + value);
        if (told) digests_[node.outputs[i]] = weights.store->digest(description + value);
      }
    }
  }
  std::size_t of(ir::ValueId value) const { return numbers_[value]; }
  const std::optional<Digest>& digest_of(ir::ValueId value) const { return digests_[value]; }

 private:
  static bool contains_graph(const ir::Arg& arg) {
    return arg.is_graph() || std::ranges::any_of(arg.items, contains_graph);
  }

  template <typename NameOf>
  static std::string text_of(const ir::Arg& arg, const NameOf& name_of) {
    if (arg.is_value()) return str("%", name_of(arg.value()));
    std::string text = str(static_cast<int>(arg.kind), ":", arg.i, ":", std::bit_cast<std::uint64_t>(arg.f), ":",
                           arg.s.size(), ":", arg.s, "[");
    for (const ir::Arg& item : arg.items) text += text_of(item, name_of) + ",";
    return text + "]";
  }

  std::vector<std::size_t> numbers_;
  std::vector<std::optional<Digest>> digests_;
};

// The method reduced to these results.
ir::Method cut_to(const ir::Method& constants, const std::vector<ir::ValueId>& results) {
  ir::Method cut = constants;
  cut.outputs.clear();
  std::vector<bool> read(cut.values.size(), false);
  for (const ir::ValueId id : results) {
    ir::Output output;
    output.arg = ir::Arg::of_value(id);
    output.index = static_cast<std::uint32_t>(cut.outputs.size());
    cut.outputs.push_back(output);
    read[id] = true;
  }
  for (auto node = cut.nodes.rbegin(); node != cut.nodes.rend(); ++node) {
    if (std::ranges::any_of(node->outputs, [&](ir::ValueId id) { return read[id]; }))
      ir::for_each_value(*node, [&](ir::ValueId id) { read[id] = true; });
    else
      node->outputs.clear();
  }
  std::erase_if(cut.nodes, [](const ir::Node& node) { return node.outputs.empty(); });
  return cut;
}

}  // namespace

// Whether the weights that these nodes read are what they are called.
bool confirmed(const ir::Method& constants, const FoldedWeights& weights) {
  std::set<ir::ValueId> values;
  for (const ir::Node& node : constants.nodes) ir::for_each_value(node, [&](ir::ValueId id) { values.insert(id); });
  return std::ranges::all_of(constants.inputs, [&](const ir::Input& input) {
    return !values.contains(input.value) || weights.confirm(input.index);
  });
}

// Moves to the store what it keeps.
void keep_in_store(std::vector<AlignedMemory>& memory, const std::vector<ir::ValueId>& results,
                   const Expressions& expressions, PackedStore& store) {
  bool any = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (const auto& digest = expressions.digest_of(results[i])) memory[i] = store.keep(*digest, std::move(memory[i]));
    any = any || memory[i].in_file();
  }
  if (!any) return;
  // The others would keep the block that all were computed into.
  for (AlignedMemory& small : memory) {
    if (small.in_file()) continue;
    AlignedMemory copy(small.size());
    if (small.size() > 0) std::memcpy(copy.data(), small.data(), small.size());
    small = std::move(copy);
  }
}

std::size_t fold_constants(ir::Program& graph, LoadedMethod& method, const PlanLimits& limits, ConstantPool& pool,
                           const FoldedWeights& weights) {
  Folder(graph).run([&](const ir::Method& constants, const std::vector<ir::ValueId>& results) {
    if (results.empty()) return;
    const Expressions expressions(graph, constants, weights, pool);
    std::vector<ir::ValueId> missing;
    std::map<std::size_t, ConstantPool::Memory> memory_of;  // by number of the expression
    for (const ir::ValueId id : results) {
      const auto [entry, first] = memory_of.try_emplace(expressions.of(id), nullptr);
      if (!first || (entry->second = pool.find(expressions.of(id)))) continue;
      const std::optional<Digest>& digest = expressions.digest_of(id);
      const auto bytes = static_cast<std::size_t>(static_bytes(constants.values[id]));
      std::optional<AlignedMemory> stored = digest ? weights.store->find(*digest, bytes) : std::nullopt;
      if (stored) {
        entry->second = pool.keep(expressions.of(id), *std::move(stored));
      } else {
        missing.push_back(id);
      }
    }
    for (std::size_t begin = 0; begin < missing.size();) {
      std::vector<ir::ValueId> some;
      for (std::int64_t bytes = 0; begin < missing.size() && bytes < kAtOnce; ++begin) {
        some.push_back(missing[begin]);
        bytes += static_bytes(constants.values[missing[begin]]);
      }
      const ir::Method cut = cut_to(constants, some);
      std::vector<AlignedMemory> memory = evaluate(graph, cut, method.weights, limits);
      const auto kept = [&](const AlignedMemory& made) { return weights.store->keeps(made.size()); };
      if (weights.store != nullptr && std::ranges::any_of(memory, kept) && confirmed(cut, weights))
        keep_in_store(memory, some, expressions, *weights.store);
      for (std::size_t i = 0; i < some.size(); ++i)
        memory_of[expressions.of(some[i])] = pool.keep(expressions.of(some[i]), std::move(memory[i]));
      std::set<ir::ValueId> values;
      for (const ir::Node& node : cut.nodes) ir::for_each_value(node, [&](ir::ValueId id) { values.insert(id); });
      for (const ir::Input& input : cut.inputs)
        if (values.contains(input.value)) weights.read(input.index);
    }
    if (weights.store != nullptr && weights.store->records() && confirmed(constants, weights))
      for (const ir::ValueId id : results)
        if (const auto& digest = expressions.digest_of(id))
          weights.store->recorded(*digest, memory_of[expressions.of(id)]);
    for (const ir::ValueId id : results)
      method.constants.push_back({memory_of[expressions.of(id)], graph.methods[0].values[id].name});
  });
  return method.constants.size();
}

std::size_t fold_again(ir::Program& graph, const LoadedMethod& method) {
  Folder(graph).run([&](const ir::Method&, const std::vector<ir::ValueId>& results) {
    bool same = results.size() == method.constants.size();
    for (std::size_t i = 0; same && i < results.size(); ++i) {
      const FoldedConstant& constant = method.constants[i];
      const ir::Value& value = graph.methods[0].values[results[i]];
      same = value.name == constant.node && static_cast<std::int64_t>(constant.memory->size()) == static_bytes(value);
    }
    GRAFT_CHECK(InvalidProgram, same, "method '", method.info.name,
                "': the program changed since it was loaded: other constants are folded");
  });
  return method.constants.size();
}

}  // namespace graft
