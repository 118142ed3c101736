#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>

#include "batch/options.h"
#include "batch/output.h"
#include "batch/progress.h"
#include "batch/reader.h"
#include "batch/task.h"

namespace graft::batch {
namespace {

namespace fs = std::filesystem;

Json identity_json(const FileIdentity& identity) { return {{"bytes", identity.bytes}, {"sha256", identity.sha256}}; }

struct InputSize {
  std::uint64_t rows = 0;
  Json identity;
};

// Reads the input once, before anything is computed: how many rows it has, and which file it is.
InputSize measure(const BatchOptions& options) {
  const auto reader = read_rows(options.input, options.format);
  InputSize size;
  while (reader->skip()) ++size.rows;
  size.identity = identity_json(reader->identity());
  return size;
}

// All files that results depend on.
Json model_identity(const BatchOptions& options) {
  Json out = Json::object();
  out["package"] = identity_json(identity_of(options.model.path));
  for (std::size_t i = 0; i < options.load.weights.size(); ++i)
    out[str("weights ", i)] = identity_json(identity_of(options.load.weights[i]));
  const std::string& tokenizer = options.model.tokenizer;
  if (tokenizer.empty()) return out;
  if (!fs::is_directory(tokenizer)) {
    out["tokenizer"] = identity_json(identity_of(tokenizer));
    return out;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    if (const fs::path file = fs::path(tokenizer) / name; fs::exists(file))
      out[name] = identity_json(identity_of(file.string()));
  return out;
}

void check_columns(const Task& task, const Reader& reader, const BatchOptions& options) {
  const auto& columns = reader.columns();
  const auto list = [](const std::vector<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
    return out;
  };
  const auto has = [&](const std::string& name) { return std::ranges::find(columns, name) != columns.end(); };
  for (const std::string& name : task.results()) {
    const bool dropped = std::ranges::find(options.drop, name) != options.drop.end();
    GRAFT_CHECK(InvalidArgument, !has(name) || dropped, "'", options.input, "' has a column '", name,
                "', which is what the task '", options.task, "' calls its result: --drop ", name, " leaves it out");
  }
  if (columns.empty()) return;  // rows say themselves what they have
  for (const std::string& name : task.needs())
    GRAFT_CHECK(InvalidArgument, has(name), "'", options.input, "' has no column '", name, "', which the task '",
                options.task, "' reads (--column says which one to read); it has: ", list(columns));
  for (const std::string& name : options.drop)
    GRAFT_CHECK(InvalidArgument, has(name), "'", options.input, "' has no column '", name,
                "' to drop; it has: ", list(columns));
}

// Rows as files.
class Writer {
 public:
  Writer(const BatchOptions& options, const Reader& reader, const Task& task)
      : options_(options), columns_(kept(reader.columns())), results_(task.results()) {}

  // Of a finished shard. What cannot be written becomes an error of its row.
  void write(Shard& shard, Output& output) {
    std::string rows, errors;
    std::uint64_t error_count = 0;
    if (options_.format == Format::csv) rows = header();
    for (std::size_t i = 0; i < shard.rows.size(); ++i) {
      const Row& row = shard.rows[i];
      RowResult& result = shard.results[i];
      if (result.error.empty()) result.error = conflict(row);
      if (result.error.empty()) {
        rows += options_.format == Format::csv ? csv_line(row, result) : json_line(row, result);
      } else {
        ++error_count;
        errors += serve::dump({{"row", row.index}, {"line", row.line}, {"error", result.error}}) + "\n";
      }
    }
    if (shard.index == 0 && error_count > 0 && error_count == shard.rows.size())
      throw InvalidArgument(str("none of the first ", error_count, " rows can be computed; line ", shard.rows[0].line,
                                ": ", shard.results[0].error));
    output.write(shard.index, shard.rows.size(), rows, options_.format == Format::csv ? ".csv" : ".jsonl", error_count,
                 errors);
    errors_ += error_count;
  }
  std::uint64_t errors() const { return errors_; }

 private:
  bool dropped(const std::string& name) const { return std::ranges::find(options_.drop, name) != options_.drop.end(); }

  std::vector<std::string> kept(const std::vector<std::string>& columns) const {
    std::vector<std::string> out;
    for (const std::string& name : columns)
      if (!dropped(name)) out.push_back(name);
    return out;
  }

  std::string conflict(const Row& row) const {
    for (const std::string& name : results_)
      if (row.fields.contains(name) && !dropped(name))
        return str("the row has a column '", name, "', which is what the result is called: --drop ", name,
                   " leaves it out");
    return {};
  }

  std::string header() const {
    std::string line;
    for (const auto* names : {&columns_, &results_})
      for (const std::string& name : *names) add_field(line, name);
    return ended(line);
  }

  static void add_field(std::string& line, std::string_view field) {
    append_csv(line, field);
    line += ',';
  }
  static std::string ended(std::string& line) {
    line.pop_back();
    if (line.empty()) line = "\"\"";  // an empty line is no row
    return line + "\n";
  }

  std::string csv_line(const Row& row, const RowResult& result) const {
    std::string line;
    for (const std::string& name : columns_) add_field(line, row.fields.at(name).get_ref<const std::string&>());
    for (const std::string& value : result.values) {
      if (value.starts_with('"'))
        add_field(line, read_json<Json>(value).get_ref<const std::string&>());
      else
        add_field(line, value == "null" ? "" : value);
    }
    return ended(line);
  }

  // Of a row that is kept as a whole its text: numbers stay as they were written.
  std::string json_line(const Row& row, const RowResult& result) const {
    if (results_.empty()) return result.values.at(0) + "\n";
    std::string line = row.text;
    const bool drops = std::ranges::any_of(options_.drop, [&](const auto& name) { return row.fields.contains(name); });
    if (drops) {
      Json fields = row.fields;
      for (const std::string& name : options_.drop) fields.erase(name);
      line = serve::dump(fields);
    }
    line.pop_back();  // the closing brace
    while (line.ends_with(' ') || line.ends_with('\t')) line.pop_back();
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (!line.ends_with('{') || i > 0) line += ',';
      line += serve::dump(results_[i]) + ":" + result.values[i];
    }
    return line + "}\n";
  }

  const BatchOptions& options_;
  const std::vector<std::string> columns_, results_;
  std::uint64_t errors_ = 0;
};

Manifest describe(const BatchOptions& options, const Json& input) {
  Manifest run;
  run.graft = version();
  run.created = unix_seconds();
  run.options = task_options(options);
  run.input = input;
  run.model = model_identity(options);
  return run;
}

// The next shard that is not written yet, or null.
std::unique_ptr<Shard> next_shard(Reader& reader, const Output& output, std::uint64_t& index, std::uint64_t size) {
  for (;; ++index) {
    if (output.has(index)) {
      for (std::uint64_t i = 0; i < size; ++i)
        if (!reader.skip()) return nullptr;
      continue;
    }
    auto shard = std::make_unique<Shard>();
    shard->index = index++;
    Row row;
    while (shard->rows.size() < size && reader.next(row)) shard->rows.push_back(std::move(row));
    if (shard->rows.empty()) return nullptr;
    shard->left = shard->rows.size();
    shard->results.resize(shard->rows.size());
    return shard;
  }
}

}  // namespace

Summary run(const BatchOptions& options) {
  GRAFT_CHECK(InvalidArgument, options.shard_rows > 0 && options.batch_rows > 0,
              "a shard and a batch have at least a row");
  task_options(options);  // what is wrong with the options is said before files are read
  const InputSize size = measure(options);
  Output output(options.output, describe(options, size.identity), options.resume);
  const Manifest& manifest = output.manifest();
  Summary summary;
  summary.rows = size.rows;
  std::uint64_t earlier_errors = 0;
  for (const auto& [index, shard] : manifest.shards) {
    summary.resumed += shard.row_count;
    earlier_errors += shard.error_count;
  }
  summary.errors = earlier_errors;
  if (manifest.complete) return summary;

  const auto reader = read_rows(options.input, options.format);
  std::unique_ptr<Progress> progress;
  const TaskContext context{options, manifest.input.at("sha256").get<std::string>(), manifest.created,
                            [&](std::size_t rows) { progress->add(rows); }};
  const std::unique_ptr<Task> task = make_task(context);
  check_columns(*task, *reader, options);
  progress = std::make_unique<Progress>(size.rows, summary.resumed, ::isatty(STDERR_FILENO) == 1);
  progress->add_errors(earlier_errors);
  Writer writer(options, *reader, *task);

  std::deque<std::unique_ptr<Shard>> started;
  std::uint64_t next = 0;
  for (bool more = true; more || !started.empty();) {
    while (more && started.size() < task->ahead()) {
      auto shard = next_shard(*reader, output, next, options.shard_rows);
      reader->check_unchanged();
      more = shard != nullptr;
      if (!more) break;
      started.push_back(std::move(shard));
      task->start(*started.back());
    }
    if (started.empty()) break;
    Shard& first = *started.front();
    task->finish(first);
    const std::uint64_t before = writer.errors();
    writer.write(first, output);
    progress->add_errors(writer.errors() - before);
    started.pop_front();
  }
  GRAFT_CHECK(SystemError, reader->identity().sha256 == context.run_id, "'", options.input,
              "' was changed while it was read");
  output.complete();
  summary.errors += writer.errors();
  return summary;
}

}  // namespace graft::batch
