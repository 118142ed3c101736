#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graft/export.h"
#include "weight/weights.h"

// The whole content of a GGUF file, for the exporter: models are distributed as such files.
namespace graft {

// An array of strings, a vocabulary or its merges: the tokenizer reads those from `GgufFile::vocabulary`.
struct GgufStrings {
  std::size_t count = 0;
};

using GgufValue = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<std::uint64_t>, std::vector<double>, GgufStrings>;

struct GgufFile {
  WeightFile weights;                                    // every tensor, in the file's mapping
  std::vector<std::pair<std::string, GgufValue>> pairs;  // in file order; strings are raw bytes
  std::string vocabulary;                                // the pairs as a GGUF file without tensors
};

// Throws NotFound or SystemError, which name the file, and InvalidProgram, which does not.
GRAFT_API GgufFile open_gguf(const std::string& path);
// Of a file that is open. Throws InvalidProgram.
GgufFile gguf_of(std::shared_ptr<const MappedFile> file);

}  // namespace graft
