#include "flow/graph.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "load/program_impl.h"
#include "op/operator.h"
#include "session/call_values.h"
#include "session/session_impl.h"

namespace graft {
namespace {

std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

std::vector<std::string> names_of(const std::vector<ValueInfo>& values) {
  std::vector<std::string> out;
  for (const ValueInfo& value : values) out.push_back(value.name);
  return out;
}

std::vector<std::string> names_of(const std::vector<FlowPort>& ports) {
  std::vector<std::string> out;
  for (const FlowPort& port : ports) out.push_back(port.name);
  return out;
}

bool draws_numbers(const ir::Program& graph, const std::vector<ir::Method>& methods) {
  for (const ir::Method& method : methods)
    for (const ir::Node& node : method.nodes) {
      const Operator* op = find_operator(graph.op_of(node).target);
      if (op != nullptr && op->random) return true;
    }
  return false;
}

// Why the results of a method depend on the runs before; empty: they do not. Throws InvalidArgument for a method that
// writes an input.
std::string dependence_on_runs(const Program& program, std::uint32_t index, const std::string& stage) {
  const ProgramImpl& loaded = Internal::of(program);
  const std::string& name = loaded.methods[index].info.name;
  std::string why;
  for (std::uint32_t part = 0; part < loaded.methods.size(); ++part) {
    const LoadedMethod& method = loaded.methods[part];
    if (part != index && (part < loaded.public_methods || method.source != index)) continue;
    const std::shared_ptr<const ir::Program> graph = loaded.graph(part);
    for (const ir::Input& input : graph->methods[0].inputs)
      if (input.kind == ir::InputKind::state) why = str("has the state '", graph->states[input.index].fqn, "'");
    if (why.empty() && (draws_numbers(*graph, graph->methods) || draws_numbers(*graph, graph->subgraphs)))
      why = "draws random numbers";
    for (const ir::Output& output : graph->methods[0].outputs)
      GRAFT_CHECK(InvalidArgument, output.kind != ir::OutputKind::input_mutation, "stage '", stage,
                  "' of the flow: method '", name, "' writes its input '", method.info.inputs[output.index].name,
                  "', which other stages may read");
  }
  return why;
}

bool fits(const ValueInfo& from, const ValueInfo& to) {
  if (to.kind == Value::Kind::none) return true;  // nothing reads it
  if (from.kind != to.kind) return false;
  if (from.kind != Value::Kind::tensor) return true;
  return from.dtype == to.dtype && std::ranges::equal(from.dims, to.dims, [](const DimInfo& a, const DimInfo& b) {
           return std::max(a.min, b.min) <= std::min(a.max, b.max);
         });
}

class Checker {
 public:
  explicit Checker(FlowGraph graph) : graph_(std::move(graph)) {}

  CheckedFlow check() {
    GRAFT_CHECK(InvalidArgument, !graph_.stages.empty(), "a flow needs at least one stage, got none");
    add_inputs();
    std::set<const Session*> sessions;
    for (FlowStage& stage : graph_.stages) add_stage(stage, sessions);
    connect();
    for (const std::size_t node : in_order()) set_items(node);
    check_types();
    add_outputs();
    return std::move(flow_);
  }

 private:
  void check_name(const std::string& name, const char* what) {
    GRAFT_CHECK(InvalidArgument, !name.empty() && name.find('.') == std::string::npos, what,
                " of a flow needs a name without '.', got '", name, "'");
    GRAFT_CHECK(InvalidArgument, names_.insert(name).second, "the flow has the name '", name, "' twice");
  }

  void add_inputs() {
    for (const std::string& name : graph_.inputs) {
      check_name(name, "an input");
      flow_.sources.push_back({name, std::nullopt});
    }
    flow_.input_count = graph_.inputs.size();
  }

