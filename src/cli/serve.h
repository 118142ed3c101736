#pragma once

#include <string>
#include <vector>

#include "cli/load_args.h"
#include "cli/stage.h"
#include "serve/options.h"

// `graft serve`: its options; the server is src/serve.
namespace graft::cli {

class ServeCommand {
 public:
  explicit ServeCommand(CLI::App& app);
  // Serves when the command was given, until the process is told to end. Throws CLI::ParseError for options that make
  // no sense, and what serve::serve throws.
  void run();

 private:
  CLI::App* command_ = nullptr;
  LoadArgs load_;
  StageArgs stages_;
  serve::ServeOptions options_;
  std::vector<std::string> models_, tokenizers_, prefix_files_, load_first_, adapters_;
  std::string template_variables_;
  double batch_delay_ms_ = 0;
  std::string kv_type_ = "computed";
  int port_ = 8080;
  std::int64_t max_adapter_rank_ = kAdapterRank;
};

// "name=model.pte", or "model.pte", whose name is that of the file without its folder and ".pte". Throws
// CLI::ParseError for a name that requests could not use.
serve::ModelFile model_file(const std::string& argument);

}  // namespace graft::cli
