#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/counters.h"
#include "cli/diagrams.h"
#include "cli/inputs.h"
#include "cli/npz.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

RunOptions call_options(const RunArgs& args) {
  RunOptions options;
  if (args.timeout_s) {
    // A timeout longer than the clock can represent means no deadline.
    constexpr double most = 1e9;
    if (*args.timeout_s < most) options.deadline = Clock::now() + duration_of(*args.timeout_s);
  }
  return options;
}

// Writes the outputs of nodes as FOLDER/NODE.npy; those of a node that runs several launches, or whose launch has
// several outputs, as NODE.1.npy and so on too.
class Dump {
 public:
  explicit Dump(const RunArgs& args) : node_(args.dump[0]), folder_(args.dump[1]) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) fail<SystemError>("cannot make the folder '", folder_.string(), "': ", error.message());
  }

  void add(const ObservedLaunch& launch) {
    const std::string node(launch.node);
    nodes_.insert(node);
    if (node_ != "all" && node_ != node) return;
    for (const TensorView& output : launch.outputs) {
      const std::size_t copy = copies_[node]++;
      write_npy((folder_ / (file_name(node) + (copy == 0 ? "" : str(".", copy)) + ".npy")).string(), output);
      ++written_;
    }
  }

  void report() const {
    if (written_ > 0) {
      std::cout << "\n"
                << written_ << (written_ == 1 ? " tensor" : " tensors") << " written to " << folder_.string() << "\n";
      return;
    }
    std::string names;
    for (const std::string& name : nodes_) names += (names.empty() ? "" : ", ") + name;
    fail<NotFound>("no launch has the name of node '", node_, "'; it may be part of a fused one. There are: ", names);
  }

 private:
  static std::string file_name(std::string node) {
    std::ranges::replace(node, '/', '_');
    return node;
  }

  std::string node_;
  std::filesystem::path folder_;
  std::set<std::string> nodes_;
  std::map<std::string, std::size_t> copies_;
  std::size_t written_ = 0;
};

void print_outputs(const MethodInfo& method, const std::vector<std::string>& names, const std::vector<Value>& outputs) {
  Table table({{"output"}, {"type"}, {"value"}});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Value& value = outputs[i];
    std::string type(kind_text(value.kind));
    std::string shown = "-";
    switch (value.kind) {
      case Value::Kind::tensor:
        type = TensorDesc(value.tensor.dtype, value.tensor.shape).str();
        shown = preview(value.tensor);
        break;
      case Value::Kind::integer:
        shown = std::to_string(value.i);
        break;
      case Value::Kind::real:
        shown = str(value.f);
        break;
      case Value::Kind::boolean:
        shown = value.i ? "true" : "false";
        break;
      case Value::Kind::text:
        shown = value.text;
        break;
      case Value::Kind::none:
        break;
    }
    table.add({names[i], type, shown});
  }
  std::cout << "method " << printable(method.name) << "\n" << table.text(2);
}

// Outputs as arrays: numbers become arrays of rank 0. None and strings have no array and are named on stderr.
std::vector<NamedTensor> arrays_of(const std::vector<std::string>& names, std::vector<Value>& outputs) {
  std::vector<NamedTensor> arrays;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Value& value = outputs[i];
    switch (value.kind) {
      case Value::Kind::tensor:
        arrays.push_back({names[i], value.tensor});
        break;
      case Value::Kind::integer:
        arrays.push_back({names[i], {&value.i, DType::i64, Shape{}}});
        break;
      case Value::Kind::real:
        arrays.push_back({names[i], {&value.f, DType::f64, Shape{}}});
        break;
      // Little-endian: the first byte is the 0 or 1.
      case Value::Kind::boolean:
        arrays.push_back({names[i], {&value.i, DType::b8, Shape{}}});
        break;
      default:
        std::cerr << "graft: note: output '" << names[i] << "' is " << kind_text(value.kind)
                  << "; no array is written for it\n";
        continue;
    }
    if (arrays.back().tensor.dtype == DType::bf16)
      std::cerr << "graft: note: output '" << names[i]
                << "' is bf16, which NumPy does not have; written as uint16 bit patterns\n";
  }
  return arrays;
}

