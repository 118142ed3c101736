#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "serve/json_fields.h"

namespace graft::batch {

using serve::Json;

// The row's own fault: it goes to the file of errors, and the run goes on.
class BadRow : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

template <typename... Parts>
[[noreturn]] void bad_row(const Parts&... parts) {
  throw BadRow(str(parts...));
}

struct Row {
  std::uint64_t index = 0;  // in the input, from 0
  std::uint64_t line = 0;   // where it begins, from 1
  Json fields;              // an object; of CSV, of strings
  std::string text;         // of JSON Lines: as it was read
  bool csv = false;
  std::string error;  // why it is none; empty: it is one
};

// A column's value; a cell of CSV is what it is as text. Throws BadRow when the row has no such column, or null in it.
const Json& value_of(const Row& row, const std::string& column);
// The same where more than a text is expected: a cell of CSV is read as JSON.
Json json_of(const Row& row, const std::string& column);
// A text. Throws BadRow for another value.
const std::string& text_of(const Row& row, const std::string& column);

// What a task made of a row: JSON, a value for each name of Task::results().
struct RowResult {
  std::vector<std::string> values;
  std::string error;  // why there are none; empty: there are
};

// Rows that follow one another, whose results are written as one file.
struct Shard {
  std::uint64_t index = 0;
  std::vector<Row> rows;
  std::vector<RowResult> results;  // of each row
  std::size_t left = 0;            // rows without a result
};

}  // namespace graft::batch
