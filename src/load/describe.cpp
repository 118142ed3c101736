#include <algorithm>
#include <map>

#include "base/json.h"
#include "base/rethrow.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "lowering/kv_shape.h"
#include "lowering/lowering.h"
#include "lowering/tasks.h"
#include "plan/make_plan.h"
#include "plan/stages.h"

namespace graft {
namespace {

OrderedJson describe(const ValueInfo& value) {
  constexpr const char* kinds[] = {"none", "tensor", "integer", "real", "boolean", "text"};
  OrderedJson out{{"name", value.name}, {"kind", kinds[static_cast<std::size_t>(value.kind)]}};
  if (value.kind != Value::Kind::tensor) return out;
  out["dtype"] = name(value.dtype);
  out["dims"] = OrderedJson::array();
  for (const DimInfo& dim : value.dims) {
    if (dim.min == dim.max) {
      out["dims"].push_back(dim.min);
      continue;
    }
    OrderedJson range{{"min", dim.min}, {"expr", dim.expr}};
    range["max"] = dim.max == ir::kUnbounded ? OrderedJson() : OrderedJson(dim.max);
    out["dims"].push_back(range);
  }
  return out;
}

// Every tensor of every launch with its logical address, in launch order.
OrderedJson describe_order(const Plan& plan) {
  const auto operands = [&](const std::vector<Tensor>& tensors) {
    OrderedJson out = OrderedJson::array();
    for (const Tensor& t : tensors) {
      const Buffer& b = plan.buffers[t.buffer];
      out.push_back({{"tensor", t.desc.str()},
                     {"buffer", t.buffer},
                     {"strides", std::vector<std::int64_t>(t.desc.strides.begin(), t.desc.strides.begin() + t.rank())},
                     {"memory", name(b.memory)},
                     {"allocation", b.allocation},
                     {"offset", b.offset + t.offset},
                     {"first_use", b.first_use},
                     {"last_use", b.last_use}});
    }
    return out;
  };
  OrderedJson order = OrderedJson::array();
  std::vector<OrderedJson> places(plan.launches.size());  // null: runs alone
  for (std::size_t g = 0; g < plan.groups.size(); ++g)
    for (std::size_t l = 0; l < plan.groups[g].branches.size(); ++l) {
      const Branch& branch = plan.groups[g].branches[l];
      for (std::uint32_t i = branch.begin; i < branch.end; ++i)
        places[i] = {{"group", g}, {"branch", l}, {"tasks", branch.tasks}};
    }
  for (const Launch& launch : plan.launches)
    order.push_back({{"node", plan.node_names[launch.node]},
                     {"kernel", kernel_name(launch)},
                     {"explanation", explain_kernel(launch)},
                     {"one_thread", launch.serial},
                     {"side_by_side", places[order.size()]},
                     {"tasks_per_thread", tasks_per_thread(launch)},
                     {"steals_work", launch.kernel != nullptr && launch.kernel->steals_work},
                     {"inputs", operands(launch.inputs)},
                     {"outputs", operands(launch.outputs)},
                     {"touched_bytes", touched_bytes(launch)},
                     {"scratch_bytes", launch.scratch_bytes},
                     {"scratch", launch.scratch_bytes > 0 ? OrderedJson(launch.scratch) : OrderedJson()}});
  return order;
}

OrderedJson describe_passes(const std::vector<PassReport>& reports) {
  OrderedJson passes = OrderedJson::array();
  for (const PassReport& report : reports) {
    OrderedJson row{{"name", report.pass->name}, {"stage", name(report.pass->stage)}, {"ran", report.ran}};
    if (!report.ran) row["condition"] = report.pass->condition;  // the condition that did not hold
    row["rewrites"] = report.rewrites;
    row["before"] = report.before;
    row["after"] = report.after;
    passes.push_back(std::move(row));
  }
  return passes;
}

// Every buffer that launches touch: its offset in the allocation, and its lifetime.
OrderedJson describe_buffers(const Plan& plan) {
  OrderedJson buffers = OrderedJson::array();
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& b = plan.buffers[id];
    if (b.first_use < 0) continue;
    buffers.push_back({{"id", id},
                       {"memory", name(b.memory)},
                       {"allocation", b.allocation},
                       {"offset", b.offset},
                       {"bytes", b.bytes},
                       {"first_use", b.first_use},
                       {"last_use", b.last_use}});
  }
  return buffers;
}

// The kernels of each node, in program order, with the explanation. Views and numbers have none.
OrderedJson describe_nodes(const Plan& plan, const ir::Program& graph) {
  std::map<std::string_view, OrderedJson> launches;  // by node name
  for (const Launch& launch : plan.launches)
    launches[plan.node_names[launch.node]].push_back(
        {{"kernel", kernel_name(launch)}, {"explanation", explain_kernel(launch)}});
  OrderedJson nodes = OrderedJson::array();
  for (const ir::Node& node : graph.methods[0].nodes)
    if (const auto found = launches.find(node.name); found != launches.end())
      nodes.push_back({{"node", node.name}, {"op", graph.op_of(node).target}, {"launches", found->second}});
  if (const auto found = launches.find("output"); found != launches.end())
    nodes.push_back({{"node", "output"}, {"op", "output"}, {"launches", found->second}});
  return nodes;
}

OrderedJson describe(const Plan& plan, const ir::Program& graph, const std::string& device, bool whole) {
  std::map<std::string, std::string> target_of;  // by node name
  for (const ir::Node& node : graph.methods[0].nodes) target_of[node.name] = graph.op_of(node).target;
  std::map<std::string, int> kernels;
  std::map<std::string, std::map<std::string, int>> devices;  // launches by device and kernel
  std::map<std::string, std::map<std::string, int>> ops;      // launches by operator and kernel
  for (const Launch& launch : plan.launches) {
    const std::string kernel = kernel_name(launch);
    const std::string& node = plan.node_names[launch.node];
    const auto target = target_of.find(node);
    ++kernels[kernel];
    ++devices[launch.on_device ? device : "cpu"][kernel];
    ++ops[target == target_of.end() ? node : target->second][kernel];
  }
  OrderedJson allocations = OrderedJson::array();
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& a = plan.allocations[id];
    allocations.push_back(
        {{"id", id}, {"memory", name(a.memory)}, {"index", a.index}, {"bytes", a.bytes}, {"hits", a.hits}});
  }
  OrderedJson out{{"key", plan.key},
                  {"sizes", plan.key},
                  {"launches", plan.launches.size()},
                  {"arena_bytes", plan.arena_bytes},
                  {"kernels", kernels},
                  {"devices", devices},
                  {"ops", ops},
                  {"nodes", describe_nodes(plan, graph)},
                  {"passes", describe_passes(plan.passes)},
                  {"allocations", allocations}};
  if (has_kv_cache(graph.states)) {  // its sizes end the key
    const std::size_t n = plan.key.size() - kKvKeyNumbers;
    out["sizes"] = std::vector<std::int64_t>(plan.key.begin(), plan.key.begin() + static_cast<std::ptrdiff_t>(n));
    out["kv"] = {{"rows", plan.key[n]},
                 {"length", plan.key[n + 1]},
                 {"type", name(static_cast<KvType>(plan.key[n + 2]))},
                 {"window_slack", plan.key[n + 3]},
                 {"encoder_length", plan.key[n + 4]}};
    if (!plan.stages.empty()) {
      out["kv"]["first_row"] = plan.key[n + 5];
      out["kv"]["held"] = plan.key[n + 6];
    }
  }
  if (whole) {
    out["order"] = describe_order(plan);
    out["buffers"] = describe_buffers(plan);
  }
  if (plan.stages.empty()) return out;
  const Traffic t = traffic(plan);
  out["device_bytes"] = plan.device_block_bytes;
  out["uploads"] = t.uploads;
  out["upload_bytes"] = t.upload_bytes;
  out["downloads"] = t.downloads;
  out["download_bytes"] = t.download_bytes;
  out["stages"] = OrderedJson::array();
  for (const Stage& stage : plan.stages)
    out["stages"].push_back({{"device", stage.side == Side::device ? device : "cpu"},
                             {"launches", stage.end - stage.begin},
                             {"graphs", stage.graphs.size()},
                             {"streams", stage.streams},
                             {"events", stage.events},
                             {"transfers", stage.transfers.size()}});
  return out;
}

