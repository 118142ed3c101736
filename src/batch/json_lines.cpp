#include "batch/reader.h"
#include "serve/api_error.h"

namespace graft::batch {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

class JsonLines : public FileReader {
 public:
  JsonLines(const std::string& path, std::size_t most_bytes) : FileReader(path), most_(most_bytes) {}

  bool next(Row& row) override {
    row = {};
    const InputFile::Line read = next_line(row.text);
    if (read == InputFile::Line::end) return false;
    row.index = index_++;
    row.line = file_.line();
    if (read == InputFile::Line::too_long)
      row.error = str("the line has more than ", most_, " bytes");
    else
      parse(row);
    return true;
  }

  bool skip() override {
    std::string line;
    if (next_line(line) == InputFile::Line::end) return false;
    ++index_;
    return true;
  }

  const std::vector<std::string>& columns() const override {
    static const std::vector<std::string> none;
    return none;
  }

 private:
  // The next that is not empty, without spaces around it.
  InputFile::Line next_line(std::string& line) {
    for (;;) {
      const InputFile::Line read = file_.next(line, most_);
      if (read != InputFile::Line::read) return read;
      if (file_.line() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      while (!line.empty() && is_space(line.back())) line.pop_back();
      std::size_t spaces = 0;
      while (spaces < line.size() && is_space(line[spaces])) ++spaces;
      line.erase(0, spaces);
      if (!line.empty()) return read;
    }
  }

  static void parse(Row& row) {
    JsonRules rules;
    rules.max_depth = rules.unique_depth = serve::kMaxJsonDepth;
    rules.max_members = serve::kMaxJsonMembers;
    rules.refuse = [](const std::string& message) { bad_row("the row ", message); };
    try {
      row.fields = read_json<Json>(row.text, rules);
      if (!row.fields.is_object()) bad_row("a row must be a JSON object, found ", serve::kind_of(row.fields));
    } catch (const BadRow& error) {
      row.error = error.what();
    } catch (const Json::exception& error) {
      const std::string_view message = error.what();
      const std::size_t from = message.find("] ");
      row.error = str("the row is no valid JSON: ", message.substr(from == message.npos ? 0 : from + 2));
    }
    if (!row.error.empty()) row.fields = Json::object();
  }

  const std::size_t most_;
  std::uint64_t index_ = 0;
};

}  // namespace

std::unique_ptr<Reader> read_json_lines(const std::string& path, std::size_t most_bytes) {
  return std::make_unique<JsonLines>(path, most_bytes);
}

std::unique_ptr<Reader> read_rows(const std::string& path, Format format) {
  if (format == Format::folder) return read_folder(path);
  return format == Format::csv ? read_csv(path) : read_json_lines(path);
}

}  // namespace graft::batch
