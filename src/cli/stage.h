#pragma once

#include <string>

#include "cli/load_args.h"
#include "stage/worker.h"

// `graft stage`: runs a stage of a model for a driver in another process; src/stage does it.
namespace CLI {
class Option;
}

namespace graft::cli {

class StageCommand {
 public:
  explicit StageCommand(CLI::App& app);
  // Serves when the command was given, until the process is told to end. Throws what stage::Worker throws.
  void run();

 private:
  CLI::App* command_ = nullptr;
  LoadArgs load_;
  stage::WorkerOptions options_;
  std::string secret_file_;
};

// Options that say where the other stages of a model run; of commands that drive them.
struct StageArgs {
  std::vector<std::string> addresses;
  std::string secret_file;

  // Reads the secret. Throws what stage::read_secret throws.
  StageOptions options() const;
};
void add_stage_options(CLI::App& command, StageArgs& args);

}  // namespace graft::cli
