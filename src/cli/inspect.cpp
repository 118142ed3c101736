#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/counters.h"
#include "cli/diagrams.h"
#include "cli/inputs.h"
#include "cli/text.h"
#include "stage/stage_info.h"

namespace graft::cli {
namespace {

using Json = OrderedJson;
constexpr auto kRight = Table::Align::right;

std::string count_text(const Json& number) { return std::to_string(number.get<std::uint64_t>()); }

void print_values(const char* title, const std::vector<ValueInfo>& values, const std::vector<std::string>& names) {
  if (values.empty()) {
    std::cout << "  " << title << ": none\n";
    return;
  }
  std::cout << "  " << title << "\n";
  Table table({{"#", kRight}, {"name"}, {"type"}});
  for (std::size_t i = 0; i < values.size(); ++i) table.add({std::to_string(i), names[i], type_text(values[i])});
  std::cout << table.text(4);
}

// Kernel names with their launches: "graft copy 3, ggml ADD 1".
std::string kernels_text(const Json& kernels) {
  std::string out;
  for (const auto& [kernel, launches] : kernels.items())
    out += str(out.empty() ? "" : ", ", kernel, " ", launches.get<std::uint64_t>());
  return out;
}

void print_ops(const Json& method, const Json* plan) {
  std::uint64_t total = 0;
  for (const auto& [op, count] : method["ops"].items()) total += count.get<std::uint64_t>();
  std::cout << "  ops: " << total << " nodes\n";
  const Json* launched = plan && plan->contains("ops") ? &(*plan)["ops"] : nullptr;
  std::vector<Table::Column> columns = {{"op"}, {"count", kRight}};
  if (launched) columns.push_back({"kernels with launches in the plan (-: a view or a number)"});
  Table table(columns);
  for (const auto& [op, count] : method["ops"].items()) {
    std::vector<std::string> cells = {op, count_text(count)};
    if (launched) cells.push_back(launched->contains(op) ? kernels_text((*launched)[op]) : "-");
    table.add(std::move(cells));
  }
  std::cout << table.text(4);
}

void print_weights(const Json& method) {
  if (method["weights"].empty()) {
    std::cout << "  weights: none\n";
    return;
  }
  std::cout << "  weights\n";
  Table table({{"type"}, {"tensors", kRight}, {"bytes", kRight}, {""}});
  for (const auto& [type, row] : method["weights"].items())
    table.add(
        {type, count_text(row["count"]), count_text(row["bytes"]), bytes_text(row["bytes"].get<std::uint64_t>())});
  std::cout << table.text(4);
}

// Kernels with the reason for each, most launches first, and the nodes that got them.
void print_reasons(const Json& plan) {
  struct Row {
    std::uint64_t launches = 0;
    std::string first;  // node
  };
  std::map<std::pair<std::string, std::string>, Row> rows;  // by kernel and reason
  for (const Json& node : plan["nodes"])
    for (const Json& launch : node["launches"]) {
      Row& row = rows[{launch["kernel"].get<std::string>(), launch["explanation"].get<std::string>()}];
      if (row.launches++ == 0) row.first = node["node"].get<std::string>();
    }
  std::vector<std::pair<std::pair<std::string, std::string>, Row>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.second.launches > b.second.launches; });
  Table table({{"kernel"}, {"launches", kRight}, {"explanation"}, {"first node"}});
  for (const auto& [key, row] : sorted)
    table.add({key.first, std::to_string(row.launches), key.second, printable(row.first)});
  std::cout << "  kernels and why (--plan lists them node by node)\n" << table.text(4);
}

