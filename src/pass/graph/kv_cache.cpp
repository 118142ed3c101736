#include "pass/graph/kv_cache.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/check.h"
#include "kernel/attention/cached_attention.h"
#include "pass/graph/cache_states.h"

namespace graft {
namespace {

constexpr std::string_view kAttentionTarget = "graft.attention.default";

std::size_t index_of(const std::vector<std::string>& names, std::string_view name) {
  const auto it = std::ranges::find(names, name);
  GRAFT_CHECK(InvalidProgram, it != names.end(), kAttentionTarget, " has no argument '", name, "'");
  return static_cast<std::size_t>(it - names.begin());
}

// Attention windows by layer, in positions, the token itself included; 0: unlimited. A layer's window is the widest of
// its methods.
class Windows {
 public:
  Windows(const ir::Program& program, bool rings) {
    if (!rings) return;
    for (const ir::Method& method : program.methods)
      for (const ir::Node& node : method.nodes) {
        if (program.op_of(node).target != kAttentionTarget) continue;
        const std::vector<std::string>& names = program.op_of(node).arg_names;
        const auto number = [&](std::string_view name) {
          const ir::Arg& arg = node.args[index_of(names, name)];
          return arg.kind == ir::Arg::Kind::integer ? std::max<std::int64_t>(arg.i, 0) : 0;
        };
        const std::int64_t window = number("window"), chunk = number("chunk");
        const std::int64_t ring_window = window > 0 && chunk > 0 ? std::min(window, chunk) : std::max(window, chunk);
        const auto [it, fresh] = by_layer_.try_emplace(number("layer"), ring_window);
        if (!fresh) it->second = it->second == 0 || ring_window == 0 ? 0 : std::max(it->second, ring_window);
      }
    for (const auto& [layer, ring_window] : by_layer_)
      if (ring_window > 0 && std::ranges::find(all_, ring_window) == all_.end() && all_.size() < kMaxWindows)
        all_.push_back(ring_window);
  }

  const std::vector<std::int64_t>& all() const { return all_; }
  // 0 also for a layer whose window is not in all().
  std::int64_t of(std::int64_t layer) const {
    const auto it = by_layer_.find(layer);
    return it != by_layer_.end() && std::ranges::find(all_, it->second) != all_.end() ? it->second : 0;
  }

 private:
  std::map<std::int64_t, std::int64_t> by_layer_;
  std::vector<std::int64_t> all_;
};

class KvCache {
 public:
  KvCache(ir::Program& program, ir::Method& method, const Windows& windows)
      : program_(program), method_(method), windows_(windows), states_(program, method) {}

