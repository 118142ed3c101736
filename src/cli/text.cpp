#include "cli/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/number_at.h"

namespace graft::cli {
namespace {

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

// Width in characters: UTF-8 continuation bytes have none.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

std::string element(const std::byte* at, DType dtype) {
  if (dtype == DType::b8) return load_as<std::uint8_t>(at) ? "true" : "false";
  if (dtype == DType::i64) return std::to_string(load_as<std::int64_t>(at));
  const double value = number_at(at, dtype);
  return is_float(dtype) ? number(value) : fixed(value, 0);
}

}  // namespace

std::optional<std::pair<std::string, std::string>> key_and_value(const std::string& argument) {
  const std::size_t sign = argument.find('=');
  if (sign == std::string::npos || sign == 0) return std::nullopt;
  return std::pair(argument.substr(0, sign), argument.substr(sign + 1));
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return out;
}

std::string fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return str(bytes, " B");
  constexpr std::array<const char*, 6> units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return fixed(value, 1) + " " + units[unit];
}

std::string dims_text(const std::vector<DimInfo>& dims) {
  std::string out = "[";
  for (const DimInfo& dim : dims) {
    if (out.size() > 1) out += ", ";
    if (dim.min == dim.max) {
      out += std::to_string(dim.min);
      continue;
    }
    if (!dim.expr.empty()) out += dim.expr + "=";
    out += std::to_string(dim.min) + "..";
    if (dim.max != kUnbounded) out += std::to_string(dim.max);
  }
  return out + "]";
}

std::string_view kind_text(Value::Kind kind) {
  constexpr std::array<std::string_view, 6> names = {"None", "tensor", "integer", "float", "bool", "text"};
  return names[static_cast<std::size_t>(kind)];
}

std::string type_text(const ValueInfo& value) {
  if (value.kind == Value::Kind::integer && value.dims.size() == 1)  // the range of its values
    return "integer " + dims_text(value.dims).substr(1, dims_text(value.dims).size() - 2);
  if (value.kind != Value::Kind::tensor) return std::string(kind_text(value.kind));
  return std::string(name(value.dtype)) + dims_text(value.dims);
}

std::string preview(const TensorView& tensor, std::int64_t most) {
  std::string out;
  const std::int64_t count = tensor.shape.numel();
  const std::byte* at = static_cast<const std::byte*>(tensor.data);
  for (std::int64_t i = 0; i < std::min(count, most); ++i, at += byte_size(tensor.dtype))
    out += (i ? " " : "") + element(at, tensor.dtype);
  return count > most ? out + " ..." : out;
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(width(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string gap(widths[c] - width(cell), ' ');
      text += (c ? "  " : "") + (columns_[c].align == Align::right ? gap + cell : cell + gap);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) line([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

}  // namespace graft::cli
