#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "batch/manifest.h"

namespace graft::batch {

// The folder that a run writes to: files of rows and of errors, which are there as a whole or not at all, and the
// manifest that names them. After the process was killed at any moment, or the disk was full, another run goes on with
// what the manifest names.
class Output {
 public:
  // Makes the folder. With `resume` it may hold the output of an earlier run that was the same as `run`; otherwise it
  // must be empty. Throws InvalidArgument where it is not, or where a file is not what the manifest says; Busy when
  // another process writes to it; SystemError.
  Output(const std::string& folder, Manifest run, bool resume);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  const Manifest& manifest() const { return manifest_; }
  // Those of an earlier run.
  bool has(std::uint64_t shard) const { return manifest_.shards.contains(shard); }
  // `extension` of the file of rows: ".jsonl".
  void write(std::uint64_t shard, std::uint64_t row_count, std::string_view rows, const std::string& extension,
             std::uint64_t error_count, std::string_view errors);
  void complete();

 private:
  void lock();
  void continue_earlier(const Manifest& run);
  void verify();
  void remove_others() const;
  OutputFile write_file(const std::string& name, std::string_view content);
  void write_manifest();
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_;
  int descriptor_ = -1;
  Manifest manifest_;
  bool unsaved_ = false;  // what it says, since it was written
  Clock::time_point manifest_written_;
  double manifest_seconds_ = 0;  // that writing it took
};

}  // namespace graft::batch