void print_plan(const Json& plan) {
  const auto launches = plan["launches"].get<std::uint64_t>();
  const auto arena = plan["arena_bytes"].get<std::uint64_t>();
  // The key lists the sizes of all inputs in order; the tables above give the rank of each.
  std::cout << "  plan for the sizes " << plan["sizes"].dump() << ": " << launches
            << (launches == 1 ? " launch" : " launches") << ", arena " << arena << " bytes (" << bytes_text(arena)
            << ")\n";
  if (plan.contains("kv")) {
    const Json& kv = plan["kv"];
    Table cache({{"rows", kRight}, {"tokens", kRight}, {"stored as"}, {"room of windows", kRight}, {"source", kRight}});
    cache.add({kv["rows"].dump(), kv["length"].dump(), kv["type"].get<std::string>(), kv["window_slack"].dump(),
               kv["encoder_length"].dump()});
    std::cout << "  cache of keys and values\n" << cache.text(4);
  }
  if (launches == 0) return;
  Table kernels({{"kernel"}, {"launches", kRight}, {"device"}});
  for (const auto& [device, launched] : plan["devices"].items())
    for (const auto& [kernel, count] : launched.items()) kernels.add({kernel, count_text(count), device});
  std::cout << kernels.text(4);
  print_reasons(plan);
  if (!plan.contains("stages")) return;
  std::cout << "  stages: " << plan["stages"].size() << ", per run " << plan["uploads"] << " uploads ("
            << bytes_text(plan["upload_bytes"].get<std::uint64_t>()) << ") and " << plan["downloads"] << " downloads ("
            << bytes_text(plan["download_bytes"].get<std::uint64_t>()) << "); "
            << bytes_text(plan["device_bytes"].get<std::uint64_t>()) << " on the device\n";
  std::uint64_t graphs = 0, events = 0, streams = 0;
  for (const Json& stage : plan["stages"]) {
    graphs += stage["graphs"].get<std::uint64_t>();
    events += stage["events"].get<std::uint64_t>();
    streams = std::max(streams, stage["streams"].get<std::uint64_t>());
  }
  std::cout << "  graphs queued: " << graphs << ", in " << streams << (streams == 1 ? " stream" : " streams")
            << " with " << events << " events\n";
}

// The table of memory and the launches in order, each tensor by its logical address.
void print_whole_plan(const Json& plan) {
  Table memory({{"id", kRight}, {"memory"}, {"index", kRight}, {"bytes", kRight}, {"entries", kRight}});
  for (const Json& a : plan["allocations"])
    memory.add({count_text(a["id"]), a["memory"].get<std::string>(), count_text(a["index"]), count_text(a["bytes"]),
                count_text(a["hits"])});
  std::cout << "  memory by allocation id\n" << memory.text(4);
  if (plan.contains("metadata_bytes")) std::cout << "  metadata: " << plan["metadata_bytes"] << " bytes\n";
  Table nodes({{"node"}, {"op"}, {"kernel"}, {"explanation"}});
  for (const Json& node : plan["nodes"]) {
    bool first_launch = true;
    for (const Json& launch : node["launches"]) {
      nodes.add({first_launch ? printable(node["node"].get<std::string>()) : "",
                 first_launch ? node["op"].get<std::string>() : "", launch["kernel"].get<std::string>(),
                 launch["explanation"].get<std::string>()});
      first_launch = false;
    }
  }
  std::cout << "  nodes and their kernels\n" << nodes.text(4);
  Table order({{"#", kRight}, {"beside"}, {"node"}, {"kernel"}, {"tensor"}, {"id+offset"}, {"alive"}});
  std::size_t index = 0;
  for (const Json& launch : plan["order"]) {
    bool first = true;
    for (const char* side : {"inputs", "outputs"})
      for (const Json& t : launch[side]) {
        const std::string alive =
            is_text(t["memory"], "arena") ? t["first_use"].dump() + ".." + t["last_use"].dump() : "";
        const Json& place = launch["side_by_side"];
        const std::string beside = place.is_null() ? "" : place["group"].dump() + "." + place["branch"].dump();
        order.add({first ? std::to_string(index) : "", first ? beside : "",
                   first ? printable(launch["node"].get<std::string>()) : "",
                   first ? launch["kernel"].get<std::string>() : "",
                   (side[0] == 'i' ? "< " : "> ") + t["tensor"].get<std::string>(),
                   t["memory"].get<std::string>() + " " + t["allocation"].dump() + "+" + t["offset"].dump(), alive});
        first = false;
      }
    ++index;
  }
  std::cout << "  launches (< reads, > writes; alive: first and last launch; beside: group and branch of launches that "
               "run side by side)\n"
            << order.text(4);
}

