#include <algorithm>
#include <filesystem>

#include "batch/reader.h"
#include "serve/json_fields.h"

namespace graft::batch {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

class Folder : public Reader {
 public:
  explicit Folder(const std::string& path) : path_(path), paths_(list()) {}

  bool next(Row& row) override {
    const std::size_t index = index_;
    if (!skip()) return false;
    row = {};
    row.index = index;
    row.line = index + 1;
    row.fields = {{"path", paths_[index]}};
    row.text = serve::dump(row.fields);
    return true;
  }

  bool skip() override {
    if (index_ == paths_.size()) return false;
    const std::string& path = paths_[index_++];
    const FileIdentity file = identity_of((fs::path(path_) / path).string());
    bytes_ += file.bytes;
    const std::string entry = str(path.size(), ":", path, file.sha256);
    hash_.add(std::as_bytes(std::span(entry)));
    return true;
  }

  const std::vector<std::string>& columns() const override {
    static const std::vector<std::string> all = {"path"};
    return all;
  }
  FileIdentity identity() override { return {bytes_, hex_of(hash_.digest())}; }
  void check_unchanged() const override {
    if (index_ < paths_.size()) return;  // once, at the end: listing takes long
    GRAFT_CHECK(SystemError, list() == paths_, "files came to or went from '", path_, "' while it was read");
  }

 private:
  std::vector<std::string> list() const {
    std::vector<std::string> paths;
    try {
      GRAFT_CHECK(NotFound, fs::exists(path_), "there is no folder '", path_, "'");
      for (auto at = fs::recursive_directory_iterator(path_); at != fs::recursive_directory_iterator(); ++at) {
        if (is_hidden(at->path())) {
          at.disable_recursion_pending();
        } else if (at->is_regular_file()) {
          paths.push_back(at->path().lexically_relative(path_).generic_string());
        }
      }
    } catch (const fs::filesystem_error& error) {
      throw SystemError(str("cannot read the folder '", path_, "': ", error.code().message()));
    }
    std::ranges::sort(paths);
    return paths;
  }

  const std::string path_;
  const std::vector<std::string> paths_;
  std::size_t index_ = 0;
  std::uint64_t bytes_ = 0;
  Sha256 hash_;
};

}  // namespace

std::unique_ptr<Reader> read_folder(const std::string& path) { return std::make_unique<Folder>(path); }

}  // namespace graft::batch
