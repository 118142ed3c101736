#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "ir/program.h"
#include "weight/stored.h"

// Finds the bytes of weights by name: in the package, in files beside it, or in the caller's memory.
namespace graft {

// A tensor of a file, in its mapping. Self-describing files (safetensors, GGUF) fill the other fields, too.
struct StoredTensor {
  std::span<const std::byte> bytes;
  std::string type;              // the file's name for it: "BF16", "q8_0"; empty if the file has none
  std::optional<Stored> stored;  // empty if graft does not support the type, or the file does not say
  std::optional<Shape> shape;
};

struct WeightFile {
  std::shared_ptr<const MappedFile> file;
  std::map<std::string, StoredTensor, std::less<>> tensors;
};

// Opens a weight file: .ptd, safetensors or GGUF, told apart by their first bytes, or the index of a sharded checkpoint
// (*.index.json), whose shards are beside it. Every offset, size and count is checked against the file. Throws
// NotFound, SystemError or InvalidProgram; all name the file.
using OpenFile = std::function<std::shared_ptr<const MappedFile>(const std::string& path)>;
std::vector<WeightFile> open_weights(const std::string& path, const OpenFile& open = MappedFile::open);

// The files that hold a package's other weights ("graft.weights.json": paths relative to the package's folder); none if
// it names none. Throws InvalidProgram.
std::vector<std::string> weight_files_of(const WeightFile& package);

// What the other stages of a model do with weights (graft.export_llm with stages), for decisions that look at all
// layers of a model: a stage makes those that the whole model would.
struct OtherStages {
  std::int64_t linear_bytes = 0;               // of f32 weights that linear layers alone read
  std::set<std::string, std::less<>> read_so;  // keys of weights that something else than a linear layer reads
};
// ("graft.other_stages.json".) Nothing for a package that is no stage. Throws InvalidProgram.
OtherStages other_stages_of(const WeightFile& package);

// Readers, one per format; `file` is mapped, and errors do not name it.
WeightFile read_ptd(std::shared_ptr<const MappedFile> file);
WeightFile read_safetensors(std::shared_ptr<const MappedFile> file);
WeightFile read_gguf(std::shared_ptr<const MappedFile> file);

// The bytes found for a weight.
struct FoundWeight {
  enum class Origin { package, file, memory };
  std::span<const std::byte> bytes;
  Origin origin = Origin::package;
  std::string where;                                 // "'model.pte'", for messages
  std::optional<Stored> stored = std::nullopt;       // empty: as the weight's IR fields say
  std::shared_ptr<const MappedFile> file = nullptr;  // the file that holds them, if known
  bool panels = false;                               // `stored` says blocks, which are packed in panels
};
using FindWeight = std::function<FoundWeight(const ir::Weight& weight)>;

// Throws InvalidProgram unless the number of bytes is the weight's.
void check_size(const ir::Weight& weight, const FoundWeight& found);

// Reads a weight and compares its SHA-256 where the graph states one. Throws InvalidProgram naming the weight.
void verify_hash(const ir::Weight& weight, const FoundWeight& found);

// Finds weights by key, then by fully qualified name: in the caller's memory first, then in all files.
class WeightStore {
 public:
  using Memory = std::map<std::string, TensorView, std::less<>>;

  // `package`: the package's own data; always present.
  explicit WeightStore(WeightFile package) { files_.push_back(std::move(package)); }
  void add_files(const std::string& path, const OpenFile& open = MappedFile::open);
  void add_memory(Memory memory) { memory_ = std::move(memory); }

  // A file's description of its tensors wins over the weight's IR fields if both hold f32 values: as f32, f16, bf16 or
  // in blocks. Throws NotFound naming the key, where it was searched and similar names; InvalidProgram for data of
  // another size, dtype or shape, or found in two files; Unsupported for a type that graft does not compute with;
  // InvalidArgument for caller's memory of another dtype or shape, null, or not aligned to its element.
  FoundWeight find(const ir::Weight& weight);
  // Throws what `find` throws if one weight is missing or does not fit; for several, an error that lists them: NotFound
  // if none was found, else InvalidProgram.
  void check(const std::vector<const ir::Weight*>& weights);
  // Throws InvalidArgument naming caller's memory that no weight used.
  void check_memory_used() const;

  const std::vector<WeightFile>& files() const { return files_; }

 private:
  std::optional<FoundWeight> in_memory(const std::string& name, const ir::Weight& weight);
  std::optional<FoundWeight> in_files(const std::string& name, const ir::Weight& weight) const;
  std::optional<FoundWeight> look_up(const ir::Weight& weight);
  std::string none_of(const std::vector<const ir::Weight*>& weights) const;  // the message of NotFound
  std::string like(const ir::Weight& weight) const;

  std::vector<WeightFile> files_;  // the package first
  Memory memory_;
  std::set<std::string, std::less<>> used_;  // names in `memory_` that were found
};

// Up to three of `names` that are most similar to `name`, as "'a', 'b'"; empty if none is.
std::string close_names(std::string_view name, const std::vector<std::string_view>& names);

}  // namespace graft
