#include "pass/graph/kv_cache.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/check.h"
#include "kernel/attention/cached_attention.h"
#include "op/host.h"
#include "pass/graph/cache_states.h"

namespace graft {
namespace {

constexpr std::string_view kAttentionTarget = "graft.attention.default";

// Operators with a recurrent state, what they become, and the sizes of a row's state.
struct Recurrence {
  std::string_view target, cached;
  std::string_view name;  // of the state
  struct Size {
    std::string_view argument;
    int dim;
    std::int64_t less = 0, times = 1;
  };
  std::vector<Size> sizes;
};
const Recurrence kRecurrences[] = {
    {"graft.causal_conv1d.default", "graft.cached_causal_conv1d", "conv", {{"weight", 0, 1}, {"x", 2}}},
    {"graft.gated_delta_rule.cached",
     "graft.cached_gated_delta_rule",
     "delta",
     {{"value", 2}, {"key", 3}, {"value", 3}}},
    {"graft.selective_scan.cached", "graft.cached_selective_scan", "scan", {{"x", 2}, {"x", 3}, {"b", 3}}},
    {"graft.diagonal_scan.cached", "graft.cached_diagonal_scan", "diagonal", {{"x", 2}}},
    {"graft.wkv.cached", "graft.cached_wkv", "wkv", {{"key", 2, 0, 3}}},
};

const Recurrence* recurrence_of(std::string_view target) {
  const auto* found = std::ranges::find(kRecurrences, target, &Recurrence::target);
  return found == std::end(kRecurrences) ? nullptr : found;
}

std::size_t index_of(const std::vector<std::string>& names, std::string_view name) {
  const auto it = std::ranges::find(names, name);
  GRAFT_CHECK(InvalidProgram, it != names.end(), kAttentionTarget, " has no argument '", name, "'");
  return static_cast<std::size_t>(it - names.begin());
}

ir::Arg& argument(const ir::Program& program, ir::Node& node, std::string_view name) {
  return node.args[index_of(program.op_of(node).arg_names, name)];
}

// Whether the node has the argument, and not None.
bool has_argument(const ir::Program& program, const ir::Node& node, std::string_view name) {
  const std::vector<std::string>& names = program.op_of(node).arg_names;
  const auto it = std::ranges::find(names, name);
  return it != names.end() && node.args[static_cast<std::size_t>(it - names.begin())].kind != ir::Arg::Kind::none;
}

bool is_attention(const ir::Program& program, const ir::Node& node) {
  return program.op_of(node).target == kAttentionTarget;
}

// What the layers of the program's attention nodes need: windows, in positions, the token itself included (0:
// unlimited), and which layers a run may skip, since they are in a branch of torch.cond.
class Layers {
 public:
  explicit Layers(const ir::Program& program) {
    for (const ir::Method& method : program.methods) add(program, method);
    for (const ir::Method& graph : program.subgraphs) {
      add(program, graph);
      for (const ir::Node& node : graph.nodes)
        if (is_attention(program, node)) skipped_.insert(number(program, node, "layer"));
    }
    for (const auto& [layer, ring_window] : windows_)
      if (ring_window > 0 && std::ranges::find(all_windows_, ring_window) == all_windows_.end() &&
          all_windows_.size() < kMaxWindows)
        all_windows_.push_back(ring_window);
    columns_.assign(skipped_.begin(), skipped_.end());
  }

  const std::vector<std::int64_t>& windows() const { return all_windows_; }
  // The widest window of the layer's nodes; 0 also for one that is not in windows().
  std::int64_t window_of(std::int64_t layer) const {
    const auto it = windows_.find(layer);
    return it != windows_.end() && std::ranges::find(all_windows_, it->second) != all_windows_.end() ? it->second : 0;
  }
  // Layers with a length of their own, by their column of the state `kv.layer_length`.
  const std::vector<std::int64_t>& columns() const { return columns_; }
  std::optional<std::int64_t> column_of(std::int64_t layer) const {
    const auto it = std::ranges::find(columns_, layer);
    return it == columns_.end() ? std::nullopt : std::optional<std::int64_t>(it - columns_.begin());
  }

