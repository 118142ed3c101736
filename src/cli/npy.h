#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "graft/graft.h"

// NumPy's .npy files (numpy.lib.format), versions 1 to 3.
//
//   numpy                          graft
//   float16, float32, float64      f16, f32, f64
//   int8, int16, int32, int64      i8, i16, i32, i64
//   uint8, bool                    u8, bool
//   uint16, V2 (ml_dtypes)         bf16, as bit patterns: NumPy has no bfloat16
//
// Arrays in Fortran order or of the other byte order are converted. All other dtypes are errors that name them.
namespace graft::cli {

// Memory aligned to 64 bytes, not initialized. Copies share it.
struct Bytes {
  std::shared_ptr<std::byte> data;
  std::size_t size = 0;
};
Bytes allocate(std::size_t size);

// The contents of a whole file, or of a pipe until its end. Throws NotFound or SystemError.
Bytes read_file(const std::string& path);

struct Array {
  TensorView tensor;            // contiguous, row-major, of this machine's byte order
  std::shared_ptr<void> owner;  // of tensor.data
  std::string numpy_dtype;      // as numpy writes it, "<f4"
};

// `what` names the file in messages. Throws InvalidArgument.
Array parse_npy(const Bytes& bytes, const std::string& what);
Array read_npy(const std::string& path);

// Magic, version and header of a contiguous tensor; its data follow. The length is a multiple of 64.
std::string npy_header(DType dtype, const Shape& shape);
// Throws SystemError.
void write_npy(const std::string& path, const TensorView& tensor);

}  // namespace graft::cli
