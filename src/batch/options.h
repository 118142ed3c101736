#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graft/llm.h"
#include "serve/options.h"

// What `graft batch` is asked for, and what it did.
namespace graft::batch {

// folder: of files, each of which is a row. The output is then JSON Lines.
enum class Format : std::uint8_t { jsonl, csv, folder };

struct BatchOptions {
  serve::ModelFile model;  // its name is in answers of OpenAI's API
  std::string input;       // a file, or a folder
  std::string files = {};  // a folder: where paths in rows begin; empty: the input, or the folder that it lies in
  std::string output;      // a folder
  std::string task;        // of task_names()
  Format format = Format::jsonl;
  bool resume = false;
  std::uint64_t shard_rows = 1000;  // of the input: a file of the output has no more
  std::int64_t batch_rows = 32;     // the most of one call of a program

  std::vector<std::pair<std::string, std::string>> columns = {};  // what the task reads, and the column that has it
  std::vector<std::string> drop = {};                             // columns that the output leaves out
  std::vector<std::string> parameters = {};                       // NAME=JSON, of the server's requests
  std::string system = {};                                        // of chat: the first message
  std::string method = {};                                        // of the program; empty: forward, or the only one
  std::vector<std::string> labels = {};                           // of classify
  bool truncate = false;                                          // texts that are longer than the model takes

  LoadOptions load;
  DecoderOptions decoder;  // rows 0: as many as the memory allows, up to 32
  std::optional<std::uint64_t> prefix_cache_bytes = {};
};

// generate, chat, embed, ...
const std::vector<std::string>& task_names();

struct Summary {
  std::uint64_t rows = 0;     // of the input
  std::uint64_t errors = 0;   // of these, in the files of errors
  std::uint64_t resumed = 0;  // of these, computed by runs before
};

// Reads the rows, computes them and writes them. Throws NotFound, SystemError or InvalidArgument for files and options,
// Busy when another process writes to the folder, and what loading the model throws. What was written stays, and is
// continued with `resume`.
Summary run(const BatchOptions& options);

}  // namespace graft::batch
