#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch/input_file.h"
#include "batch/options.h"
#include "batch/row.h"

namespace graft::batch {

inline constexpr std::size_t kMostRowBytes = 64 << 20;

// The rows of a file, in order. Empty lines are none.
class Reader {
 public:
  virtual ~Reader() = default;
  // False at the end. What is no row has an error. Throws SystemError.
  virtual bool next(Row& row) = 0;
  // The same without looking into it.
  virtual bool skip() = 0;
  // Of a file that names them first, as CSV does.
  virtual const std::vector<std::string>& columns() const = 0;
  // Of all that was read; once.
  virtual FileIdentity identity() = 0;
  // Throws SystemError when somebody has changed the input since it was opened.
  virtual void check_unchanged() const = 0;
};

// The rows of one file.
class FileReader : public Reader {
 public:
  explicit FileReader(const std::string& path) : file_(path) {}
  FileIdentity identity() override { return {file_.bytes(), file_.sha256()}; }
  void check_unchanged() const override { file_.check_unchanged(); }

 protected:
  InputFile file_;
};

// Throws as InputFile, and InvalidArgument for a file whose first line should name columns and does not. `most_bytes`
// of a row.
std::unique_ptr<Reader> read_json_lines(const std::string& path, std::size_t most_bytes = kMostRowBytes);
std::unique_ptr<Reader> read_csv(const std::string& path, std::size_t most_bytes = kMostRowBytes);
// A row for each regular file below a folder, in the order of their paths: `path`, from the folder. Files and folders
// whose names begin with a dot are left out. The identity is that of all names and contents.
std::unique_ptr<Reader> read_folder(const std::string& path);
std::unique_ptr<Reader> read_rows(const std::string& path, Format format);

// A field of a line of CSV, in quotes where it needs them.
void append_csv(std::string& line, std::string_view field);

}  // namespace graft::batch