 private:
  static std::int64_t number(const ir::Program& program, const ir::Node& node, std::string_view name) {
    const ir::Arg& arg = node.args[index_of(program.op_of(node).arg_names, name)];
    return arg.kind == ir::Arg::Kind::integer ? std::max<std::int64_t>(arg.i, 0) : 0;
  }
  // Whether tokens of the layer see all of their blocks, here or in another method, which no ring of its window holds.
  static bool whole_blocks(const ir::Program& program, const ir::Node& node) {
    if (!has_argument(program, node, "whole_blocks")) return false;
    return node.args[index_of(program.op_of(node).arg_names, "whole_blocks")].i != 0;
  }
  // A layer's window is the widest of its nodes.
  void add(const ir::Program& program, const ir::Method& graph) {
    for (const ir::Node& node : graph.nodes) {
      if (!is_attention(program, node)) continue;
      const std::int64_t window = number(program, node, "window"), chunk = number(program, node, "chunk");
      std::int64_t ring_window = window > 0 && chunk > 0 ? std::min(window, chunk) : std::max(window, chunk);
      if (whole_blocks(program, node)) ring_window = 0;
      const auto [it, fresh] = windows_.try_emplace(number(program, node, "layer"), ring_window);
      if (!fresh) it->second = it->second == 0 || ring_window == 0 ? 0 : std::max(it->second, ring_window);
    }
  }

  std::map<std::int64_t, std::int64_t> windows_;
  std::vector<std::int64_t> all_windows_;
  std::set<std::int64_t> skipped_;
  std::vector<std::int64_t> columns_;
};

// Where attention nodes are: the method, or a graph that a torch.cond of it calls, which gets positions and states as
// operands.
class Scope {
 public:
  Scope(ir::Method& graph, Scope* caller, std::size_t node) : graph_(graph), caller_(caller), node_(node) {}

  ir::Method& graph() { return graph_; }
  Scope* caller() { return caller_; }
  ir::Node& node() { return caller_->graph_.nodes[node_]; }  // the torch.cond

  // The graph's own value for one of the method's.
  ir::ValueId own(const ir::Method& method, ir::ValueId id) {
    if (caller_ == nullptr) return id;
    const auto [it, fresh] = own_.try_emplace(id, 0);
    if (!fresh) return it->second;
    const ir::ValueId given = caller_->own(method, id);
    std::vector<ir::Arg>& operands = node().args[3].items;
    const auto is_given = [&](const ir::Arg& arg) { return arg.is_value() && arg.value() == given; };
    auto at = std::ranges::find_if(operands, is_given);
    if (at == operands.end()) at = operands.insert(at, ir::Arg::of_value(given));
    const auto index = static_cast<std::uint32_t>(at - operands.begin());
    for (const ir::Input& input : graph_.inputs)
      if (input.index == index) return it->second = input.value;
    std::vector<std::string>& names = graph_.user_input_names;
    names.resize(std::max<std::size_t>(names.size(), index + 1));
    it->second = static_cast<ir::ValueId>(graph_.values.size());
    graph_.values.push_back(method.values[id]);
    graph_.inputs.push_back({it->second, ir::InputKind::user, index});
    return it->second;
  }

 private:
  ir::Method& graph_;
  Scope* caller_;
  std::size_t node_;
  std::map<ir::ValueId, ir::ValueId> own_;  // by the method's
};

class KvCache {
 public:
  KvCache(ir::Program& program, ir::Method& method, const Layers& layers)
      : program_(program), method_(method), layers_(layers), states_(program, method) {}

