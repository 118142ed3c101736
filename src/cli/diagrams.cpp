#include "cli/diagrams.h"

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>

#include "base/clock.h"
#include "base/json.h"
#include "cli/text.h"

namespace graft::cli {

extern const std::string_view kPage;  // page.html

namespace {

using Json = OrderedJson;

constexpr int kProfiledRuns = 5;

constexpr auto kReplace = Json::error_handler_t::replace;  // names come from files and may not be UTF-8

// JSON escaped so that no HTML parser takes it for markup.
std::string in_html(const Json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, kReplace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// Memory for the inputs: zeros, or integers that count up along the last dimension.
std::vector<Value> made_up(const std::vector<Value>& shapes, bool counting,
                           std::vector<std::vector<std::uint64_t>>& memory) {
  std::vector<Value> inputs = shapes;
  for (Value& input : inputs) {
    if (input.kind != Value::Kind::tensor) continue;
    TensorView& tensor = input.tensor;
    const std::size_t count = static_cast<std::size_t>(tensor.shape.numel());
    memory.emplace_back((count * byte_size(tensor.dtype) + 7) / 8 + 1);
    tensor.data = memory.back().data();
    const std::size_t row =
        tensor.shape.rank() > 0 && count > 0 ? static_cast<std::size_t>(tensor.shape[tensor.shape.rank() - 1]) : 1;
    if (!counting) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (tensor.dtype == DType::i64) static_cast<std::int64_t*>(tensor.data)[i] = static_cast<std::int64_t>(i % row);
      if (tensor.dtype == DType::i32) static_cast<std::int32_t*>(tensor.data)[i] = static_cast<std::int32_t>(i % row);
    }
  }
  return inputs;
}

}  // namespace

std::string html_page(const Json& described) {
  constexpr std::string_view place = "@DATA@";
  const std::size_t at = kPage.find(place);
  std::string page(kPage.substr(0, at));
  page += in_html(described);
  return page += kPage.substr(at + place.size());
}

Json profile_of(const std::shared_ptr<const Program>& program, const MethodInfo& method,
                const std::vector<Value>& shapes, int threads) {
  for (const bool counting : {false, true}) {
    std::vector<std::vector<std::uint64_t>> memory;
    const std::vector<Value> inputs = made_up(shapes, counting, memory);
    SessionOptions options;
    options.threads = threads;
    Session session(program, options);
    try {
      std::vector<Value> outputs = session.run(method.name, inputs);
      std::int64_t wall = 0;
      std::vector<NodeTiming> fastest;
      for (int i = 0; i < kProfiledRuns; ++i) {
        session.reset();  // a program with states gets the same inputs again
        std::vector<NodeTiming> profile;
        RunOptions run_options;
        run_options.profile = &profile;
        const Clock::time_point start = Clock::now();
        session.run_into(method.name, inputs, outputs, run_options);
        const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
        if (i > 0 && spent >= wall) continue;
        wall = spent;
        fastest = std::move(profile);
      }
      Json launches = Json::array();
      for (const NodeTiming& t : fastest) launches.push_back({{"start_ns", t.start_ns}, {"end_ns", t.end_ns}});
      return {{"inputs", counting ? "numbers that count up" : "zeros"},
              {"threads", session.threads()},
              {"runs", kProfiledRuns},
              {"wall_ns", wall},
              {"launches", launches}};
    } catch (const Error&) {
      if (counting) throw;
    }
  }
  return {};
}

std::string trace_json(const Program& program, const std::string& method, int threads,
                       std::span<const NodeTiming> profile, std::int64_t wall_ns) {
  struct About {
    std::string op;
    Json launches;
    std::size_t next = 0;
  };
  std::map<std::string, About> nodes;
  const Json all = read_json<Json>(program.describe());
  for (const Json& one : all["methods"]) {
    if (one["name"] != method || !one.contains("plans")) continue;
    for (const Json& node : one["plans"][0]["nodes"])
      nodes[node["node"].get<std::string>()] = {node["op"].get<std::string>(), node["launches"]};
  }
  constexpr double kMicros = 1e3;  // nanoseconds
  const auto slice = [&](const std::string& name, const std::string& category, std::int64_t start, std::int64_t end) {
    return Json{{"name", name},
                {"cat", category},
                {"ph", "X"},
                {"pid", 1},
                {"tid", 1},
                {"ts", static_cast<double>(start) / kMicros},
                {"dur", static_cast<double>(end - start) / kMicros}};
  };
  Json events = Json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "graft"}}}});
  events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", 1}, {"args", {{"name", method}}}});
  events.push_back(slice(method, "run", 0, wall_ns));
  events.back()["args"] = {{"launches", profile.size()}, {"threads", threads}};
  for (std::size_t i = 0; i < profile.size(); ++i) {
    const NodeTiming& t = profile[i];
    events.push_back(slice(t.node, t.kernel, t.start_ns, t.end_ns));
    Json args{{"launch", i}, {"kernel", t.kernel}};
    if (const auto found = nodes.find(t.node); found != nodes.end()) {
      About& about = found->second;
      args["op"] = about.op;
      if (about.next < about.launches.size()) args["explanation"] = about.launches[about.next++]["explanation"];
    }
    events.back()["args"] = std::move(args);
  }
  return Json{{"traceEvents", events},
              {"displayTimeUnit", "ms"},
              {"otherData", {{"graft", version()}, {"source", all["source"]}}}}
      .dump(1, ' ', false, kReplace);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) fail<SystemError>("cannot write '", path, "'");
}

}  // namespace graft::cli