OrderedJson describe(const LoadedMethod& method, const ir::Program& graph) {
  OrderedJson inputs = OrderedJson::array();
  OrderedJson outputs = OrderedJson::array();
  for (const ValueInfo& v : method.info.inputs) inputs.push_back(describe(v));
  for (const ValueInfo& v : method.info.outputs) outputs.push_back(describe(v));
  std::map<std::string, int> ops;
  for (const ir::Node& node : graph.methods[0].nodes) ++ops[graph.op_of(node).target];
  OrderedJson weights = OrderedJson::object();
  for (const ir::Weight& w : graph.weights) {
    OrderedJson& row = weights[w.storage == ir::Storage::plain ? std::string(name(w.dtype)) : w.block_type];
    if (row.is_null()) row = {{"count", 0}, {"bytes", 0}};
    row["count"] = row["count"].get<int>() + 1;
    row["bytes"] = row["bytes"].get<std::uint64_t>() + w.byte_size;
  }
  return {{"name", method.info.name},
          {"inputs", inputs},
          {"outputs", outputs},
          {"ops", ops},
          {"weights", weights},
          {"passes", describe_passes(method.passes)},
          {"folded_constants", method.constants.size()}};
}

// The steps of a cut method, with the plans of their parts.
OrderedJson describe_steps(const ProgramImpl& program, const LoadedMethod& method, bool whole_plans) {
  constexpr const char* kinds[] = {"plan", "host", "cond", "loop"};
  OrderedJson steps = OrderedJson::array();
  const auto held = program.list_own_plans();
  for (const Step& step : method.steps) {
    OrderedJson parts = OrderedJson::array();
    if (step.kind == Step::Kind::host)
      parts.push_back({{"name", step.op.target}, {"nodes", 1}, {"plans", OrderedJson::array()}});
    for (const std::uint32_t index : step.parts) {
      const LoadedMethod& part = program.methods[index];
      const std::shared_ptr<const ir::Program> graph = program.graph(index);
      OrderedJson out{{"name", part.info.name},
                      {"nodes", graph->methods[0].nodes.size()},
                      {"passes", describe_passes(part.passes)},
                      {"plans", OrderedJson::array()}};
      for (const auto& [owner, plan] : held)
        if (owner == index) out["plans"].push_back(describe(*plan, *graph, program.device, whole_plans));
      if (!part.steps.empty()) out["steps"] = describe_steps(program, part, whole_plans);
      parts.push_back(out);
    }
    steps.push_back({{"kind", kinds[static_cast<std::size_t>(step.kind)]}, {"parts", parts}});
  }
  return steps;
}

}  // namespace

