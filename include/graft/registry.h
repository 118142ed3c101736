#pragma once

// Which models a process has loaded, what they hold, and who uses them.
//
//   for (const graft::ModelInfo& model : graft::Registry::models())
//     std::cout << model.id << " " << model.path << " " << model.constant_bytes << "\n";

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graft/export.h"

namespace graft {

// A model: what programs of the same files share that were loaded for one device with one precision and one choice of
// LoadOptions::fast_kernels. A program in memory, or with LoadOptions::tensors, is a model of its own. The methods of
// one program that ExecuTorch has loaded are one model. Bytes are bytes of memory; each buffer counts once, however
// many programs use it.
struct ModelInfo {
  std::uint64_t id = 0;  // of this process; never given twice
  std::string path;      // as the first program was loaded; for one without a file what its errors call it
  // SHA-256, in hexadecimal digits, of methods, weights and states by name and type and, where the package states it,
  // by content.
  std::string content;
  std::string device;
  std::uint64_t mapped_bytes = 0;       // of the files; without files, of the weights where their owner has them
  std::uint64_t packed_bytes = 0;       // of weights packed, converted or copied
  std::uint64_t constant_bytes = 0;     // of folded constants, packed f32 weights among them
  std::uint64_t packed_file_bytes = 0;  // of both, mapped from files that pack() or LoadOptions::packed_folder wrote
  std::uint64_t plan_bytes = 0;
  std::size_t plans = 0;
  std::size_t programs = 0;   // users: programs, those of delegates included
  std::size_t delegates = 0;  // of these, delegates of ExecuTorch
  bool unloaded = false;      // by Registry::unload(); goes with its last user
};

// The models of this process. Thread-safe: models may be loaded, run and freed meanwhile.
class GRAFT_API Registry {
 public:
  // Those that have users, by id.
  static std::vector<ModelInfo> models();
  // Drops what only the registry holds of the model (its cached plans), and makes later loads of its files load anew:
  // they map the files again and share nothing with it. Its programs and sessions keep working, and plan anew where
  // they need to; the last of them frees it. Unloading a model twice does nothing. Throws NotFound, listing the models
  // that are loaded.
  static void unload(std::uint64_t id);
};

}  // namespace graft
