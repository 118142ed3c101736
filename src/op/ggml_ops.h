#pragma once

#include <span>

#include "kernel/attention/cached_attention.h"
#include "kernel/conv/conv.h"
#include "op/common.h"

// ggml's ops for devices other than the CPU, where they compute the same as PyTorch. Every function returns false,
// without any launch that matters, if there is no device or it lacks the op: then graft's kernel runs. Where ggml
// computes in f32 only, f16 and bf16 operands are widened and the result is rounded once, as PyTorch does.
namespace graft::device {

// One function of its operands, into `out`.
bool elementwise(Lowering& lowering, const Elementwise& what, std::span<const Binding> operands, const Tensor& out);

// a [..., M, K] times b [..., K, N] into `out` [..., M, N]; leading dims equal, or absent. `bias` (optional) broadcasts
// to the product. All of one dtype.
bool matmul(Lowering& lowering, const Tensor& a, const Tensor& b, const Tensor* bias, const Tensor& out);

// Norm of rows of `row` elements, then times weight, then plus bias (each optional, of `row` elements). `input` and
// `out` are contiguous.
enum class Norm { layer, rms };
bool norm(Lowering& lowering, Norm kind, const Tensor& input, const Tensor* weight, const Tensor* bias,
          std::int64_t row, double eps, const Tensor& out);

// Sum, mean or Euclidean norm over the last dims, all that `out` (contiguous) lacks.
enum class Reduction { sum, mean, norm };
bool reduce(Lowering& lowering, Reduction kind, const Tensor& input, const Tensor& out);

// Softmax over the last dim of a contiguous tensor.
bool softmax(Lowering& lowering, const Tensor& input, const Tensor& out);

// Rows of `table` [N, E] named by `indices` (i32 or i64, of any strides), into contiguous `out` [..., E]; of a table
// [B, N, E] those of each of the B, into [B, ..., E]. The indices are checked on the CPU; with `wrap` negative ones
// count from the end. `dim` is for messages.
bool gather_rows(Lowering& lowering, const Tensor& table, const Tensor& indices, int dim, bool wrap, const Tensor& out);

// Scaled dot-product attention. q [..., T, D], k [..., S, D], v [..., S, Dv]; leading dims [B, H] or less; H of q may
// be a multiple of that of k and v (grouped queries), B may be 1. `mask` broadcasts to [B, H, T, S]. `out` is
// contiguous [..., T, Dv].
struct Attention {
  Tensor q, k, v;
  const Tensor* mask = nullptr;
  double scale = 1;
  bool causal = false;
};
bool attention(Lowering& lowering, const Attention& what, const Tensor& out);

// Rotary position embedding of x [B, H, T, D] into `out` of that shape, whose memory is [B, T, H, D]: pairs of the
// halves of D turn by position / period, the result times scale. `position` is i32 or i64 [B, T], contiguous, `period`
// f32 [D / 2].
bool rope(Lowering& lowering, const Tensor& x, const Tensor& position, const Tensor& period, double scale,
          const Tensor& out);

// Attention of new tokens over caches of keys and values, in which they are stored first: both stay on the device. The
// operands are kCachedAttention's; `out` is contiguous [B, T, H, Dv].
struct CachedAttention {
  Tensor q, k, v, position, key_cache, value_cache;
  const Tensor* sinks = nullptr;
  const Tensor* blocks = nullptr;
  CachedAttentionAttrs attrs;
};
bool cached_attention(Lowering& lowering, const CachedAttention& what, const Tensor& out);

// A convolution of at most two spatial dimensions, x [N, C, 1, H, W] and weight [O, C / groups, 1, KH, KW], contiguous;
// bias [O] or null; `out` contiguous.
bool convolution(Lowering& lowering, const Tensor& x, const Tensor& weight, const Tensor* bias, const ConvAttrs& attrs,
                 const Tensor& out);

}  // namespace graft::device
