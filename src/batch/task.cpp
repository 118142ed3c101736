#include "batch/task.h"

#include <algorithm>
#include <filesystem>

#include "batch/encoder_task.h"
#include "batch/method.h"
#include "batch/served.h"
#include "batch/transcribe.h"

namespace graft::batch {
namespace {

// A task: what it calls what it reads, which options it has, and how it is made.
struct TaskEntry {
  const char* name;
  std::vector<std::string> reads;  // empty: any name
  bool takes_parameters = false, takes_method = false, takes_text = false, takes_labels = false, takes_system = false;
  std::unique_ptr<Task> (*make)(const TaskContext& context);
};

const std::vector<TaskEntry>& entries() {
  static const std::vector<TaskEntry> all = {
      {.name = "generate", .reads = {"text"}, .takes_parameters = true, .make = generate_task},
      {.name = "chat",
       .reads = {"messages", "text"},
       .takes_parameters = true,
       .takes_system = true,
       .make = chat_task},
      {.name = "embed", .reads = {"text", "path"}, .takes_method = true, .takes_text = true, .make = embed_task},
      {.name = "rerank", .reads = {"query", "documents"}, .takes_parameters = true, .make = rerank_task},
      {.name = "classify",
       .reads = {"text", "path"},
       .takes_method = true,
       .takes_text = true,
       .takes_labels = true,
       .make = classify_task},
      {.name = "transcribe", .reads = {"path"}, .takes_parameters = true, .make = transcribe_task},
      {.name = "method", .reads = {}, .takes_method = true, .make = method_task},
      {.name = "openai", .reads = {"-"}, .make = openai_task},
  };
  return all;
}

const TaskEntry& entry_of(const std::string& name) {
  const auto found = std::ranges::find(entries(), name, &TaskEntry::name);
  GRAFT_CHECK(InvalidArgument, found != entries().end(), "there is no task '", name, "'");
  return *found;
}

const char* name_of(Format format) {
  return format == Format::csv ? "csv" : format == Format::folder ? "folder" : "jsonl";
}

void check_options(const TaskEntry& entry, const BatchOptions& options) {
  const auto check = [&](bool has, bool given, const char* flag) {
    GRAFT_CHECK(InvalidArgument, has || !given, "the task '", entry.name, "' has no ", flag);
  };
  check(entry.takes_parameters, !options.parameters.empty(), "--set");
  check(entry.takes_method, !options.method.empty(), "--method");
  check(entry.takes_text, options.truncate, "--truncate");
  check(entry.takes_labels, !options.labels.empty(), "--labels");
  check(entry.takes_system, !options.system.empty(), "--system");
  for (const auto& [name, column] : options.columns) {
    const bool known = entry.reads.empty() || std::ranges::find(entry.reads, name) != entry.reads.end();
    GRAFT_CHECK(InvalidArgument, known, "the task '", entry.name, "' reads nothing that it calls '", name, "'");
    GRAFT_CHECK(InvalidArgument,
                std::ranges::count(options.columns, name, [](const auto& one) { return one.first; }) == 1,
                "--column names '", name, "' twice");
  }
  GRAFT_CHECK(InvalidArgument, options.task != "openai" || options.format == Format::jsonl,
              "files of OpenAI's Batch API are JSON Lines");
  GRAFT_CHECK(InvalidArgument, options.task != "openai" || options.drop.empty(),
              "the task 'openai' has no --drop: its lines are those of OpenAI's Batch API");
}

}  // namespace

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const TaskEntry& entry : entries()) out.emplace_back(entry.name);
    return out;
  }();
  return names;
}

std::string TaskContext::column(const std::string& name) const {
  const auto found = std::ranges::find(options.columns, name, [](const auto& one) { return one.first; });
  return found == options.columns.end() ? name : found->second;
}

std::string TaskContext::only_column(const std::string& name) const {
  for (const auto& [what, _] : options.columns)
    GRAFT_CHECK(InvalidArgument, what == name, "the task '", options.task, "' reads '", name,
                "' with this model, nothing that it calls '", what, "'");
  return column(name);
}

std::string TaskContext::file_of(const std::string& path) const {
  namespace fs = std::filesystem;
  const fs::path input(options.input);
  const fs::path folder = !options.files.empty()             ? fs::path(options.files)
                          : options.format == Format::folder ? input
                                                             : input.parent_path();
  return (folder / path).string();  // an absolute path stays as it is
}

SessionOptions session_options(const BatchOptions& options) {
  SessionOptions session;
  session.threads = options.decoder.threads;
  return session;
}

const MethodInfo& method_of(const Program& program, const BatchOptions& options) {
  if (!options.method.empty()) return program.method(options.method);
  const std::vector<std::string> names = program.method_names();
  const bool forward = std::ranges::find(names, "forward") != names.end();
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  GRAFT_CHECK(InvalidArgument, forward || names.size() == 1,
              "the program has several methods and none is called forward: --method must name one of ", list);
  return program.method(forward ? "forward" : names[0]);
}

std::unique_ptr<Task> make_task(const TaskContext& context) { return entry_of(context.options.task).make(context); }

Json task_options(const BatchOptions& options) {
  check_options(entry_of(options.task), options);
  Json columns = Json::object();
  for (const auto& [name, column] : options.columns) columns[name] = column;
  return {{"task", options.task},
          {"format", name_of(options.format)},
          {"shard_rows", options.shard_rows},
          {"batch_rows", options.batch_rows},
          {"columns", std::move(columns)},
          {"drop", options.drop},
          {"set", options.parameters},
          {"system", options.system},
          {"method", options.method},
          {"labels", options.labels},
          {"truncate", options.truncate},
          {"model_name", options.model.name},
          {"context", options.decoder.length},
          {"kv_type", static_cast<int>(options.decoder.kv_type)},
          {"prefill_chunk_size", options.decoder.prefill_chunk_size},
          {"device", options.load.device},
          {"fast_kernels", options.load.fast_kernels},
          {"matmul_precision", static_cast<int>(options.load.matmul_precision)}};
}

}  // namespace graft::batch