  // Returns the number of attention nodes that got their states.
  std::size_t run() {
    std::vector<std::size_t> found;
    for (std::size_t n = 0; n < method_.nodes.size(); ++n)
      if (program_.op_of(method_.nodes[n]).target == kAttentionTarget) found.push_back(n);
    if (found.empty()) return 0;
    std::vector<std::string> names = program_.op_of(method_.nodes[found[0]]).arg_names;
    std::ranges::replace(names, "mask", "bias");  // its name, always None, in packages from before there was a bias
    const ir::ValueId given = tensor_arg(method_.nodes[found[0]], names, "cache_position");
    const ir::ValueId length = states_.add_state("kv.length", ir::StateKind::kv_length, DType::i64, {any_size()});
    const std::vector<std::int64_t>& windows = windows_.all();
    const std::vector<ir::Dim> first_dims = {any_size(), fixed_size(std::ssize(windows))};
    std::optional<ir::ValueId> first;
    if (!windows.empty())
      first = states_.add_state("kv.first", ir::StateKind::kv_first, DType::i64, first_dims, windows);
    const ir::ValueId position = states_.add_value("cache_position_checked", DType::i64, method_.values[given].dims);
    const ir::ValueId after = states_.add_value("kv_length_after", DType::i64, {any_size()});
    std::vector<std::string> cached_names = names;
    cached_names.insert(cached_names.end(), {"key_cache", "value_cache", "ring_window"});
    const std::uint32_t caching = states_.add_op("graft.cached_attention", std::move(cached_names));

    std::set<std::int64_t> layers;
    for (const std::size_t n : found) {
      ir::Node& node = method_.nodes[n];
      GRAFT_CHECK(InvalidProgram, tensor_arg(node, names, "cache_position") == given, "method '", method_.name,
                  "': node ", node.name, " has a cache_position of its own; all attention nodes must share one");
      const ir::Arg& given_layer = node.args[index_of(names, "layer")];
      const std::int64_t layer = given_layer.i;  // a copy: extending the arguments moves them
      GRAFT_CHECK(InvalidProgram,
                  given_layer.kind == ir::Arg::Kind::integer && layer >= 0 && layers.insert(layer).second, "method '",
                  method_.name, "': node ", node.name, " needs a layer of its own, found ", layer);
      const ir::ValueId key = add_cache(node, names, "key", layer), value = add_cache(node, names, "value", layer);
      node.op = caching;
      node.args[index_of(names, "cache_position")] = ir::Arg::of_value(position);
      node.args.push_back(ir::Arg::of_value(key));
      node.args.push_back(ir::Arg::of_value(value));
      node.args.push_back(ir::Arg::of_integer(windows_.of(layer)));
    }
    ir::Node check;
    check.name = "cache_positions";
    check.op = states_.add_op("graft.cache_positions", {"position", "length", "first", "windows"});
    ir::Arg list;
    list.kind = ir::Arg::Kind::list;
    for (const std::int64_t ring_window : windows) list.items.push_back(ir::Arg::of_integer(ring_window));
    check.args = {ir::Arg::of_value(given), ir::Arg::of_value(length), first ? ir::Arg::of_value(*first) : ir::Arg(),
                  list};
    check.outputs = {position, after};
    states_.write_state("kv.length", after);
    if (first) {
      const ir::ValueId first_after = states_.add_value("kv_first_after", DType::i64, first_dims);
      check.outputs.push_back(first_after);
      states_.write_state("kv.first", first_after);
    }
    method_.nodes.insert(method_.nodes.begin() + static_cast<std::ptrdiff_t>(found[0]), check);
    return found.size();
  }

 private:
  ir::ValueId tensor_arg(const ir::Node& node, const std::vector<std::string>& names, std::string_view name) const {
    const ir::Arg& arg = node.args[index_of(names, name)];
    GRAFT_CHECK(InvalidProgram, arg.is_value() && method_.values[arg.value()].kind == ir::ValueKind::tensor, "method '",
                method_.name, "': node ", node.name, ": ", name, " must be a tensor");
    return arg.value();
  }

  ir::ValueId add_cache(const ir::Node& node, const std::vector<std::string>& names, std::string_view side,
                        std::int64_t layer) {
    const ir::Value& from = method_.values[tensor_arg(node, names, side)];
    GRAFT_CHECK(InvalidProgram, from.rank() == 4 && from.dims[1].is_static() && from.dims[3].is_static(), "method '",
                method_.name, "': node ", node.name, ": ", side,
                " must be [B, heads, T, size] with heads and size known, ", "found ", from.str());
    const std::vector<ir::Dim> dims = {any_size(), fixed_size(from.dims[1].min), any_size(),
                                       fixed_size(from.dims[3].min)};
    std::vector<std::int64_t> windows;
    if (const std::int64_t ring_window = windows_.of(layer); ring_window > 0) windows.push_back(ring_window);
    return states_.add_state(str("kv.", layer, ".", side), ir::StateKind::kv, from.dtype, dims, windows);
  }

  ir::Program& program_;
  ir::Method& method_;
  const Windows& windows_;
  CacheStates states_;
};

}  // namespace

bool attends_over_cache(const ir::Program& program) {
  return std::ranges::any_of(program.methods, [&](const ir::Method& method) {
    return std::ranges::any_of(method.nodes,
                               [&](const ir::Node& node) { return program.op_of(node).target == kAttentionTarget; });
  });
}

std::size_t add_kv_cache(ir::Program& program, bool rings) {
  for (const ir::Method& subgraph : program.subgraphs)
    for (const ir::Node& node : subgraph.nodes)
      GRAFT_CHECK(Unsupported, program.op_of(node).target != kAttentionTarget, "node ", node.name, " of '",
                  subgraph.name, "': attention over the cache inside of torch.cond or torch.while_loop");
  const Windows windows(program, rings);
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += KvCache(program, method, windows).run();
  return count;
}

}  // namespace graft