  // Returns the number of nodes that got their states.
  std::size_t run() {
    Scope& whole = scopes_.emplace_back(method_, nullptr, 0);
    std::set<std::int64_t> seen;
    find(whole, seen);
    if (found_.empty()) return 0;
    const ir::ValueId given = handed(found_[0], "cache_position");
    for (const Found& found : found_)
      GRAFT_CHECK(InvalidProgram, handed(found, "cache_position") == given, where(found),
                  " has a cache_position of its own; all nodes with a cache must share one");
    std::optional<ir::ValueId> blocks;
    for (const Found& found : found_) {
      if (!has_argument(program_, node_of(found), "blocks")) continue;
      const ir::ValueId own = handed(found, "blocks");
      GRAFT_CHECK(InvalidProgram, !blocks || *blocks == own, where(found),
                  " has blocks of its own; all nodes with a cache must share them");
      blocks = own;
    }
    const ir::ValueId length = states_.add_state("kv.length", ir::StateKind::kv_length, DType::i64, {any_size()});
    const std::vector<ir::Dim> first_dims = {any_size(), fixed_size(std::ssize(layers_.windows()))};
    std::optional<ir::ValueId> first, layer_length;
    if (!layers_.windows().empty())
      first = states_.add_state("kv.first", ir::StateKind::kv_first, DType::i64, first_dims, layers_.windows());
    if (!layers_.columns().empty())
      layer_length = states_.add_state("kv.layer_length", ir::StateKind::kv_layer_length, DType::i64,
                                       {any_size(), fixed_size(std::ssize(layers_.columns()))}, layers_.columns());
    const bool recurrent = std::ranges::any_of(found_, &Found::recurrence);
    std::optional<ir::ValueId> half;
    if (recurrent)
      half = states_.add_state("kv.recurrent_half", ir::StateKind::recurrent_half, DType::i64, {any_size()});
    const ir::ValueId position = states_.add_value("cache_position_checked", DType::i64, method_.values[given].dims);
    const ir::ValueId after = states_.add_value("kv_length_after", DType::i64, {any_size()});
    // From the last one on, so that nodes that are put in do not move those before them.
    for (std::size_t f = found_.size(); f-- > 0;)
      found_[f].recurrence ? recur(found_[f], position, *half) : attend(found_[f], position, layer_length);
    ir::Node check;
    check.name = "cache_positions";
    check.op = states_.add_op("graft.cache_positions",
                              {"position", "length", "first", "windows", "layer_length", "half", "blocks"});
    ir::Arg list;
    list.kind = ir::Arg::Kind::list;
    for (const std::int64_t ring_window : layers_.windows()) list.items.push_back(ir::Arg::of_integer(ring_window));
    const auto optional = [](std::optional<ir::ValueId> id) { return id ? ir::Arg::of_value(*id) : ir::Arg(); };
    check.args = {ir::Arg::of_value(given), ir::Arg::of_value(length), optional(first), list, optional(layer_length),
                  optional(half),           optional(blocks)};
    check.outputs = {position, after};
    states_.write_state("kv.length", after);
    if (first) {
      const ir::ValueId first_after = states_.add_value("kv_first_after", DType::i64, first_dims);
      check.outputs.push_back(first_after);
      states_.write_state("kv.first", first_after);
    }
    if (half) {
      const ir::ValueId half_after = states_.add_value("recurrent_half_after", DType::i64, {any_size()});
      check.outputs.push_back(half_after);
      states_.write_state("kv.recurrent_half", half_after);
    }
    method_.nodes.insert(method_.nodes.begin() + static_cast<std::ptrdiff_t>(first_node_), check);
    return found_.size();
  }

 private:
  struct Found {
    Scope* scope;
    std::size_t node;
    const Recurrence* recurrence = nullptr;  // null: attention
  };

  ir::Node& node_of(const Found& found) { return found.scope->graph().nodes[found.node]; }
  std::string where(const Found& found) {
    return str(found.scope->caller() == nullptr ? "method '" : "graph '", found.scope->graph().name, "': node ",
               node_of(found).name);
  }

  // Whether an earlier node of the same graph has the layer's keys and values, and they are those of this node too:
  // then both write the same.
  bool shares(const Found& found, std::int64_t layer) {
    for (const Found& earlier : std::span(found_).first(found_.size() - 1))
      if (earlier.recurrence == nullptr && earlier.scope == found.scope &&
          argument(program_, node_of(earlier), "layer").i == layer)
        return tensor_arg(earlier, "key") == tensor_arg(found, "key") &&
               tensor_arg(earlier, "value") == tensor_arg(found, "value");
    return false;
  }

