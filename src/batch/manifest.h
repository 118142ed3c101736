#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "batch/row.h"

namespace graft::batch {

// A file of the output.
struct OutputFile {
  std::string name;
  std::string sha256;
};

struct ShardRecord {
  OutputFile rows;
  OutputFile errors;  // no name: it had none
  std::uint64_t row_count = 0, error_count = 0;
};

// What the folder of a run's output says of it: what it was made of, and what of it is written.
struct Manifest {
  std::string graft;                                 // its version
  std::int64_t created = 0;                          // when the run began, seconds since 1970
  Json input = Json::object();                       // its bytes and SHA-256
  Json model = Json::object();                       // the same of its files
  Json options = Json::object();                     // all that change results or files
  std::map<std::uint64_t, ShardRecord> shards = {};  // by index
  bool complete = false;

  std::string text() const;
  // Throws InvalidProgram, naming `path`, for a text that is no manifest.
  static Manifest parse(const std::string& text, const std::string& path);
  // Throws InvalidArgument, naming what differs, where another run cannot go on with this one's output.
  void check_same(const Manifest& run, const std::string& path) const;
};

}  // namespace graft::batch
