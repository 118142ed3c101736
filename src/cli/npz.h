#pragma once

#include <cstdint>
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
// What compressed arrays may become: kFreeBytes, or this many times the file, if that is more. Deflate reaches 1032.
inline constexpr double kZipRatio = 100;
inline constexpr std::uint64_t kFreeBytes = std::uint64_t{64} << 20;
// Throws NotFound, SystemError, InvalidArgument, or Unsupported beyond the ratio.
std::vector<NamedArray> read_npz(const std::string& path, double max_zip_ratio = kZipRatio);

struct NamedTensor {
  std::string name;
  TensorView tensor;
};
// Written to a temporary file and renamed; not compressed, as numpy.savez. Names must differ. Throws InvalidArgument
// when there is nothing to write, SystemError.
void write_npz(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace graft::cli
