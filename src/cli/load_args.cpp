#include "cli/load_args.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

namespace graft::cli {
namespace {

void add_limit(CLI::App& command, const std::string& name, std::int64_t& limit, const std::string& about) {
  command.add_option(name, limit, about)
      ->check(CLI::Range(std::int64_t{0}, INT64_MAX).description(""))
      ->group(kLimitGroup)
      ->type_name("N");
}

}  // namespace

LoadOptions safe_limits() {
  LoadOptions options;
  const auto pages = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  if (pages > 0 && page > 0) options.max_plan_bytes = options.max_state_bytes = pages * page;
  return options;
}

void add_text_limits(CLI::App& command, TextLimits& limits) {
  add_limit(command, "--max-vocabulary", limits.max_vocabulary, "tokens of the tokenizer, and ids");
  add_limit(command, "--max-template-steps", limits.max_template_steps, "steps of the chat template");
  add_limit(command, "--max-template-bytes", limits.max_template_bytes, "of the prompt that a chat template makes");
}

void add_load_options(CLI::App& command, LoadArgs& args, const std::string& about_file) {
  command.add_option("FILE", args.file, about_file)->required()->type_name("");
  add_load_options(command, args);
}

void add_load_options(CLI::App& command, LoadArgs& args) {
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
  command.add_flag("--no-map", args.no_map,
                   "read files into memory instead of mapping them: safe when others may truncate them meanwhile");
  LoadOptions& limits = args.limits;
  add_limit(command, "--max-file-bytes", limits.max_file_bytes, "of the package and of each file of weights");
  add_limit(command, "--max-nodes", limits.max_nodes, "nodes of the program");
  add_limit(command, "--max-graph-calls", limits.max_graph_calls, "sub-graphs that a method calls");
  add_limit(command, "--max-state-bytes", limits.max_state_bytes, "of mutable buffers (default: the machine's memory)");
  add_limit(command, "--max-plan-bytes", limits.max_plan_bytes,
            "of intermediate tensors and outputs (default: the machine's memory)");
  add_limit(command, "--max-plan-launches", limits.max_plan_launches, "kernels of one call");
  add_text_limits(command, limits.text);
}

void add_kv_type_option(CLI::App& command, std::string& kv_type) {
  command
      .add_option("--kv-type", kv_type,
                  "how keys and values are stored: f32, f16, bf16, q8_0 or q4_0 (default: as the model computes them)")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "f16", "bf16", "q8_0", "q4_0"}).description(""))
      ->type_name("TYPE");
}

void add_decoder_options(CLI::App& command, DecoderOptions& decoder, std::string& kv_type) {
  const auto count = [&](const char* flag, auto& value, const char* about) {
    return command.add_option(flag, value, about)->check(CLI::PositiveNumber.description(""))->type_name("N");
  };
  decoder.rows = 0;
  count("--rows", decoder.rows, "texts of a model that are computed at once (default: what memory allows, up to 32)");
  count("--context", decoder.length, "tokens of a text with its prompt (default: the model's context)");
  count("--prefill-chunk-size", decoder.prefill_chunk_size, "tokens of a prompt that are computed at once")
      ->capture_default_str();
  count("--pictures", decoder.pictures, "pictures of a text, of a model whose layers attend to them (MLlama)")
      ->capture_default_str();
  add_kv_type_option(command, kv_type);
}

void add_adapter_rank_option(CLI::App& command, std::int64_t& rank) {
  command.add_option("--max-adapter-rank", rank, "the largest rank of LoRA adapters")
      ->check(CLI::Range(1, 4096).description("from 1 to 4096"))
      ->capture_default_str()
      ->type_name("N");
}

LoadOptions load_options_of(const LoadArgs& args) {
  LoadOptions options = args.limits;
  options.map = !args.no_map;
  options.device = args.device;
  options.weights = args.weights;
  options.fast_kernels = !args.no_fast_kernels;
  options.matmul_precision = matmul_precision_named(args.matmul_precision);
  return options;
}

}  // namespace graft::cli
