#pragma once

#include <cstdint>
#include <string>

#include "graft/tensor.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"

namespace graft {

// Multiply-adds from which a product is shared by threads: some 5 microseconds of one core.
inline constexpr std::int64_t kMinParallelProducts = 1 << 16;

struct MatmulAttrs {
  float alpha = 1;  // output = activation(alpha * a b + beta * bias)
  float beta = 1;
  simd::Activation activation = simd::Activation::none;
  std::int32_t has_bias = 0;
  std::int32_t in_bf16 = 0;  // f32 operands may be rounded to bf16: MatmulPrecision::medium
};

// ", relu on the way out", for people; empty without an activation.
std::string activation_text(simd::Activation activation);

// Batched matrix product. Inputs: a [..., M, K], b [..., K, N] and, when has_bias, bias [..., M, N]; output [..., M,
// N]. The batch dimensions of all are equal (expanded: stride 0 is legal, so that a bias [N] costs nothing). f32, f16
// or bf16 each, any strides; sums are kept in f32 and rounded once. Where the CPU multiplies bf16, products of more
// than simd::kMaxDotRows rows are computed in it when the operands are bf16, or f32 that `in_bf16` lets be rounded. A
// weight [N, K] is passed as its transposed view. K = 0 gives the bias, or zeros.
extern const Kernel kMatmul;

// The epilogue becomes the product's activation where it is one and there is none yet.
bool take_epilogue(MatmulAttrs& attrs, const Epilogue& epilogue);

// Scratch that kMatmul needs for these operands.
std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b);

// The same two with the kernels of a given level: kMatmul uses simd::matmul().
void run_matmul(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;
int matmul_phases(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;
std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b,
                                  const simd::MatmulTable& table);

// The same for the dtypes that have no vector kernel: f64 with f64 sums, i8, u8, i16, i32 and i64 with wrapping
// arithmetic of that width, as PyTorch. All dtypes equal. alpha and beta are taken from PlainMatmulAttrs; needs no
// scratch.
struct PlainMatmulAttrs {
  double alpha = 1;
  double beta = 1;
  std::int64_t integer_alpha = 1;  // for the integer dtypes
  std::int64_t integer_beta = 1;
  std::int32_t has_bias = 0;
};
extern const Kernel kPlainMatmul;

}  // namespace graft
