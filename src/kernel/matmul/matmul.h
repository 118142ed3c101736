#pragma once

#include <cstdint>
#include <string>

#include "graft/tensor.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"

namespace graft {

// Multiply-adds from which a product is divided among threads: some 5 microseconds of one core.
inline constexpr std::int64_t kMinParallelProducts = 1 << 16;

struct MatmulAttrs {
  float alpha = 1;  // output = activation(alpha * a b + beta * bias)
  float beta = 1;
  simd::Activation activation = simd::Activation::none;
  std::int32_t has_bias = 0;
  std::int32_t in_bf16 = 0;  // f32 operands may be rounded to bf16: MatmulPrecision::medium
};

// ", relu in the epilogue", for people; empty without an activation.
std::string activation_text(simd::Activation activation);

// Batched matrix product. Inputs: a [..., M, K], b [..., K, N] and, when has_bias, bias [..., M, N]; output [..., M,
// N]. All have the same batch dimensions (expanded: stride 0 is legal, so that a bias [N] costs nothing). f32, f16 or
// bf16 each, any strides; sums are kept in f32 and rounded once. Where the CPU multiplies bf16, products with more than
// simd::kMaxDotRows rows use it when the operands are bf16, or f32 that `in_bf16` allows to be rounded. A weight [N, K]
// is passed as its transposed view. K = 0 gives the bias, or zeros.
extern const Kernel kMatmul;

// Sets the product's activation from the epilogue, if it is one and the product has none yet.
bool take_epilogue(MatmulAttrs& attrs, const Epilogue& epilogue);

// Scratch bytes that kMatmul needs for these operands.
std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b);

// The vector code of products for active_isa(), which kMatmul uses, or for a given instruction set.
struct MatmulKernels {
  MatmulKernels() : table(simd::matmul()), pairs(simd::pair_products()) {}
  explicit MatmulKernels(simd::Isa isa) : table(simd::matmul(isa)), pairs(simd::pair_products(isa)) {}

  const simd::MatmulTable& table;
  const simd::PairProducts* pairs;  // null where the CPU does not multiply bf16
};
void run_matmul(const KernelContext& ctx, const MatmulKernels& kernels) noexcept;
int matmul_phases(const KernelContext& ctx, const MatmulKernels& kernels) noexcept;
std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b,
                                  const MatmulKernels& kernels);

// kMatmul for the dtypes without a vector kernel: f64 with f64 sums, i8, u8, i16, i32 and i64 with wrapping arithmetic
// of that width, as in PyTorch. All dtypes equal. alpha and beta are in PlainMatmulAttrs; needs no scratch.
struct PlainMatmulAttrs {
  double alpha = 1;
  double beta = 1;
  std::int64_t integer_alpha = 1;  // for the integer dtypes
  std::int64_t integer_beta = 1;
  std::int32_t has_bias = 0;
};
extern const Kernel kPlainMatmul;

}  // namespace graft