// The phases of this program so far, and how much shrinking it frees.
void print_phases(const Program& program) {
  constexpr double kMicros = 1000;
  const ProgramStats before = program.stats();
  program.shrink();
  const ProgramStats after = program.stats();
  std::cout << "\nphases\n";
  Table table({{"phase"}, {"times", kRight}, {"microseconds", kRight}, {"bytes", kRight}});
  for (const PhaseStats& p : before.phases)
    table.add({p.name, std::to_string(p.times), std::to_string(std::llround(p.milliseconds * kMicros)),
               std::to_string(p.bytes)});
  std::cout << table.text(2) << "  graphs in memory: " << before.graph_bytes << " bytes, after shrink "
            << after.graph_bytes << "\n";
}

// The effect of each pass on a graph or on the launches of a plan.
void print_passes(const std::string& title, const Json& passes) {
  Table table(
      {{"pass"}, {"stage"}, {"rewrites", kRight}, {"before", kRight}, {"after", kRight}, {"did not run: only if"}});
  for (const Json& pass : passes) {
    const bool ran = pass["ran"].get<bool>();
    table.add({pass["name"].get<std::string>(), pass["stage"].get<std::string>(),
               ran ? count_text(pass["rewrites"]) : "-", count_text(pass["before"]), count_text(pass["after"]),
               ran ? "" : pass["condition"].get<std::string>()});
  }
  std::cout << "  passes " << title << "\n" << table.text(4);
}

// For a method, its plans and, where it is cut, its segments.
void print_all_passes(const Json& method) {
  print_passes("over the graph of " + printable(method["name"].get<std::string>()) + " (before, after: nodes)",
               method["passes"]);
  if (method.contains("plans"))
    for (const Json& plan : method["plans"])
      print_passes("over the plan for the sizes " + plan["sizes"].dump() + " (before, after: launches)",
                   plan["passes"]);
  if (!method.contains("steps")) return;
  for (const Json& step : method["steps"])
    for (const Json& part : step["parts"])
      if (part.contains("passes")) print_all_passes(part);
}

void print_human(const Json& all, const Program& program, const std::optional<Counters>& counters) {
  const std::string device = all["device"].get<std::string>();
  const Json& weights = all["weights"];
  std::cout << printable(all["source"].get<std::string>()) << ": graft " << all["graft"].get<std::string>()
            << ", device " << device << "\nweights: " << weights["count"] << " in "
            << bytes_text(weights["bytes"].get<std::uint64_t>()) << ", of these copied "
            << bytes_text(weights["copied_bytes"].get<std::uint64_t>());
  if (weights["converted_count"] != 0)
    std::cout << ", converted to f32 " << bytes_text(weights["converted_bytes"].get<std::uint64_t>());
  std::cout << "; folded constants " << bytes_text(weights["constant_bytes"].get<std::uint64_t>()) << "\n";
  if (all.contains("stage"))
    std::cout << "stage " << all["stage"]["stage"] << " of " << all["stage"]["stages"] << " of the model "
              << printable(all["stage"]["model"].get<std::string>()) << "\n";
  for (const Json& method : all["methods"]) {
    const MethodInfo& info = program.method(method["name"].get<std::string>());
    std::cout << "\nmethod " << printable(info.name) << "\n";
    std::vector<std::string> input_names;
    for (const ValueInfo& input : info.inputs) input_names.push_back(input.name);
    print_values("inputs", info.inputs, input_names);
    print_values("outputs", info.outputs, output_names(info));
    const Json* plan = method.contains("plans") && !method["plans"].empty() ? &method["plans"][0] : nullptr;
    if (info.segments == 1) {
      print_ops(method, plan);
      print_weights(method);
    }
    if (info.segments > 1) {
      std::cout << "  runs in " << info.segments << " segments\n";
      Table table({{"segment"}, {"what"}, {"nodes", kRight}, {"plans", kRight}});
      std::size_t number = 0;
      for (const Json& step : method["steps"])
        for (const Json& part : step["parts"])
          table.add({std::to_string(number++),
                     printable(step["kind"].get<std::string>() + " " + part["name"].get<std::string>()),
                     count_text(part["nodes"]), std::to_string(part["plans"].size())});
      std::cout << table.text(4);
    } else if (plan) {
      print_plan(*plan);
      if (plan->contains("order")) print_whole_plan(*plan);
    } else if (method.contains("plan_error")) {
      std::cout << "  no plan: " << printable(method["plan_error"].get<std::string>()) << "\n";
    } else {
      std::cout << "  no plan: sizes are open; give --shape NAME=SIZES\n";
    }
  }
  if (!all["states"].empty()) {
    std::cout << "\nstates\n";
    Table table({{"name"}, {"type"}, {"bytes", kRight}});
    for (const Json& state : all["states"])
      table.add({state["fqn"].get<std::string>(), state["tensor"].get<std::string>(), count_text(state["bytes"])});
    std::cout << table.text(2);
  }
  if (counters) std::cout << "\ncounters after planning\n" << counter_table(*counters);
}

