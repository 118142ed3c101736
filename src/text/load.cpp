#include <filesystem>
#include <string>

#include "base/check.h"
#include "base/mapped_file.h"
#include "package/container.h"
#include "text/json.h"
#include "text/pipeline.h"

// Tokenizers by path.
namespace graft {
namespace {

namespace fs = std::filesystem;

std::string_view view(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The content of a file; empty when there is none.
std::string read_if_there(const fs::path& path) {
  if (!fs::exists(path)) return "";
  const auto file = MappedFile::open(path.string());
  return std::string(view(file->bytes()));
}

std::shared_ptr<const Tokenizer> load_json(const fs::path& path) {
  const auto file = MappedFile::open(path.string());
  std::string config = read_if_there(path.parent_path() / "tokenizer_config.json");
  const std::string chat_template = read_if_there(path.parent_path() / "chat_template.jinja");
  return naming_file(path.string(), [&] {
    if (!chat_template.empty()) config = text::with_chat_template(config, chat_template);
    return Tokenizer::from_json(view(file->bytes()), config);
  });
}

// A package: what the exporter put in under these names.
std::shared_ptr<const Tokenizer> load_package(const std::string& path) {
  const PteFile package(MappedFile::open(path));
  std::string_view tokenizer;
  std::string_view config;
  std::span<const std::byte> gguf;
  for (const NamedBytes& named : package.named_data()) {
    if (named.key == kTokenizerKey) tokenizer = view(named.bytes);
    if (named.key == kTokenizerConfigKey) config = view(named.bytes);
    if (named.key == kTokenizerGgufKey) gguf = named.bytes;
  }
  if (tokenizer.empty() && !gguf.empty()) return naming_file(path, [&] { return text::read_gguf_tokenizer(gguf); });
  GRAFT_CHECK(NotFound, !tokenizer.empty(), "'", path, "' carries no tokenizer (named data '", kTokenizerKey,
              "'); give one with --tokenizer");
  return naming_file(path, [&] { return Tokenizer::from_json(tokenizer, config); });
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  const fs::path given(path);
  if (fs::is_directory(given)) {
    GRAFT_CHECK(NotFound, fs::exists(given / "tokenizer.json"), "the folder '", path, "' has no tokenizer.json");
    return load_json(given / "tokenizer.json");
  }
  const std::string extension = given.extension().string();
  if (extension == ".gguf") return from_gguf(path);
  if (extension == ".pte") return load_package(path);
  return load_json(given);
}

}  // namespace graft
