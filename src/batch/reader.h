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
  virtual InputFile& file() = 0;
};

// Throws as InputFile, and InvalidArgument for a file whose first line should name columns and does not. `most_bytes`
// of a row.
std::unique_ptr<Reader> read_json_lines(const std::string& path, std::size_t most_bytes = kMostRowBytes);
std::unique_ptr<Reader> read_csv(const std::string& path, std::size_t most_bytes = kMostRowBytes);
std::unique_ptr<Reader> read_rows(const std::string& path, Format format);

// A field of a line of CSV, in quotes where it needs them.
void append_csv(std::string& line, std::string_view field);

}  // namespace graft::batch
