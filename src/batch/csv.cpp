#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "batch/reader.h"

namespace graft::batch {
namespace {

// RFC 4180, with Python's answer where it has none: a quote within a field that does not begin with one is itself.
class Csv : public FileReader {
 public:
  Csv(const std::string& path, std::size_t most_bytes) : FileReader(path), most_(most_bytes) {
    GRAFT_CHECK(InvalidArgument, record(), "'", path, "' is empty: its first line must name the columns");
    GRAFT_CHECK(InvalidArgument, error_.empty(), "'", path, "': its first line must name the columns: ", error_);
    columns_ = fields_;
    for (const std::string& name : columns_) {
      GRAFT_CHECK(InvalidArgument, !name.empty(), "'", path, "': a column has no name in the first line");
      GRAFT_CHECK(InvalidArgument, std::ranges::count(columns_, name) == 1, "'", path, "' has two columns '", name,
                  "'");
    }
  }

  bool next(Row& row) override {
    row = {};
    row.csv = true;
    row.fields = Json::object();
    if (!record()) return false;
    row.index = index_++;
    row.line = begin_;
    row.error = error_;
    if (row.error.empty() && fields_.size() != columns_.size())
      row.error = str("the row has ", fields_.size(), " fields, the first line names ", columns_.size(), " columns");
    if (row.error.empty())
      for (std::size_t i = 0; i < fields_.size(); ++i) row.fields.emplace(columns_[i], std::move(fields_[i]));
    return true;
  }

  bool skip() override {
    if (!record()) return false;
    ++index_;
    return true;
  }

  const std::vector<std::string>& columns() const override { return columns_; }

 private:
  // The next record, of one line or, where quotes hold its ends, of several. False at the end of the file.
  bool record() {
    fields_.clear();
    error_.clear();
    std::string line, field;
    bool quoted = false;  // within quotes
    std::size_t bytes = 0;
    for (bool first = true;; first = false) {
      const InputFile::Line read = first ? next_line(line) : file_.next(line, most_);
      if (read == InputFile::Line::end) {
        if (first) return false;
        error_ = "a quote is not closed before the end of the file";
        return true;
      }
      if (first) begin_ = file_.line();
      bytes += line.size() + 1;
      if (read == InputFile::Line::too_long || bytes > most_ + 1) {
        error_ = str("the row has more than ", most_, " bytes");
        return true;
      }
      if (!is_utf8(line)) error_ = "the row is not UTF-8";
      if (quoted) field += '\n';
      if (!split(line, field, quoted)) return true;
    }
  }

  // The next that is not empty.
  InputFile::Line next_line(std::string& line) {
    for (;;) {
      const InputFile::Line read = file_.next(line, most_);
      if (file_.line() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      if (read != InputFile::Line::read || (!line.empty() && line != "\r")) return read;
    }
  }

  // Adds the fields of a line. True: the record goes on in the next one.
  bool split(const std::string& line, std::string& field, bool& quoted) {
    bool closed = false;  // the field's quotes have ended
    for (std::size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      if (quoted) {
        if (c != '"') {
          field += c;
        } else if (i + 1 < line.size() && line[i + 1] == '"') {
          field += '"';
          ++i;
        } else {
          quoted = false;
          closed = true;
        }
      } else if (c == '\r' && i + 1 == line.size()) {
        break;  // of the line's end
      } else if (c == ',') {
        fields_.push_back(std::exchange(field, {}));
        closed = false;
      } else if (closed) {
        if (error_.empty()) error_ = "a quoted field goes on after its closing quote";
      } else if (c == '"' && field.empty()) {
        quoted = true;
      } else {
        field += c;
      }
    }
    if (quoted) return true;
    fields_.push_back(std::exchange(field, {}));
    return false;
  }

  const std::size_t most_;
  std::vector<std::string> columns_, fields_;
  std::string error_;
  std::uint64_t index_ = 0, begin_ = 0;
};

}  // namespace

std::unique_ptr<Reader> read_csv(const std::string& path, std::size_t most_bytes) {
  return std::make_unique<Csv>(path, most_bytes);
}

void append_csv(std::string& line, std::string_view field) {
  if (field.find_first_of(",\"\r\n") == field.npos) {
    line += field;
    return;
  }
  line += '"';
  for (const char c : field) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

}  // namespace graft::batch
