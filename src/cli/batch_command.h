#pragma once

#include <string>
#include <vector>

#include "batch/options.h"
#include "cli/load_args.h"

// `graft batch`: its options; what it does is src/batch.
namespace graft::cli {

class BatchCommand {
 public:
  explicit BatchCommand(CLI::App& app);
  // Runs when the command was given, and returns the exit code. Throws CLI::ParseError for options that make no sense,
  // and what batch::run throws.
  int run();

 private:
  int run_table();
  void run_rows() const;

  CLI::App* command_ = nullptr;
  LoadArgs load_;
  batch::BatchOptions options_;
  std::string model_, text_column_, format_, kv_type_ = "computed";
  std::vector<std::string> columns_;
};

}  // namespace graft::cli
