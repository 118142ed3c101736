// Included ahead of each file of ggml's CUDA backend.
#pragma once

#include <cublas_v2.h>  // ahead of the macro, since it names the value

// cuBLAS would round f32 operands to TF32.
#define CUBLAS_TF32_TENSOR_OP_MATH CUBLAS_DEFAULT_MATH
