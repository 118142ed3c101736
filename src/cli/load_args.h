#pragma once

#include <string>
#include <vector>

#include "graft/llm.h"

namespace CLI {
class App;
}

namespace graft::cli {

inline constexpr const char* kLimitGroup = "Limits, for files of strangers";

// The limits of LoadOptions for files of strangers: those of bytes are the memory of the machine.
LoadOptions safe_limits();

// Options for limits on tokenizers and templates.
void add_text_limits(CLI::App& command, TextLimits& limits);

// How a program is loaded; common to the commands that take a file.
struct LoadArgs {
  std::string file;
  std::string device;
  std::vector<std::string> weights;
  int threads = 0;
  bool no_fast_kernels = false;
  std::string matmul_precision = "highest";
  bool no_map = false;
  LoadOptions limits = safe_limits();
};

void add_load_options(CLI::App& command, LoadArgs& args, const std::string& about_file);
// The same without the file.
void add_load_options(CLI::App& command, LoadArgs& args);
// How a cache of keys and values is stored.
void add_kv_type_option(CLI::App& command, std::string& kv_type);
// That, and the sizes of a cache for many texts: as many rows as the memory allows where none are given.
void add_decoder_options(CLI::App& command, DecoderOptions& decoder, std::string& kv_type);
inline constexpr std::int64_t kAdapterRank = 64;
// LoadOptions::max_adapter_rank, of commands that take adapters.
void add_adapter_rank_option(CLI::App& command, std::int64_t& rank);
// Throws what matmul_precision_named() throws.
LoadOptions load_options_of(const LoadArgs& args);

}  // namespace graft::cli