// Times for the first plan of each method: of a run with made-up inputs, in a session of its own.
void add_profiles(Json& page, const std::shared_ptr<const Program>& program, const InspectArgs& args) {
  for (Json& method : page["methods"]) {
    if (!method.contains("plans") || method["plans"].empty()) continue;
    const MethodInfo& info = program->method(method["name"].get<std::string>());
    const bool shaped = !args.shapes.empty() && (args.program.method.empty() || args.program.method == info.name);
    Json& plan = method["plans"][0];
    try {
      plan["profile"] = profile_of(
          program, info, shaped_inputs(info, shaped ? args.shapes : std::vector<std::string>{}), args.program.threads);
    } catch (const Error& error) {
      plan["profile_error"] = error.what();
    }
  }
}

}  // namespace

void inspect(const InspectArgs& args) {
  const std::shared_ptr<const Program> program = Program::load(args.program.file, load_options_of(args.program));
  SessionOptions session_options;
  session_options.threads = args.program.threads;
  Session session(program, session_options);
  bool planned = false;
  std::map<std::string, std::size_t> metadata;  // of the one plan made for each method
  if (!args.shapes.empty() || !args.program.method.empty()) {
    const MethodInfo& method = pick_method(*program, args.program.method);
    metadata[method.name] = session.plan(method.name, shaped_inputs(method, args.shapes)).metadata_bytes;
    planned = true;
  }
  // Methods whose sizes are all fixed have one plan; if planning fails, the page shows the error.
  std::vector<std::pair<std::string, std::string>> errors;
  for (const std::string& name : program->method_names()) {
    const MethodInfo& method = program->method(name);
    if (planned && (args.program.method.empty() || args.program.method == name)) continue;
    if (!all_static(method) || method.segments > 1) continue;
    try {
      metadata[name] = session.plan(name, shaped_inputs(method, {})).metadata_bytes;
      planned = true;
    } catch (const Error& error) {
      errors.emplace_back(name, error.what());
    }
  }
  Json all = read_json<Json>(program->describe(args.plan));
  if (const auto stage = stage::read_stage_info(args.program.file))
    all["stage"] = {{"stage", stage->stage}, {"stages", stage->stages}, {"model", stage->model}};
  for (Json& method : all["methods"])
    for (const auto& [name, message] : errors)
      if (method["name"] == name) method["plan_error"] = message;
  for (Json& method : all["methods"])
    if (const auto found = metadata.find(method["name"].get<std::string>()); found != metadata.end())
      method["plans"][0]["metadata_bytes"] = found->second;
  if (planned)
    for (const auto& [name, value] : counter_list(session.counters())) all["counters"][name] = value;
  if (!args.html.empty()) {
    Json page = read_json<Json>(program->describe(true));
    add_profiles(page, program, args);
    write_text(args.html, html_page(page));
  }
  if (args.json) {
    std::cout << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    print_human(all, *program, planned ? std::optional(session.counters()) : std::nullopt);
    if (args.passes) {
      std::cout << "\n";
      for (const Json& method : all["methods"]) print_all_passes(method);
    }
    if (args.phases) print_phases(*program);
  }
}

}  // namespace graft::cli
