#include "cli/batch_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "cli/python.h"
#include "cli/serve.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

constexpr const char* kBatchNotes = R"(Examples:
  graft batch minilm.pte rows.jsonl -o vectors --task embed --text-column body
  graft batch llm.pte prompts.csv -o texts --task generate --set max_tokens=64 --set temperature=0
  graft batch gpt=llm.pte requests.jsonl -o answers --task openai
  graft batch whisper.pte recordings/ -o transcripts --task transcribe
  graft batch net.pte rows.jsonl -o out --task method --column x=features
  graft batch minilm.pte rows.jsonl -o vectors --task embed --text-column body --resume

Rows come from JSON Lines, from CSV whose first line names the columns, or by Python's pyarrow from Parquet and Arrow, and go to files of the same kind in the folder,
part-00000.jsonl and so on, in the order of the input. Of a folder each file is a row, with its path. Rows that cannot be computed go to errors-*.jsonl with the
reason. After any end --resume continues with the rows that are not written yet. See docs/batch.md.)";

// Arrow's library is Python's: it makes rows of a table before, and a table of the results after.
constexpr const char* kTables = R"(
import sys
try:
    from graft.tables import main
except ModuleNotFoundError as e:
    sys.exit(f"graft: tables need the Python package '{e.name}', which {sys.executable} has not: pip install 'graft[batch]'")
sys.exit(main(sys.argv[1:]))
)";

bool is_table(const std::string& input) {
  const std::string extension = std::filesystem::path(input).extension().string();
  return extension == ".parquet" || extension == ".arrow" || extension == ".feather";
}

batch::Format format_of(const std::string& given, const std::string& input) {
  std::error_code error;
  if (given.empty() && std::filesystem::is_directory(input, error)) return batch::Format::folder;
  const std::string extension = std::filesystem::path(input).extension().string();
  if (given == "csv" || (given.empty() && extension == ".csv")) return batch::Format::csv;
  if (given == "jsonl" || extension == ".jsonl" || extension == ".ndjson") return batch::Format::jsonl;
  throw CLI::ValidationError(
      "INPUT", "'" + input + "' is named neither .jsonl, .csv, .parquet nor .arrow: --format says what it is");
}

}  // namespace

BatchCommand::BatchCommand(CLI::App& app)
    : command_(app.add_subcommand("batch", "Run a model on the rows of a file, and go on after any end.")) {
  CLI::App& command = *command_;
  command.footer(kBatchNotes);
  command.add_option("MODEL", model_, "FILE.pte, or NAME=FILE.pte for the name that requests of OpenAI's API give it")
      ->required()
      ->type_name("");
  command.add_option("INPUT", options_.input, "rows: a .jsonl, .csv, .parquet or .arrow file, or a folder of files")
      ->required()
      ->type_name("");
  command.add_option("-o,--output", options_.output, "a folder, which is made; empty but with --resume")
      ->required()
      ->type_name("FOLDER");
  command.add_option("--task", options_.task, "what is done with each row")
      ->required()
      ->check(CLI::IsMember(batch::task_names()).description(""))
      ->type_name("NAME");
  command.add_flag("--resume", options_.resume, "go on with what an earlier run wrote to the folder, if any did");
  command.add_option("--format", format_, "jsonl or csv (default: by the file's name)")
      ->check(CLI::IsMember(std::vector<std::string>{"jsonl", "csv"}).description(""))
      ->type_name("NAME");
  command.add_option("--text-column", text_column_, "as --column text=NAME")->type_name("NAME");
  command
      .add_option(
          "--column", columns_,
          "WHAT=NAME: the column that has the text, messages, query, documents, path or input that the task calls "
          "WHAT (default: that of the same name); repeat for more")
      ->type_name("WHAT=NAME")
      ->allow_extra_args(false);
  command.add_option("--drop", options_.drop, "a column of the rows that the output leaves out; repeat for more")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      .add_option("--set", options_.parameters,
                  "NAME=JSON: a parameter of each request, as `graft serve` takes it (generate, chat, rerank, "
                  "transcribe); repeat "
                  "for more")
      ->type_name("NAME=JSON")
      ->allow_extra_args(false);
  command.add_option("--system", options_.system, "of chat: the first message, the system's")->type_name("TEXT");
  command
      .add_option("--method", options_.method,
                  "of embed, classify and method: which one (default: forward, or the only one)")
      ->type_name("NAME");
  command.add_option("--labels", options_.labels, "of classify: names of the classes, in order, with commas between")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->allow_extra_args(false);
  command.add_flag("--truncate", options_.truncate,
                   "of embed and classify: cut off texts that are longer than the model takes, which are errors else");
  command
      .add_option("--tokenizer", options_.model.tokenizer,
                  "tokenizer.json, a folder with one, or a .gguf (default: the package's own)")
      ->type_name("FILE");
  const auto count = [&](const char* flag, auto& value, const char* about) {
    return command.add_option(flag, value, about)->check(CLI::PositiveNumber.description(""))->type_name("N");
  };
  count("--shard-rows", options_.shard_rows, "rows of the input for each file of the output")->capture_default_str();
  count("--batch-rows", options_.batch_rows, "the most rows of one call of a program")->capture_default_str();
  add_decoder_options(command, options_.decoder, kv_type_);
  command
      .add_option("--prefix-cache-bytes", options_.prefix_cache_bytes,
                  "of keys and values that are kept of ended texts, for others that begin as they do; 0: none "
                  "(default: an eighth of the memory, up to 4 GiB)")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N");
  add_load_options(command, load_);
}