void write_outputs(const RunArgs& args, const std::vector<std::string>& names, std::vector<Value>& outputs) {
  if (args.output_dir.empty() && args.outputs_npz.empty()) return;
  const std::vector<NamedTensor> arrays = arrays_of(names, outputs);
  if (!args.outputs_npz.empty()) write_npz(args.outputs_npz, arrays);
  if (args.output_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(args.output_dir, error);
  if (error) fail<SystemError>("cannot make the folder '", args.output_dir, "': ", error.message());
  for (const NamedTensor& item : arrays)
    write_npy((std::filesystem::path(args.output_dir) / (item.name + ".npy")).string(), item.tensor);
}

void print_times(double load_ms, double first_ms, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const std::size_t n = times.size();
  const double median = n % 2 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  Table table({{"time"}, {"ms", Table::Align::right}});
  table.add({"load", fixed(load_ms, 4)});
  table.add({"first call (plan and run)", fixed(first_ms, 4)});
  table.add({str(n, n == 1 ? " more call, min" : " more calls, min"), fixed(times.front(), 4)});
  table.add({"median", fixed(median, 4)});
  table.add({"max", fixed(times.back(), 4)});
  std::cout << "\n"
            << table.text(2)
            << "\npeak memory of the process: " << bytes_text(static_cast<std::uint64_t>(usage.ru_maxrss) * 1024)
            << "\n";
}

// Of a kernel or a node.
struct Total {
  std::int64_t ns = 0;
  std::size_t launches = 0;
};

void print_profile(const std::vector<NodeTiming>& profile) {
  constexpr std::size_t top = 15;
  std::map<std::string, Total> kernels;
  std::map<std::pair<std::string, std::string>, Total> nodes;
  std::int64_t total = 0;
  for (const NodeTiming& timing : profile) {
    const std::int64_t ns = timing.end_ns - timing.start_ns;
    total += ns;
    for (Total* sum : {&kernels[timing.kernel], &nodes[{timing.node, timing.kernel}]}) {
      sum->ns += ns;
      ++sum->launches;
    }
  }
  const auto percent = [&](std::int64_t ns) {
    return total ? fixed(100.0 * static_cast<double>(ns) / static_cast<double>(total), 1) : std::string("-");
  };
  const auto by_time = [](const auto& map) {
    std::vector<std::pair<typename std::decay_t<decltype(map)>::key_type, Total>> rows(map.begin(), map.end());
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
    return rows;
  };
  const auto ms = [](std::int64_t ns) { return fixed(static_cast<double>(ns) / 1e6, 4); };

  std::cout << "\nprofile of one more call: " << profile.size() << " launches, " << ms(total) << " ms\n";
  constexpr auto right = Table::Align::right;
  Table by_kernel({{"kernel"}, {"launches", right}, {"ms", right}, {"%", right}});
  for (const auto& [kernel, sum] : by_time(kernels))
    by_kernel.add({kernel, std::to_string(sum.launches), ms(sum.ns), percent(sum.ns)});
  std::cout << by_kernel.text(2) << "\n";
  Table by_node({{"node"}, {"kernel"}, {"launches", right}, {"ms", right}, {"%", right}});
  std::size_t shown = 0;
  for (const auto& [key, sum] : by_time(nodes)) {
    if (shown++ == top) break;
    by_node.add({key.first, key.second, std::to_string(sum.launches), ms(sum.ns), percent(sum.ns)});
  }
  std::cout << by_node.text(2);
  if (nodes.size() > top) std::cout << "  and " << nodes.size() - top << " more\n";
}

}  // namespace

void run(const RunArgs& args) {
  const Clock::time_point load_start = Clock::now();
  const std::shared_ptr<const Program> program = Program::load(args.program.file, load_options_of(args.program));
  const double load_ms = ms_since(load_start);
  const MethodInfo& method = pick_method(*program, args.program.method);
  const std::vector<Value> inputs = read_inputs(method, args.inputs, args.inputs_npz, args.program.max_zip_ratio);
  SessionOptions session_options;
  session_options.threads = args.program.threads;
  session_options.seed = args.seed;
  session_options.buckets = read_buckets(args.buckets);
  Session session(program, session_options);

  const Clock::time_point first_start = Clock::now();
  RunOptions first_options = call_options(args);
  if (!args.check.empty()) first_options.check = args.check == "nan" ? Check::nan : Check::finite;
  std::optional<Dump> dump;
  if (!args.dump.empty()) {
    dump.emplace(args);
    first_options.observe = [&](const ObservedLaunch& launch) { dump->add(launch); };
  }
  std::vector<Value> outputs = session.run(method.name, inputs, first_options);
  const double first_ms = ms_since(first_start);
  const std::vector<std::string> names = output_names(method);
  print_outputs(method, names, outputs);
  // Before the repeated calls, which reuse the memory: a program with states returns something else each time.
  write_outputs(args, names, outputs);
  if (dump) dump->report();

  if (args.repeat > 0) {
    std::vector<double> times;
    for (std::int64_t i = 0; i < args.repeat; ++i) {
      const RunOptions options = call_options(args);
      const Clock::time_point start = Clock::now();
      session.run_into(method.name, inputs, outputs, options);
      times.push_back(ms_since(start));
    }
    print_times(load_ms, first_ms, std::move(times));
    std::cout << "\n"
              << session.threads() << (session.threads() == 1 ? " thread" : " threads")
              << ", counters of this session\n"
              << counter_table(session.counters());
  }
  if (args.profile) {
    std::vector<NodeTiming> profile;
    RunOptions options = call_options(args);
    options.profile = &profile;
    session.run_into(method.name, inputs, outputs, options);
    print_profile(profile);
  }
  if (!args.trace.empty()) {
    std::vector<NodeTiming> profile;
    RunOptions options = call_options(args);
    options.profile = &profile;
    const Clock::time_point start = Clock::now();
    session.run_into(method.name, inputs, outputs, options);
    const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    write_text(args.trace, trace_json(*program, method.name, session.threads(), profile, wall));
    std::int64_t sum = 0;
    for (const NodeTiming& node : profile) sum += node.end_ns - node.start_ns;
    std::cout << "\ntrace of one more call: " << profile.size() << " launches in "
              << fixed(static_cast<double>(sum) / 1e6, 4) << " of " << fixed(static_cast<double>(wall) / 1e6, 4)
              << " ms, written to " << printable(args.trace) << "\n";
  }
}

}  // namespace graft::cli
