#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/npy.h"

// NumPy's .npz files: zip archives of .npy files, stored or deflated.
namespace graft::cli {

struct NamedArray {
  std::string name;  // without ".npy"
  Array array;
};
// Throws NotFound, SystemError or InvalidArgument.
std::vector<NamedArray> read_npz(const std::string& path);

struct NamedTensor {
  std::string name;
  TensorView tensor;
};
// Written to a temporary file and renamed; not compressed, as numpy.savez. Names must differ. Throws InvalidArgument
// when there is nothing to write, SystemError.
void write_npz(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace graft::cli