  void add_stage(FlowStage& stage, std::set<const Session*>& sessions) {
    check_name(stage.name, "a stage");
    FlowNode node;
    const std::string where = str("stage '", stage.name, "' of the flow: ");
    GRAFT_CHECK(InvalidArgument, stage.sessions.empty() != !stage.function, where,
                "needs either sessions or a function, got ", stage.function ? "both" : "neither");
    std::vector<std::optional<ValueInfo>> types;
    if (stage.function) {
      GRAFT_CHECK(InvalidArgument, stage.workers > 0, where, "needs at least one worker, got ", stage.workers);
      node.workers = static_cast<std::size_t>(stage.workers);
      node.input_names = names_of(stage.inputs);
      node.output_names = names_of(stage.outputs);
      for (const FlowPort& port : stage.inputs) input_types_.emplace_back(port.type);
      for (const FlowPort& port : stage.outputs) types.emplace_back(port.type);
    } else {
      const MethodInfo& method = add_sessions(stage, where, sessions);
      node.workers = stage.sessions.size();
      node.in_segments = method.segments > 1;
      node.input_names = names_of(method.inputs);
      node.output_names = names_of(method.outputs);
      input_types_.insert(input_types_.end(), method.inputs.begin(), method.inputs.end());
      types.assign(method.outputs.begin(), method.outputs.end());
    }
    node.first_output = flow_.sources.size();
    for (std::size_t i = 0; i < types.size(); ++i)
      flow_.sources.push_back({str(stage.name, ".", node.output_names[i]), std::move(types[i])});
    node.inputs.assign(node.input_names.size(), kNoStage);
    node.stage = std::move(stage);
    flow_.nodes.push_back(std::move(node));
  }

  const MethodInfo& add_sessions(const FlowStage& stage, const std::string& where, std::set<const Session*>& sessions) {
    GRAFT_CHECK(InvalidArgument, !stage.fan_out && !stage.fan_in, where,
                "only a function can be a fan-out or a fan-in, not a method");
    GRAFT_CHECK(InvalidArgument, stage.inputs.empty() && stage.outputs.empty() && stage.workers == 1, where,
                "inputs, outputs and workers are for functions; a method has a worker for each session");
    for (const std::shared_ptr<Session>& session : stage.sessions) {
      GRAFT_CHECK(InvalidArgument, session, where, "a session is null");
      GRAFT_CHECK(InvalidArgument, &session->program() == &stage.sessions[0]->program(), where,
                  "its sessions must be of one program");
      GRAFT_CHECK(InvalidArgument, sessions.insert(session.get()).second, where,
                  "a session is there twice in the flow; make one for each worker (Session::fork)");
    }
    for (const std::shared_ptr<Session>& session : stage.sessions) check_sharing(*session, stage.name);
    const Program& program = stage.sessions[0]->program();
    const std::string why = dependence_on_runs(program, Internal::of(program).find(stage.method), stage.name);
    GRAFT_CHECK(InvalidArgument, why.empty() || stage.sessions.size() == 1, where, "method '", stage.method, "' ", why,
                ", so its results depend on the order of runs: it needs one session, got ", stage.sessions.size());
    return program.method(stage.method);
  }

  // What sessions share serves one run at a time, and workers run when they like.
  void check_sharing(const Session& session, const std::string& stage) {
    const SessionOptions& options = Internal::of(session).options;
    const bool has_states = !Internal::of(session.program()).states.empty();
    const auto check = [&](const void* shared, const char* what) {
      if (shared == nullptr) return;
      const auto [other, fresh] = sharers_.try_emplace(shared, stage);
      const bool same = !fresh && other->second == stage;
      GRAFT_CHECK(InvalidArgument, fresh,
                  same ? str("stage '", stage, "' of the flow: its")
                       : str("stages '", other->second, "' and '", stage, "' of the flow: their"),
                  " sessions share one ", what, ", which serves one run at a time; give each session its own");
    };
    check(has_states ? options.states.get() : nullptr, "States (SessionOptions::states)");
    check(options.arena.get(), "Arena (SessionOptions::arena)");
  }

  std::size_t find_stage(std::string_view name, const std::string& endpoint) const {
    std::vector<std::string> known;
    for (std::size_t i = 0; i < flow_.nodes.size(); ++i) {
      if (flow_.nodes[i].stage.name == name) return i;
      known.push_back(flow_.nodes[i].stage.name);
    }
    throw InvalidArgument(str("'", endpoint, "': the flow has no stage '", name, "', it has ", list(known)));
  }

