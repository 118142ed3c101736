#include <algorithm>
#include <string>

#include "base/check.h"
#include "pass/graph/cache_states.h"
#include "pass/graph/kv_cache.h"

namespace graft {
namespace {

constexpr std::string_view kStore = "graft.store_source.default";
constexpr std::string_view kAttention = "graft.source_attention.default";

class EncoderCache {
 public:
  EncoderCache(ir::Program& program, ir::Method& method)
      : program_(program), method_(method), states_(program, method) {}

  // Returns the number of nodes that got their states.
  std::size_t run() {
    const std::size_t count = method_.nodes.size();
    std::size_t rewrites = 0;
    std::size_t first_store = count;
    bool append = false;
    for (std::size_t n = 0; n < count; ++n) {
      const std::string target = program_.op_of(method_.nodes[n]).target;
      if (target == kAttention || target == kStore) ++rewrites;
      if (target == kAttention) attend(method_.nodes[n]);
      if (target != kStore) continue;
      const bool appends = appends_of(method_.nodes[n]);
      if (first_store == count) {
        first_store = n;
        append = appends;
      }
      GRAFT_CHECK(InvalidProgram, appends == append, where(method_.nodes[n]),
                  "append differs from that of the method's other nodes");
      store(method_.nodes[n]);
    }
    if (first_store == count) return rewrites;
    ir::Node& first = method_.nodes[first_store];
    ir::Arg& given = arg(first, "position");
    const ir::ValueId length =
        states_.add_state("kv.source.length", ir::StateKind::kv_encoder_length, DType::i64, {any_size()});
    const ir::ValueId tokens = states_.add_state("kv.length", ir::StateKind::kv_length, DType::i64, {any_size()});
    ir::Node check;
    check.name = "source_positions";
    check.op = states_.add_op("graft.source_positions", {"position", "length", "decoder_length", "append"});
    check.args = {given, ir::Arg::of_value(length), ir::Arg::of_value(tokens),
                  ir::Arg{ir::Arg::Kind::boolean, append ? 1 : 0, 0, {}, {}}};
    const ir::ValueId checked =
        states_.add_value("source_position_checked", DType::i64, method_.values[given.value()].dims);
    const ir::ValueId after = states_.add_value("source_length_after", DType::i64, {any_size()});
    check.outputs = {checked, after};
    given = ir::Arg::of_value(checked);
    states_.write_state("kv.source.length", after);
    method_.nodes.insert(method_.nodes.begin() + static_cast<std::ptrdiff_t>(first_store), check);
    return rewrites;
  }

 private:
  // Packages from before there was one have no such argument.
  bool appends_of(const ir::Node& node) const {
    const std::vector<std::string>& names = program_.op_of(node).arg_names;
    const auto it = std::ranges::find(names, "append");
    return it != names.end() && node.args[static_cast<std::size_t>(it - names.begin())].i != 0;
  }

  void store(ir::Node& node) {
    GRAFT_CHECK(InvalidProgram, arg(node, "position").is_value(), where(node), "position must be a tensor");
    const ir::Value key = tensor(node, "key"), value = tensor(node, "value");
    add_caches(node, "graft.stored_source", key.dtype, key.dims[1].min, key.dims[3].min, value.dims[3].min, {});
  }

  void attend(ir::Node& node) {
    const ir::Value query = tensor(node, "query");
    const ir::Arg heads = arg(node, "kv_heads");
    GRAFT_CHECK(InvalidProgram, heads.kind == ir::Arg::Kind::integer && heads.i > 0, where(node),
                "kv_heads must be a number above 0");
    const ir::ValueId length =
        states_.add_state("kv.source.length", ir::StateKind::kv_encoder_length, DType::i64, {any_size()});
    add_caches(node, "graft.stored_source_attention", query.dtype, heads.i, query.dims[3].min, query.dims[3].min,
               {{"length", length}});
  }

  // Turns the node into `target`, with the states of its layer added.
  void add_caches(ir::Node& node, const std::string& target, DType dtype, std::int64_t heads, std::int64_t key_size,
                  std::int64_t value_size, std::vector<std::pair<std::string, ir::ValueId>> more) {
    const ir::Arg layer = arg(node, "layer");
    GRAFT_CHECK(InvalidProgram, layer.kind == ir::Arg::Kind::integer && layer.i >= 0, where(node),
                "layer must be a number of 0 or more");
    for (const auto& [side, row] : {std::pair{"key", key_size}, std::pair{"value", value_size}})
      more.emplace_back(str(side, "_cache"),
                        states_.add_state(str("kv.source.", layer.i, ".", side), ir::StateKind::kv_encoder, dtype,
                                          {any_size(), fixed_size(heads), any_size(), fixed_size(row)}));
    std::vector<std::string> names = program_.op_of(node).arg_names;
    for (const auto& [name, value] : more) {
      names.push_back(name);
      node.args.push_back(ir::Arg::of_value(value));
    }
    node.op = states_.add_op(target, std::move(names));
  }

  std::string where(const ir::Node& node) const { return str("method '", method_.name, "': node ", node.name, ": "); }

  ir::Arg& arg(ir::Node& node, std::string_view name) const {
    const std::vector<std::string>& names = program_.op_of(node).arg_names;
    const auto it = std::ranges::find(names, name);
    GRAFT_CHECK(InvalidProgram, it != names.end(), where(node), "no argument '", name, "'");
    return node.args[static_cast<std::size_t>(it - names.begin())];
  }

  // [B, heads, T, size] with heads and size known.
  ir::Value tensor(ir::Node& node, std::string_view name) const {
    const ir::Arg& found = arg(node, name);
    GRAFT_CHECK(InvalidProgram, found.is_value(), where(node), name, " must be a tensor");
    const ir::Value& value = method_.values[found.value()];
    const bool fits = value.kind == ir::ValueKind::tensor && value.rank() == 4 && value.dims[1].is_static() &&
                      value.dims[3].is_static();
    GRAFT_CHECK(InvalidProgram, fits, where(node), name,
                " must be [B, heads, T, size] with heads and size known, found ", value.str());
    return value;
  }

  ir::Program& program_;
  ir::Method& method_;
  CacheStates states_;
};

}  // namespace

std::size_t add_encoder_cache(ir::Program& program) {
  for (const ir::Method& graph : program.subgraphs)
    for (const ir::Node& node : graph.nodes)
      GRAFT_CHECK(Unsupported, program.op_of(node).target != kAttention && program.op_of(node).target != kStore,
                  "graph '", graph.name, "': node ", node.name,
                  ": cross-attention inside of torch.cond or torch.while_loop");
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += EncoderCache(program, method).run();
  return count;
}

}  // namespace graft
