#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graft/tensor.h"
#include "weight/weights.h"

// Files with LoRA adapters: what peft and llama.cpp write.
namespace graft {

// One layer of an adapter as its file has it.
struct AdapterFileLayer {
  std::string module;  // qualified name, or GGUF's ("blk.0.attn_q")
  StoredTensor a, b;   // [rank, in] and [out, rank], f32, f16 or bf16
  double scale = 1;
};

struct AdapterFile {
  std::shared_ptr<const MappedFile> file;  // has the tensors
  std::vector<AdapterFileLayer> layers;    // by name
  // Of GGUF: names are GGUF's, and "llama" as its architecture: rows of queries and keys are in pairs.
  bool gguf = false;
  std::string architecture;
};

// `path`: a folder with adapter_config.json and adapter_model.safetensors, the latter, or a GGUF file. Throws NotFound,
// SystemError, InvalidProgram for a damaged file, Unsupported for what is no plain LoRA, InvalidArgument for ranks that
// are not those of the configuration; all name the file.
AdapterFile read_adapter(const std::string& path);

// Modules by a pattern of peft's: a name, or a regular expression of characters, '.', classes ("[0-9]", "\d") and '*',
// '+' and '?' behind these, which matches the whole name or its end from a dot on.
class ModulePattern {
 public:
  // Throws Unsupported for other expressions.
  explicit ModulePattern(std::string_view pattern);
  bool matches(std::string_view module) const;

 private:
  struct Atom {
    std::string any_of;  // empty: every character
    bool negated = false, optional = false, repeats = false;
    bool takes(char c) const { return any_of.empty() || (any_of.find(c) != std::string::npos) != negated; }
  };
  bool matches_whole(std::string_view text) const;
  std::vector<Atom> atoms_;
};

}  // namespace graft
