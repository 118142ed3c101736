#include "pass/graph/partition.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "op/host.h"

namespace graft {
namespace {

// Keeps the weights and states that the method reads.
void drop_unused_tables(ir::Program& program) {
  ir::Method& method = program.methods[0];
  std::vector<std::int32_t> state_of(program.states.size(), -1), weight_of(program.weights.size(), -1);
  std::vector<ir::State> states;
  for (ir::Input& input : method.inputs) {
    if (input.kind != ir::InputKind::state) continue;
    if (state_of[input.index] < 0) {
      state_of[input.index] = static_cast<std::int32_t>(states.size());
      states.push_back(program.states[input.index]);
    }
    input.index = static_cast<std::uint32_t>(state_of[input.index]);
  }
  for (ir::Output& output : method.outputs)
    if (output.kind == ir::OutputKind::state_mutation)
      output.index = static_cast<std::uint32_t>(state_of[output.index]);
  std::vector<ir::Weight> weights;
  const auto keep = [&](std::int32_t index) {
    if (index < 0) return index;
    std::int32_t& to = weight_of[static_cast<std::size_t>(index)];
    if (to >= 0) return to;
    to = static_cast<std::int32_t>(weights.size());
    weights.push_back(program.weights[static_cast<std::size_t>(index)]);
    return to;
  };
  for (ir::Input& input : method.inputs)
    if (input.kind == ir::InputKind::weight)
      input.index = static_cast<std::uint32_t>(keep(static_cast<std::int32_t>(input.index)));
  for (ir::State& state : states) state.initial = keep(state.initial);
  program.states = std::move(states);
  program.weights = std::move(weights);
}

class Partitioner {
 public:
  Partitioner(ir::Program program, const PartitionOptions& options) : program_(std::move(program)), options_(options) {
    subgraphs_ = std::move(program_.subgraphs);
    program_.subgraphs.clear();
  }

  std::vector<Part> run() {
    ir::Method whole = std::move(program_.methods[0]);
    program_.methods.clear();
    const bool cut = std::ranges::any_of(whole.nodes, [&](const ir::Node& node) { return is_host(node); });
    if (!cut) {
      program_.methods.push_back(std::move(whole));
      parts_.push_back({std::move(program_), {}});
      return std::move(parts_);
    }
    add(std::move(whole));
    return std::move(parts_);
  }

 private:
  bool is_host(const ir::Node& node) const { return runs_between_plans(program_.op_of(node).target); }

  std::uint32_t add(ir::Method method);

  std::uint32_t add_graph(ir::Method method) {
    name_apart(method);
    Part part;
    part.graph = program_;
    part.graph.methods.push_back(std::move(method));
    drop_unused_tables(part.graph);
    parts_.push_back(std::move(part));
    return static_cast<std::uint32_t>(parts_.size() - 1);
  }

  // A sub-graph that two nodes call becomes two parts: stored plans find theirs by its name.
  void name_apart(ir::Method& method) {
    const std::string name = method.name;
    for (int copy = 2; !names_.insert(method.name).second; ++copy) method.name = str(name, " (", copy, ")");
  }

  class Cutter;

  ir::Program program_;  // without methods
  std::vector<ir::Method> subgraphs_;
  const PartitionOptions options_;
  std::vector<Part> parts_;
  std::set<std::string> names_;
};

// One method while it is divided into steps.
class Partitioner::Cutter {
 public:
  Cutter(Partitioner& owner, ir::Method& method, std::uint32_t self)
      : owner_(owner),
        method_(method),
        self_(self),
        source_(method.values.size()),
        phase_(method.nodes.size(), 0),
        free_(method.nodes.size(), false) {}

  std::vector<Step> run() {
    find_sources();
    assign_phases();
    merge_small();
    for (int phase = 0; phase <= last_; ++phase) {
      cut_graph(phase);
      for (std::size_t i = 0; i < method_.nodes.size(); ++i)
        if (is_host(i) && phase_[i] == phase) steps_.push_back(host_step(method_.nodes[i]));
    }
    find_ends();
    return std::move(steps_);
  }

 private:
  static constexpr int kAnywhere = -1;

  // Where a value is made: an input of the method, or a node.
  struct Source {
    const ir::Input* input = nullptr;
    std::optional<std::size_t> node;
  };

