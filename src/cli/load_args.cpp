#include "cli/load_args.h"

#include <CLI/CLI.hpp>

namespace graft::cli {

void add_load_options(CLI::App& command, LoadArgs& args, const std::string& about_file) {
  command.add_option("FILE", args.file, about_file)->required()->type_name("");
  command.add_option("--device", args.device, "device by name, see `graft devices` (default: $GRAFT_DEVICE, or cpu)")
      ->type_name("NAME");
  command
      .add_option(
          "--weights", args.weights,
          "a file of weights that the package leaves out: .ptd, .safetensors, .safetensors.index.json or .gguf; "
          "repeat for more")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command.add_option("--threads", args.threads, "threads (default: $GRAFT_THREADS, or the CPUs that may be used)")
      ->check(CLI::Range(1, 4096).description("from 1 to 4096"))
      ->type_name("N");
  command.add_flag("--no-fast-kernels", args.no_fast_kernels,
                   "the plain lowering: ggml's ops wherever ggml has them, weights as they are stored");
  command
      .add_option(
          "--matmul-precision", args.matmul_precision,
          "medium: products of more than 8 rows may round f32 to bf16, which is faster where the CPU multiplies "
          "it (default: highest)")
      ->check(CLI::IsMember(std::vector<std::string>{"highest", "high", "medium"}).description(""))
      ->type_name("NAME");
}

LoadOptions load_options_of(const LoadArgs& args) {
  LoadOptions options;
  options.device = args.device;
  options.weights = args.weights;
  options.fast_kernels = !args.no_fast_kernels;
  options.matmul_precision = matmul_precision_named(args.matmul_precision);
  return options;
}

}  // namespace graft::cli