  // The index of a name or a number among `names`.
  static std::size_t find_port(std::string_view port, const std::vector<std::string>& names, const char* kind,
                               const std::string& endpoint) {
    std::size_t found = names.size();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] != port) continue;
      GRAFT_CHECK(InvalidArgument, found == names.size(), "'", endpoint, "': the stage has several ", kind,
                  "s of this name; give its number");
      found = i;
    }
    const bool number =
        !port.empty() && port.size() < 9 && std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
    if (found == names.size() && number) found = static_cast<std::size_t>(std::stoul(std::string(port)));
    GRAFT_CHECK(InvalidArgument, found < names.size(), "'", endpoint, "': the stage has no ", kind, " '", port,
                "', it has ", list(names));
    return found;
  }

  std::size_t find_source(const std::string& name) const {
    const std::size_t dot = name.find('.');
    if (dot != std::string::npos) {
      const FlowNode& node = flow_.nodes[find_stage(std::string_view(name).substr(0, dot), name)];
      return node.first_output + find_port(std::string_view(name).substr(dot + 1), node.output_names, "output", name);
    }
    const auto found = std::ranges::find(graph_.inputs, name);
    GRAFT_CHECK(InvalidArgument, found != graph_.inputs.end(), "the flow has no input '", name, "', it has ",
                list(graph_.inputs), "; an output of a stage is 'stage.output'");
    return static_cast<std::size_t>(found - graph_.inputs.begin());
  }

  void connect() {
    for (const auto& [to, from] : graph_.connections) {
      const std::size_t dot = to.find('.');
      GRAFT_CHECK(InvalidArgument, dot != std::string::npos, "the connection '", to, "' from '", from,
                  "' must go to an input of a stage, 'stage.input'");
      FlowNode& node = flow_.nodes[find_stage(std::string_view(to).substr(0, dot), to)];
      const std::size_t i = find_port(std::string_view(to).substr(dot + 1), node.input_names, "input", to);
      GRAFT_CHECK(InvalidArgument, node.inputs[i] == kNoStage, "input '", node.input_names[i], "' of stage '",
                  node.stage.name, "' is connected twice");
      node.inputs[i] = find_source(from);
      flow_.sources[node.inputs[i]].readers.push_back(static_cast<std::size_t>(&node - flow_.nodes.data()));
    }
    for (FlowNode& node : flow_.nodes)
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        GRAFT_CHECK(InvalidArgument, node.inputs[i] != kNoStage, "input '", node.input_names[i], "' of stage '",
                    node.stage.name, "' is not connected");
  }

  // Stages, each after those that it reads from.
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> missing, order;
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n) {
      missing.push_back(static_cast<std::size_t>(std::ranges::count_if(
          flow_.nodes[n].inputs, [&](std::size_t source) { return source >= flow_.input_count; })));
      if (missing[n] == 0) order.push_back(n);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const FlowNode& node = flow_.nodes[order[i]];
      for (std::size_t o = 0; o < node.output_names.size(); ++o)
        for (const std::size_t reader : flow_.sources[node.first_output + o].readers)
          if (--missing[reader] == 0) order.push_back(reader);
    }
    std::vector<std::string> stuck;
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n)
      if (missing[n] > 0) stuck.push_back(flow_.nodes[n].stage.name);
    GRAFT_CHECK(InvalidArgument, stuck.empty(),
                "the flow has a cycle; these stages wait for each other: ", list(stuck));
    return order;
  }

  void set_items(std::size_t index) {
    FlowNode& node = flow_.nodes[index];
    const std::string where = str("stage '", node.stage.name, "' of the flow: ");
    std::size_t first = kNoStage;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const FlowSource& source = flow_.sources[node.inputs[i]];
      if (!source.has_items()) continue;
      GRAFT_CHECK(InvalidArgument, node.stage.fan_in || node.origin == kNoStage || node.origin == source.origin, where,
                  "its inputs '", node.input_names[first], "' and '", node.input_names[i],
                  "' have items of different fan-outs, '", flow_.nodes[node.origin].stage.name, "' and '",
                  flow_.nodes[source.origin].stage.name, "'");
      node.origin = source.origin;
      first = i;
    }
    GRAFT_CHECK(InvalidArgument, !node.stage.fan_in || node.origin != kNoStage, where,
                "it is a fan-in, but none of its inputs has items");
    if (node.stage.fan_in) node.origin = kNoStage;
    GRAFT_CHECK(InvalidArgument, !node.stage.fan_out || node.origin == kNoStage, where,
                "it is a fan-out, but runs for each item of '", flow_.nodes[node.origin].stage.name,
                "': items have no items; make it a fan-in too, or put one in between");
    for (std::size_t o = 0; o < node.output_names.size(); ++o)
      flow_.sources[node.first_output + o].origin = node.stage.fan_out ? index : node.origin;
  }

  void check_types() {
    std::size_t at = 0;
    std::vector<std::string> first_reader(flow_.input_count);
    for (const FlowNode& node : flow_.nodes)
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const std::optional<ValueInfo>& wanted = input_types_[at++];
        FlowSource& source = flow_.sources[node.inputs[i]];
        const std::string input = str(node.stage.name, ".", node.input_names[i]);
        if (!wanted) continue;
        // An input of the flow is what its first reader takes.
        const bool of_flow = node.inputs[i] < flow_.input_count;
        if (of_flow && !source.type && wanted->kind != Value::Kind::none) {
          source.type = wanted;
          first_reader[node.inputs[i]] = input;
        }
        if (!source.type) continue;
        GRAFT_CHECK(InvalidArgument, fits(*source.type, *wanted), "input '", input, "' of the flow expects ",
                    describe(*wanted), ", '", source.name, "' is ", describe(*source.type),
                    of_flow ? str(" as '", first_reader[node.inputs[i]], "' takes it") : "");
      }
  }

  void add_outputs() {
    GRAFT_CHECK(InvalidArgument, !graph_.outputs.empty(), "a flow needs at least one output, got none");
    for (const std::string& name : graph_.outputs) {
      flow_.outputs.push_back(find_source(name));
      flow_.sources[flow_.outputs.back()].is_output = true;
    }
    for (std::size_t i = 0; i < flow_.input_count; ++i)
      GRAFT_CHECK(InvalidArgument, !flow_.sources[i].readers.empty(), "no stage reads the input '",
                  flow_.sources[i].name, "' of the flow");
  }

  FlowGraph graph_;
  CheckedFlow flow_;
  std::set<std::string> names_;                        // of inputs and stages
  std::map<const void*, std::string> sharers_;         // by what sessions share, the stage of the first
  std::vector<std::optional<ValueInfo>> input_types_;  // of the nodes' inputs, one node after another
};

}  // namespace