  bool is_host(std::size_t node) const { return owner_.is_host(method_.nodes[node]); }
  bool is_control(const ir::Node& node) const {
    const std::string& target = owner_.program_.op_of(node).target;
    return target == kCond || target == kWhileLoop;
  }

  // Weights, and values computed from weights alone, may be in any graph that needs them.
  bool is_free(ir::ValueId id) const {
    const Source& source = source_[id];
    return source.node ? free_[*source.node] : source.input && source.input->kind == ir::InputKind::weight;
  }
  // A weight or state: each part has its own input for it.
  bool is_stored(ir::ValueId id) const { return source_[id].input && source_[id].input->kind != ir::InputKind::user; }

  void find_sources() {
    for (const ir::Input& input : method_.inputs) source_[input.value].input = &input;
    for (std::size_t i = 0; i < method_.nodes.size(); ++i)
      for (const ir::ValueId id : method_.nodes[i].outputs) source_[id].node = i;
  }

  // A node's phase is the number of cuts before it; a host node of a phase runs after the graph of that phase.
  void assign_phases() {
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      int phase = 0;
      bool free = !is_host(i);
      ir::for_each_value(method_.nodes[i], [&](ir::ValueId id) {
        free = free && is_free(id);
        if (const auto from = source_[id].node; from && !free_[*from])
          phase = std::max(phase, phase_[*from] + (is_host(*from) ? 1 : 0));
      });
      free_[i] = free;
      phase_[i] = free ? kAnywhere : phase;
      last_ = std::max(last_, phase_[i]);
    }
    // Final writes happen in a graph after all cuts, so that a stopped run has changed nothing.
    writes_ = std::ranges::any_of(method_.outputs,
                                  [](const ir::Output& output) { return output.kind != ir::OutputKind::user; });
    for (std::size_t i = 0; writes_ && i < method_.nodes.size(); ++i)
      if (is_host(i)) last_ = std::max(last_, phase_[i] + 1);
  }

  void merge_small() {
    for (int phase = 0; phase < last_; ++phase) {
      std::vector<bool> pinned(method_.nodes.size(), false);  // needed by a host node of the phase
      std::vector<std::size_t> movable;
      bool next_has_nodes = false;
      for (std::size_t i = method_.nodes.size(); i-- > 0;) {
        if (phase_[i] == phase + 1 && !is_host(i)) next_has_nodes = true;
        if (phase_[i] != phase) continue;
        if (is_host(i)) pinned[i] = true;
        if (pinned[i]) {
          ir::for_each_value(method_.nodes[i], [&](ir::ValueId id) {
            if (source_[id].node) pinned[*source_[id].node] = true;
          });
        } else {
          movable.push_back(i);
        }
      }
      if (!next_has_nodes || movable.size() > owner_.options_.merge) continue;
      for (const std::size_t i : movable) phase_[i] = phase + 1;
    }
  }

