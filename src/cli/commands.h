#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/load_args.h"
#include "cli/npz.h"

// What each command does once its options are read. They print to stdout and throw graft::Error.
namespace graft::cli {

struct ProgramArgs : LoadArgs {
  std::string method;
  double max_zip_ratio = kZipRatio;  // of --inputs
};

struct RunArgs {
  ProgramArgs program;
  std::vector<std::string> inputs;
  std::string inputs_npz;
  std::string output_dir;
  std::string outputs_npz;
  std::int64_t repeat = 0;
  std::uint64_t seed = 0;
  bool profile = false;
  std::string trace;                 // a file
  std::vector<std::string> buckets;  // NAME=SIZES
  std::optional<double> timeout_s;   // of each call
  std::string check;                 // "nan", "finite" or nothing
  std::vector<std::string> dump;     // a node or "all", and a folder
};
void run(const RunArgs& args);

struct CompareArgs {
  ProgramArgs program;
  std::string other;  // a package
  std::vector<std::string> inputs;
  std::string inputs_npz;
  double tolerance = 1e-4;  // of a tensor's largest value
};
// Runs both programs on the same inputs and compares what nodes of the same name computed; false when one differs.
bool compare(const CompareArgs& args);

struct InspectArgs {
  ProgramArgs program;
  std::vector<std::string> shapes;
  bool json = false;
  bool phases = false;
  bool passes = false;
  bool plan = false;
  std::string html;  // a file
};
void inspect(const InspectArgs& args);

struct PackArgs : LoadArgs {
  std::string output;  // a file; empty: beside the package
};
void pack_weights(const PackArgs& args);

void list_devices();

// graft, ggml and instruction sets, in one line.
std::string version_text();
// What graft finds on this machine: CPU, threads, limits, memory and how fast it reads, devices, packages of Python.
// Takes about a second.
void doctor();

struct TokenizeArgs {
  std::string file;                 // a tokenizer
  std::optional<std::string> text;  // standard input where it is missing
  bool decode = false;              // the text is ids
  bool pieces = false;
  bool no_special = false;    // encode without BOS and the like
  bool skip_special = false;  // decode without them
  TextLimits limits;
};
void tokenize(const TokenizeArgs& args);

// Becomes `python -m graft.llm.cli` with these arguments; returns only by throwing.
void export_model(std::span<char* const> arguments);

}  // namespace graft::cli