std::string Program::describe(bool whole_plans) const try {
  OrderedJson methods = OrderedJson::array();
  const auto held = impl_->list_own_plans();
  for (std::uint32_t i = 0; i < impl_->public_methods; ++i) {
    const std::shared_ptr<const ir::Program> graph = impl_->graph(i);
    methods.push_back(graft::describe(impl_->methods[i], *graph));
    methods[i]["segments"] = impl_->methods[i].info.segments;
    methods[i]["independent_rows"] = impl_->methods[i].info.independent_rows;
    if (!impl_->methods[i].steps.empty()) methods[i]["steps"] = describe_steps(*impl_, impl_->methods[i], whole_plans);
    for (const auto& [index, plan] : held)
      if (index == i) methods[i]["plans"].push_back(graft::describe(*plan, *graph, impl_->device, whole_plans));
  }
  OrderedJson states = OrderedJson::array();
  for (const StateInfo& state : impl_->states)
    states.push_back({{"fqn", state.state.fqn},
                      {"tensor", state_desc(state.state, {}).str()},
                      {"bytes", state_desc(state.state, {}).byte_count()}});
  const ProgramStats stats = impl_->stats();
  OrderedJson phases = OrderedJson::array();
  for (const PhaseStats& p : stats.phases)
    phases.push_back({{"name", p.name}, {"times", p.times}, {"milliseconds", p.milliseconds}, {"bytes", p.bytes}});
  OrderedJson out{{"graft", version()},
                  {"source", impl_->source},
                  {"device", impl_->device},
                  {"methods", methods},
                  {"states", states},
                  {"weights",
                   {{"count", stats.weight_count},
                    {"bytes", stats.weight_bytes},
                    {"given_bytes", stats.given_bytes},
                    {"copied_count", stats.copied_count},
                    {"copied_bytes", stats.copied_bytes},
                    {"converted_count", stats.converted_count},
                    {"converted_bytes", stats.converted_bytes},
                    {"packed_count", stats.packed_count},
                    {"packed_bytes", stats.packed_bytes},
                    {"released_bytes", stats.released_bytes},
                    {"constant_bytes", stats.constant_bytes}}},
                  {"graphs",
                   {{"bytes", stats.graph_bytes},
                    {"bytes_freed", stats.graph_bytes_freed},
                    {"read_again", stats.graphs_read_again}}},
                  {"phases", phases}};
  if (impl_->on_device) {
    out["weights"]["device_count"] = impl_->on_device->uploads();
    out["weights"]["device_bytes"] = impl_->on_device->uploaded_bytes();
    out["weights"]["device_left_out"] = impl_->placement.weights_on_host.size();
  }
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace);  // names come from files and may not be UTF-8
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