  // The graph of a phase, with copies of the free nodes that it or a host node right after it needs.
  void cut_graph(int phase) {
    std::vector<bool> mine(method_.nodes.size(), false);
    std::set<ir::ValueId> read;
    const auto need = [&](const auto& self, ir::ValueId id) -> void {
      if (!read.insert(id).second || !source_[id].node) return;
      const std::size_t node = *source_[id].node;
      if (!free_[node] || mine[node]) return;
      mine[node] = true;
      ir::for_each_value(method_.nodes[node], [&](ir::ValueId from) { self(self, from); });
    };
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      if (phase_[i] != phase || is_host(i)) continue;
      mine[i] = true;
      ir::for_each_value(method_.nodes[i], [&](ir::ValueId id) { need(need, id); });
    }
    std::vector<ir::ValueId> results;
    const auto result = [&](ir::ValueId id) {
      if (std::ranges::find(results, id) == results.end()) results.push_back(id);
    };
    // Host operators read tensors: hand them stored and free values as results of the graph.
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      if (!is_host(i) || phase_[i] != phase) continue;
      for_each_handed(method_.nodes[i], [&](ir::ValueId id) {
        if (available_.contains(id) || (!is_stored(id) && !is_free(id))) return;
        need(need, id);
        result(id);
      });
    }
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      if (!mine[i] || free_[i]) continue;
      for (const ir::ValueId id : method_.nodes[i].outputs)
        if (is_read_outside(id, phase)) result(id);
    }
    ir::Method graph;
    if (phase == last_) {
      for (const ir::Output& output : method_.outputs) {
        if (!output.arg.is_value()) continue;
        const ir::ValueId id = output.arg.value();
        if (output.kind == ir::OutputKind::user && !available_.contains(id) && (is_stored(id) || is_free(id))) {
          need(need, id);
          result(id);
        }
        if (output.kind != ir::OutputKind::user) {
          need(need, id);
          graph.outputs.push_back(output);
        }
      }
      add_written(graph.outputs, read);
    }
    if (results.empty() && graph.outputs.empty()) return;

    graph.name = str(method_.name, " part ", owner_.parts_.size() - self_);
    graph.values = method_.values;
    for (std::size_t i = 0; i < method_.nodes.size(); ++i)
      if (mine[i]) graph.nodes.push_back(method_.nodes[i]);
    Step step;
    for (const ir::ValueId id : read) {
      const Source& source = source_[id];
      if (source.node && mine[*source.node]) continue;
      if (is_stored(id)) {
        graph.inputs.push_back(*source.input);
        continue;
      }
      for (ir::Output& output : graph.outputs)
        if (output.kind == ir::OutputKind::input_mutation && source.input && source.input->index == output.index &&
            renumbered_.insert(&output).second)
          output.index = static_cast<std::uint32_t>(step.inputs.size());
      graph.inputs.push_back({id, ir::InputKind::user, static_cast<std::uint32_t>(step.inputs.size())});
      graph.user_input_names.push_back(method_.values[id].name);
      step.inputs.push_back(ir::Arg::of_value(id));
    }
    renumbered_.clear();
    for (const ir::ValueId id : results) {
      graph.outputs.push_back(
          {ir::OutputKind::user, ir::Arg::of_value(id), static_cast<std::uint32_t>(step.outputs.size())});
      step.outputs.push_back(id);
      available_.insert(id);
    }
    step.parts.push_back(owner_.add_graph(std::move(graph)));
    steps_.push_back(std::move(step));
  }

  // States and inputs that the graph writes must be its inputs.
  void add_written(const std::vector<ir::Output>& outputs, std::set<ir::ValueId>& read) const {
    for (const ir::Output& output : outputs) {
      const ir::InputKind kind =
          output.kind == ir::OutputKind::state_mutation ? ir::InputKind::state : ir::InputKind::user;
      for (const ir::Input& input : method_.inputs)
        if (input.kind == kind && input.index == output.index) read.insert(input.value);
    }
  }

  bool is_read_outside(ir::ValueId id, int phase) const {
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) {
      if (phase_[i] < phase || (phase_[i] == phase && !is_host(i))) continue;
      bool reads = false;
      ir::for_each_value(method_.nodes[i], [&](ir::ValueId from) { reads = reads || from == id; });
      if (reads) return true;
    }
    return std::ranges::any_of(method_.outputs, [&](const ir::Output& output) {
      return output.arg.is_value() && output.arg.value() == id &&
             (output.kind == ir::OutputKind::user || phase < last_);
    });
  }

  // The values that a step of the node reads: all but stored operands, for which sub-graphs have their own inputs.
  template <typename Visit>
  void for_each_handed(const ir::Node& node, const Visit& visit) const {
    if (!is_control(node)) return ir::for_each_value(node, visit);
    const bool loop = owner_.program_.op_of(node).target == kWhileLoop;
    for (std::size_t a = 0; a < node.args.size(); ++a) {
      const bool own = loop ? a == 2 : a == 0;  // a loop changes what it carries
      ir::for_each_value(node.args[a], [&](ir::ValueId id) {
        if (own || !is_stored(id)) visit(id);
      });
    }
  }

  Step host_step(const ir::Node& node) {
    Step step;
    step.node = node;
    step.op = owner_.program_.op_of(node);
    step.outputs = node.outputs;
    for (const ir::ValueId id : node.outputs) {
      step.results.push_back(method_.values[id]);
      available_.insert(id);
    }
    if (!is_control(node)) {
      step.kind = Step::Kind::host;
      return step;
    }
    const bool loop = step.op.target == kWhileLoop;
    step.kind = loop ? Step::Kind::loop : Step::Kind::cond;
    if (!loop) step.predicate = node.args[0];
    std::vector<ir::Arg> operands;
    for (std::size_t a = loop ? 2 : 3; a < node.args.size(); ++a)
      operands.insert(operands.end(), node.args[a].items.begin(), node.args[a].items.end());
    const std::size_t carried = loop ? node.args[2].items.size() : 0;
    // Sub-graphs have their own inputs for stored operands, unless a loop changes them.
    std::vector<std::optional<ir::Input>> stored(operands.size());
    std::vector<std::uint32_t> position(operands.size(), 0);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (i >= carried && operands[i].is_value() && is_stored(operands[i].value())) {
        stored[i] = *source_[operands[i].value()].input;
        continue;
      }
      position[i] = static_cast<std::uint32_t>(step.inputs.size());
      step.inputs.push_back(operands[i]);
    }
    for (std::size_t a = loop ? 0 : 1; a < (loop ? 2u : 3u); ++a) {
      ir::Method graph = owner_.subgraphs_[static_cast<std::size_t>(node.args[a].i)];
      // Nodes of several graphs may have one name: those of "forward.submodule_0" get "submodule_0." before theirs.
      const std::string path = graph.name.substr(graph.name.find('.') + 1);
      for (ir::Node& inner : graph.nodes) inner.name = str(path, ".", inner.name);
      graph.name = str(method_.name, ", ", graph.name);
      graph.user_input_names.assign(step.inputs.size(), "");
      for (ir::Input& input : graph.inputs) {
        if (input.kind != ir::InputKind::user) continue;
        const std::size_t operand = input.index;
        if (stored[operand]) {
          input.kind = stored[operand]->kind;
          input.index = stored[operand]->index;
        } else {
          input.index = position[operand];
          graph.user_input_names[input.index] = graph.values[input.value].name;
        }
      }
      step.parts.push_back(owner_.add(std::move(graph)));
    }
    return step;
  }

  // The last step that needs each value.
  void find_ends() {
    std::map<ir::ValueId, std::size_t> last;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const auto note = [&](ir::ValueId id) { last[id] = s; };
      for (const ir::ValueId id : steps_[s].outputs) note(id);
      for (const ir::Arg& arg : steps_[s].inputs) ir::for_each_value(arg, note);
      ir::for_each_value(steps_[s].predicate, note);
      if (steps_[s].kind == Step::Kind::host) ir::for_each_value(steps_[s].node, note);
    }
    for (const ir::Output& output : method_.outputs)
      if (output.arg.is_value()) last.erase(output.arg.value());
    for (const auto& [id, step] : last) steps_[step].finished.push_back(id);
  }

  Partitioner& owner_;
  ir::Method& method_;
  const std::uint32_t self_;
  std::vector<Source> source_;
  std::vector<int> phase_;  // by node
  std::vector<bool> free_;  // by node: depends on weights alone
  int last_ = 0;
  bool writes_ = false;
  std::set<ir::ValueId> available_;  // made by a step so far
  std::set<const ir::Output*> renumbered_;
  std::vector<Step> steps_;
};

std::uint32_t Partitioner::add(ir::Method method) {
  const bool cut = std::ranges::any_of(method.nodes, [&](const ir::Node& node) { return is_host(node); });
  if (!cut) return add_graph(std::move(method));
  name_apart(method);
  const auto self = static_cast<std::uint32_t>(parts_.size());
  parts_.emplace_back();
  std::vector<Step> steps = Cutter(*this, method, self).run();
  Part& part = parts_[self];
  part.steps = std::move(steps);
  part.graph = program_;
  part.graph.weights.clear();
  part.graph.states.clear();
  method.nodes.clear();
  std::erase_if(method.inputs, [](const ir::Input& input) { return input.kind != ir::InputKind::user; });
  std::erase_if(method.outputs, [](const ir::Output& output) { return output.kind != ir::OutputKind::user; });
  part.graph.methods.push_back(std::move(method));
  return self;
}

}  // namespace

std::vector<Part> partition(ir::Program program, const PartitionOptions& options) {
  return Partitioner(std::move(program), options).run();
}

}  // namespace graft