  // Attention nodes of the graph and of those that it calls. `seen`: the layers of nodes that the run has passed.
  void find(Scope& scope, std::set<std::int64_t>& seen) {
    for (std::size_t n = 0; n < scope.graph().nodes.size(); ++n) {
      const std::size_t before = found_.size();
      ir::Node& node = scope.graph().nodes[n];
      const std::string_view target = program_.op_of(node).target;
      if (target == kAttentionTarget) {
        found_.push_back({&scope, n});
        const ir::Arg& layer = argument(program_, node, "layer");
        GRAFT_CHECK(InvalidProgram,
                    layer.kind == ir::Arg::Kind::integer && layer.i >= 0 &&
                        (seen.insert(layer.i).second || shares(found_.back(), layer.i)),
                    where(found_.back()), " needs a layer of its own, found ", layer.i);
      } else if (const Recurrence* recurrence = recurrence_of(target)) {
        found_.push_back({&scope, n, recurrence});
        GRAFT_CHECK(Unsupported, scope.caller() == nullptr, where(found_.back()),
                    ": a recurrent state inside of torch.cond or torch.while_loop, which runs may skip");
        GRAFT_CHECK(InvalidProgram, recurrent_.insert(name_of(found_.back())).second, where(found_.back()),
                    " needs a state of its own, found two of ", name_of(found_.back()));
      } else if (target == kCond) {
        // One of the two runs.
        std::set<std::int64_t> after = seen;
        for (const std::size_t graph : {1, 2}) {
          std::set<std::int64_t> branch = seen;
          find(scopes_.emplace_back(program_.subgraphs[static_cast<std::size_t>(node.args[graph].i)], &scope, n),
               branch);
          after.merge(branch);
        }
        seen = std::move(after);
      } else if (target == kWhileLoop) {
        for (const std::size_t graph : {0, 1}) {
          find(scopes_.emplace_back(program_.subgraphs[static_cast<std::size_t>(node.args[graph].i)], &scope, n), seen);
          GRAFT_CHECK(Unsupported, found_.size() == before, where(found_.back()),
                      ": attention over the cache inside of torch.while_loop: each round would replace the keys and "
                      "values of the round before, at the same positions");
        }
      }
      if (&scope == &scopes_.front() && found_.size() > before && before == 0) first_node_ = n;
    }
  }

  // The method's value that the node takes as this argument, common to all nodes.
  ir::ValueId handed(const Found& found, std::string_view name) {
    ir::ValueId id = tensor_arg(found, name);
    for (Scope* scope = found.scope; scope->caller() != nullptr; scope = scope->caller()) {
      const std::vector<ir::Input>& inputs = scope->graph().inputs;
      const auto input = std::ranges::find(inputs, id, &ir::Input::value);
      const bool given = input != inputs.end() && scope->node().args[3].items[input->index].is_value();
      GRAFT_CHECK(Unsupported, given, where(found), ": its ", name,
                  " is computed inside of the branch; all attention nodes must share one, which torch.cond takes as an "
                  "operand");
      id = scope->node().args[3].items[input->index].value();
    }
    return id;
  }

  ir::ValueId tensor_arg(const Found& found, std::string_view name) {
    const ir::Arg& arg = argument(program_, node_of(found), name);
    GRAFT_CHECK(InvalidProgram,
                arg.is_value() && found.scope->graph().values[arg.value()].kind == ir::ValueKind::tensor, where(found),
                ": ", name, " must be a tensor");
    return arg.value();
  }