int BatchCommand::run() {
  if (!command_->parsed()) return 0;
  const std::string tokenizer = options_.model.tokenizer;
  options_.model = model_file(model_);
  options_.model.tokenizer = tokenizer;
  const bool table = format_.empty() && is_table(options_.input);
  options_.format = table ? batch::Format::jsonl : format_of(format_, options_.input);
  if (!text_column_.empty()) options_.columns.emplace_back("text", text_column_);
  for (const std::string& given : columns_) {
    auto column = key_and_value(given);
    if (!column || column->second.empty()) throw CLI::ValidationError("--column", "'" + given + "' is not WHAT=NAME");
    options_.columns.push_back(*std::move(column));
  }
  options_.load = load_options_of(load_);
  options_.decoder.threads = load_.threads;
  options_.decoder.kv_type = kv_type_named(kv_type_);
  if (table) return run_table();
  run_rows();
  return 0;
}

int BatchCommand::run_table() {
  const std::string python = find_python();
  if (python.empty())
    fail<NotFound>(
        "tables need Python with the package graft: no python3 beside this program, and VIRTUAL_ENV names no "
        "environment with one");
  const std::filesystem::path out(options_.output), rows = out / "rows.jsonl", run = out / "run";
  std::error_code error;
  const bool empty = !std::filesystem::exists(out, error) || std::filesystem::is_empty(out, error);
  if (!error && !empty && !options_.resume)
    fail("the folder '", options_.output, "' is not empty: --resume continues the run that wrote to it");
  const std::string table = options_.input;
  if (const int code = run_python(python, kTables, {"to_rows", table, rows.string()}); code != 0) return code;
  options_.files = std::filesystem::path(table).parent_path().string();
  options_.input = rows.string();
  options_.output = run.string();
  run_rows();
  if (const int code = run_python(python, kTables, {"from_rows", table, run.string(), out.string()}); code != 0)
    return code;
  std::filesystem::remove(rows, error);  // made again where it is needed
  return 0;
}

void BatchCommand::run_rows() const {
  const batch::Summary done = batch::run(options_);
  std::cerr << done.rows << " rows, " << done.errors << " of them errors";
  if (done.resumed > 0) std::cerr << "; " << done.resumed << " were computed before";
  std::cerr << "\n";
}

}  // namespace graft::cli
