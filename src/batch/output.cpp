#include "batch/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "batch/input_file.h"

namespace graft::batch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
// The manifest grows with the shards: writing it may take this part of the time.
constexpr double kManifestPart = 0.05;

std::string name_of(const char* kind, std::uint64_t shard, const std::string& extension) {
  std::string number = std::to_string(shard);
  if (number.size() < 5) number.insert(0, 5 - number.size(), '0');
  return str(kind, '-', number, extension);
}

bool is_ours(const std::string& name) { return name.starts_with("part-") || name.starts_with("errors-"); }

std::string sha256_of(std::string_view text) { return hex_of(sha256(std::as_bytes(std::span(text)))); }

std::string folder_error() { return std::generic_category().message(errno); }

}  // namespace

Output::Output(const std::string& folder, Manifest run, bool resume) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder_, error);
  GRAFT_CHECK(SystemError, !error, "cannot make the folder '", folder_, "': ", error.message());
  try {
    lock();
    remove_unfinished(folder_);
    const bool begun = fs::exists(path(kManifest), error);
    const bool empty = fs::is_empty(folder_, error);
    GRAFT_CHECK(SystemError, !error, "cannot read the folder '", folder_, "': ", error.message());
    GRAFT_CHECK(InvalidArgument, empty || resume, "the folder '", folder_,
                "' is not empty: --resume continues the run that wrote to it");
    GRAFT_CHECK(InvalidArgument, empty || begun, "the folder '", folder_, "' is not empty, and no run began in it: '",
                kManifest, "' is missing");
    if (begun)
      continue_earlier(run);
    else
      manifest_ = std::move(run);
    write_manifest();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

Output::~Output() {
  try {
    if (unsaved_) write_manifest();
  } catch (...) {  // what it does not name is computed again
  }
  ::close(descriptor_);
}

void Output::lock() {
  descriptor_ = uninterrupted([&] { return ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  GRAFT_CHECK(SystemError, descriptor_ >= 0, "cannot open the folder '", folder_, "': ", folder_error());
  const bool locked = uninterrupted([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0;
  GRAFT_CHECK(Busy, locked || errno != EWOULDBLOCK, "another process writes to the folder '", folder_, "'");
  GRAFT_CHECK(SystemError, locked, "cannot lock the folder '", folder_, "': ", folder_error());
}

void Output::continue_earlier(const Manifest& run) {
  const std::string file = path(kManifest);
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  GRAFT_CHECK(SystemError, in && !in.bad(), "cannot read '", file, "'");
  manifest_ = Manifest::parse(text, file);
  manifest_.check_same(run, file);
  verify();
  remove_others();
}

// A file that is gone is made again; one that is another was not written by this run.
void Output::verify() {
  for (auto shard = manifest_.shards.begin(); shard != manifest_.shards.end();) {
    bool there = true;
    for (const OutputFile* file : {&shard->second.rows, &shard->second.errors}) {
      if (file->name.empty()) continue;
      try {
        const FileIdentity found = identity_of(path(file->name));
        GRAFT_CHECK(InvalidArgument, found.sha256 == file->sha256, "'", path(file->name), "' is not as '", kManifest,
                    "' says: remove it to have its rows computed again");
      } catch (const NotFound&) {
        there = false;
      }
    }
    if (there) {
      ++shard;
    } else {
      manifest_.complete = false;
      shard = manifest_.shards.erase(shard);
    }
  }
}

// What a run wrote before it could say so.
void Output::remove_others() const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool named = std::ranges::any_of(manifest_.shards, [&](const auto& shard) {
      return shard.second.rows.name == name || shard.second.errors.name == name;
    });
    if (!is_ours(name) || named) continue;
    fs::remove(entry.path(), error);
    GRAFT_CHECK(SystemError, !error, "cannot remove '", entry.path().string(), "': ", error.message());
  }
  GRAFT_CHECK(SystemError, !error, "cannot read the folder '", folder_, "': ", error.message());
}

OutputFile Output::write_file(const std::string& name, std::string_view content) {
  NewFile file(path(name));
  file.write(std::as_bytes(std::span(content)), 0);
  file.commit();
  return {name, sha256_of(content)};
}

void Output::write(std::uint64_t shard, std::uint64_t row_count, std::string_view rows, const std::string& extension,
                   std::uint64_t error_count, std::string_view errors) {
  ShardRecord record;
  record.row_count = row_count;
  record.error_count = error_count;
  if (error_count > 0) record.errors = write_file(name_of("errors", shard, ".jsonl"), errors);
  record.rows = write_file(name_of("part", shard, extension), rows);
  manifest_.shards[shard] = std::move(record);
  unsaved_ = true;
  if (seconds_since(manifest_written_) * kManifestPart >= manifest_seconds_) write_manifest();
}

void Output::complete() {
  manifest_.complete = true;
  write_manifest();
}

void Output::write_manifest() {
  const Clock::time_point start = Clock::now();
  // The names of the files before the one that says they are there.
  GRAFT_CHECK(SystemError, uninterrupted([&] { return ::fsync(descriptor_); }) == 0, "cannot write to the folder '",
              folder_, "': ", folder_error());
  write_file(kManifest, manifest_.text());
  unsaved_ = false;
  manifest_written_ = Clock::now();
  manifest_seconds_ = seconds_since(start);
}

}  // namespace graft::batch