CheckedFlow check_flow(FlowGraph graph) { return Checker(std::move(graph)).check(); }

std::string describe(const ValueInfo& type) {
  if (type.kind != Value::Kind::tensor) return std::string(kind_name(type.kind));
  std::string sizes;
  for (const DimInfo& dim : type.dims) {
    sizes += sizes.empty() ? "" : ", ";
    sizes += dim.min == dim.max                                    ? str(dim.min)
             : dim.max == std::numeric_limits<std::int64_t>::max() ? str(dim.min, "..")
                                                                   : str(dim.min, "..", dim.max);
  }
  return str(name(type.dtype), "[", sizes, "]");
}

void check_value(const std::string& name, const std::optional<ValueInfo>& type, const Value& value) {
  if (!type || type->kind == Value::Kind::none) return;
  const bool tensor = value.kind == Value::Kind::tensor;
  const Shape& shape = value.tensor.shape;
  bool right = value.kind == type->kind;
  if (right && tensor) {
    right = value.tensor.dtype == type->dtype && shape.rank() == static_cast<int>(type->dims.size());
    for (int d = 0; right && d < shape.rank(); ++d) {
      const DimInfo& dim = type->dims[static_cast<std::size_t>(d)];
      right = dim.min <= shape[d] && shape[d] <= dim.max;
    }
  }
  GRAFT_CHECK(InvalidArgument, right, "'", name, "' of the flow must be ", describe(*type), ", got ",
              tensor ? TensorDesc(value.tensor.dtype, shape).str() : std::string(kind_name(value.kind)));
}

}  // namespace graft