  void attend(const Found& found, ir::ValueId position, std::optional<ir::ValueId> layer_length) {
    ir::Method& graph = found.scope->graph();
    const auto own = [&](ir::ValueId id) { return found.scope->own(method_, id); };
    const std::int64_t layer = argument(program_, node_of(found), "layer").i;
    const ir::ValueId key = own(add_cache(found, "key", layer)), value = own(add_cache(found, "value", layer));
    ir::ValueId checked = own(position);
    std::optional<ir::Node> check;
    if (const std::optional<std::int64_t> column = layers_.column_of(layer)) {
      check.emplace();
      check->name = str(node_of(found).name, ".positions");
      check->op = states_.add_op("graft.layer_positions", {"position", "layer_length", "column", "layer"});
      check->args = {ir::Arg::of_value(checked), ir::Arg::of_value(own(*layer_length)), ir::Arg::of_integer(*column),
                     ir::Arg::of_integer(layer)};
      graph.values.push_back(
          {str(check->name, "_checked"), ir::ValueKind::tensor, DType::i64, method_.values[position].dims});
      checked = static_cast<ir::ValueId>(graph.values.size() - 1);
      check->outputs = {checked};
    }
    ir::Node& node = node_of(found);
    std::vector<std::string> names = program_.op_of(node).arg_names;
    std::ranges::replace(names, "mask", "bias");  // its name, always None, in packages from before there was a bias
    argument(program_, node, "cache_position") = ir::Arg::of_value(checked);
    names.insert(names.end(), {"key_cache", "value_cache", "ring_window"});
    node.op = states_.add_op("graft.cached_attention", std::move(names));
    node.args.push_back(ir::Arg::of_value(key));
    node.args.push_back(ir::Arg::of_value(value));
    node.args.push_back(ir::Arg::of_integer(layers_.window_of(layer)));
    if (check) graph.nodes.insert(graph.nodes.begin() + static_cast<std::ptrdiff_t>(found.node), *std::move(check));
  }

  std::string name_of(const Found& found) {
    const auto number = [&](std::string_view name) {
      const ir::Arg& arg = argument(program_, node_of(found), name);
      GRAFT_CHECK(InvalidProgram, arg.kind == ir::Arg::Kind::integer && arg.i >= 0, where(found), ": ", name,
                  " must be known at export and not negative");
      return arg.i;
    };
    return str("recurrent.", number("layer"), ".", found.recurrence->name, ".", number("index"));
  }

  void recur(const Found& found, ir::ValueId position, ir::ValueId half) {
    std::vector<ir::Dim> dims = {any_size(), fixed_size(2)};
    for (const auto& [name, dim, less, times] : found.recurrence->sizes) {
      const ir::Value& value = method_.values[tensor_arg(found, name)];
      GRAFT_CHECK(InvalidProgram, value.rank() > dim && value.dims[static_cast<std::size_t>(dim)].is_static(),
                  where(found), ": size ", dim, " of ", name, " must be known, found ", value.str());
      dims.push_back(fixed_size((value.dims[static_cast<std::size_t>(dim)].min - less) * times));
    }
    const ir::ValueId state = states_.add_state(name_of(found), ir::StateKind::recurrent, DType::f32, dims);
    ir::Node& node = node_of(found);
    argument(program_, node, "cache_position") = ir::Arg::of_value(position);
    std::vector<std::string> names = program_.op_of(node).arg_names;
    names.insert(names.end(), {"state", "half"});
    node.op = states_.add_op(std::string(found.recurrence->cached), std::move(names));
    node.args.push_back(ir::Arg::of_value(state));
    node.args.push_back(ir::Arg::of_value(half));
  }

  ir::ValueId add_cache(const Found& found, std::string_view side, std::int64_t layer) {
    const ir::Value& from = found.scope->graph().values[tensor_arg(found, side)];
    GRAFT_CHECK(InvalidProgram, from.rank() == 4 && from.dims[1].is_static() && from.dims[3].is_static(), where(found),
                ": ", side, " must be [B, heads, T, size] with heads and size known, ", "found ", from.str());
    const std::vector<ir::Dim> dims = {any_size(), fixed_size(from.dims[1].min), any_size(),
                                       fixed_size(from.dims[3].min)};
    std::vector<std::int64_t> windows;
    if (const std::int64_t ring_window = layers_.window_of(layer); ring_window > 0) windows.push_back(ring_window);
    return states_.add_state(str("kv.", layer, ".", side), ir::StateKind::kv, from.dtype, dims, windows);
  }

  ir::Program& program_;
  ir::Method& method_;
  const Layers& layers_;
  CacheStates states_;
  std::deque<Scope> scopes_;  // the method first
  std::vector<Found> found_;
  std::set<std::string> recurrent_;  // the states
  std::size_t first_node_ = 0;       // of the method, that attends or calls a graph that does
};

}  // namespace

std::size_t add_kv_cache(ir::Program& program) {
  const Layers layers(program);
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += KvCache(program, method, layers).run();
  return count;
}

}  // namespace graft
