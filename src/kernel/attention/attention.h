#pragma once

#include <cstdint>

#include "kernel/attention/attention_vec.h"
#include "kernel/kernel.h"

namespace graft {

struct AttentionAttrs {
  float scale = 1;
  std::int32_t causal = 0;  // query t sees keys 0 .. t, counted from the first of both (PyTorch's top-left alignment)
  std::int32_t has_mask = 0;
  std::int32_t in_bf16 = 0;  // f32 operands may be rounded to bf16: MatmulPrecision::medium
};

// Scaled dot-product attention. Inputs q [..., T, D], k [..., S, D], v [..., S, Dv] of one dtype (f32, f16, bf16), the
// last dimension contiguous, and when has_mask a mask [..., T, S] of any strides: bool (false hides the key) or f32,
// f16, bf16 (added). Leading dimensions are equal in all (expanded: stride 0 shares a head of k and v among queries).
// Output 0 [..., T, Dv] of that dtype, last dimension contiguous; output 1, when present, f32 [..., T] contiguous: the
// logarithm of each query's sum of exponentials.
extern const Kernel kAttention;

// A mask as ggml's softmax takes it. Input: a mask as above, its leading dimensions not expanded. Output 0: f32, the
// same sizes, contiguous, to be added. Output 1: f32 [..., T, 1] contiguous: 0 for a query that sees no key, else 1.
// Such a query's row of output 0 is zeros, so that the softmax is not NaN; PyTorch's result for it is 0.
extern const Kernel kAttentionMask;

std::int64_t attention_scratch_bytes(const TensorDesc& q, const TensorDesc& k, const TensorDesc& v,
                                     const AttentionAttrs& attrs, int threads);

// kAttention with the kernels of a given instruction set.
void run_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept;
std::int64_t attention_scratch_bytes(const TensorDesc& q, const TensorDesc& k, const TensorDesc& v,
                                     const AttentionAttrs& attrs, int threads, const simd::AttentionTable& table);

}  // namespace graft
