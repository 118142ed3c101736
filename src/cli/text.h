#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graft/graft.h"

// Small helpers for messages and tables.
namespace graft::cli {

// str("got ", n, " of ", m): the arguments written one after the other.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);
  (out << ... << parts);
  return std::move(out).str();
}

// Throws ErrorType with the arguments as its message.
template <typename ErrorType = InvalidArgument, typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw ErrorType(str(parts...));
}

// Control characters replaced by '?': names come from files, and a terminal would interpret them.
std::string printable(std::string_view text);

// KEY and VALUE of an argument KEY=VALUE; none without a key or without the sign.
std::optional<std::pair<std::string, std::string>> key_and_value(const std::string& argument);

std::string bytes_text(std::uint64_t bytes);              // "86.7 MiB"
std::string fixed(double value, int decimals);            // fixed(1.25, 1) is "1.2"
std::string dims_text(const std::vector<DimInfo>& dims);  // "[s0=1..16, 384]", an open end as "1.."
std::string type_text(const ValueInfo& value);            // "f32[s0=1..16, 384]", "integer", "None"
std::string_view kind_text(Value::Kind kind);             // "tensor", "integer", "float", "bool", "text", "None"

// The first elements of a contiguous tensor, as "0.5 -1.25 3 ...".
std::string preview(const TensorView& tensor, std::int64_t most = 4);

// Rows of cells in aligned columns; numbers to the right.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // as many as there are columns
  std::string text(int indent = 0) const;    // lines, each ended

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace graft::cli
