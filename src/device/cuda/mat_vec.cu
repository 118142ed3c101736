// Products of a matrix with one or a few vectors, as a step of decoding has them, in the place of ggml's: a step is as
// fast as the weights come from memory. A kernel asks for its first weights before the one ahead of it has ended
// (programmatic dependent launch), since no kernel writes weights; and vectors stay f32, where ggml's kernels of
// quantized weights round them to 8 bits, in a kernel of its own.
#include "common.cuh"
#include "mmvf.cuh"
#include "mmvq.cuh"
#include "unary.cuh"

// ggml's own, compiled under other names (cmake/cuda/CMakeLists.txt).
void graft_ggml_mul_mat_vec_f(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                              const ggml_tensor* ids, ggml_tensor* dst, const ggml_cuda_mm_fusion_args_host* fusion);
void graft_ggml_mul_mat_vec_q(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                              const ggml_tensor* ids, ggml_tensor* dst, const ggml_cuda_mm_fusion_args_host* fusion);
bool graft_ggml_should_use_mmvf(enum ggml_type type, int cc, const int64_t* src0_ne, const size_t* src0_nb,
                                int64_t ne11);

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;        // of a block
constexpr int kAhead = 4;        // steps whose weights are on their way
constexpr int kStep = 256;       // values of a row that a warp reads at once, 8 by each lane
constexpr int kMostColumns = 8;  // vectors of one kernel

// Types of weights: Raw is what a lane reads of a row in a step; its values are those at first(), four by four.
template <typename Half>
struct Halves {
  using Raw = uint4;
  static __device__ int first(int lane) { return 8 * lane; }
  static constexpr int kSecond = 4;
  static __device__ Raw load(const char* row, int step, int lane) {
    return __ldcs(reinterpret_cast<const uint4*>(row) + step * kWarp + lane);
  }
  static __device__ float value(uint32_t word, bool high);
  static __device__ void widen(const Raw& raw, float (&out)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = value(words[i / 2], i % 2 != 0);
  }
};
template <>
__device__ float Halves<nv_bfloat16>::value(uint32_t word, bool high) {
  return __uint_as_float(high ? word & 0xFFFF0000u : word << 16);
}
template <>
__device__ float Halves<half>::value(uint32_t word, bool high) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(high ? word >> 16 : word)));
}

struct Q8_0 {
  struct Raw {
    uint32_t q[2];
    half scale;
  };
  static __device__ int first(int lane) { return 8 * lane; }
  static constexpr int kSecond = 4;
  static __device__ Raw load(const char* row, int step, int lane) {
    const char* block = row + (step * (kStep / QK8_0) + lane / 4) * sizeof(block_q8_0);
    const auto* q = reinterpret_cast<const unsigned short*>(block + sizeof(half)) + lane % 4 * 4;
    Raw raw;
    raw.scale = *reinterpret_cast<const half*>(block);
    raw.q[0] = q[0] | static_cast<uint32_t>(q[1]) << 16;
    raw.q[1] = q[2] | static_cast<uint32_t>(q[3]) << 16;
    return raw;
  }
  static __device__ void widen(const Raw& raw, float (&out)[8]) {
    const float scale = __half2float(raw.scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(raw.q[i / 4] >> 8 * (i % 4)));
  }
};

// A step is one block of 256 values: four groups of 64, of which the first halves are the low bits of 32 bytes.
struct Q4_K {
  struct Raw {
    uint32_t q, scales[3];
    half2 scale_min;
  };
  static __device__ int first(int lane) { return 64 * (lane / 8) + 4 * (lane % 8); }
  static constexpr int kSecond = 32;
  static __device__ Raw load(const char* row, int step, int lane) {
    const auto* words = reinterpret_cast<const uint32_t*>(row + step * sizeof(block_q4_K));
    Raw raw;
    raw.scale_min = *reinterpret_cast<const half2*>(words);
    for (int i = 0; i < 3; ++i) raw.scales[i] = words[1 + i];
    raw.q = __ldcs(words + 4 + lane);
    return raw;
  }
  static __device__ void widen(const Raw& raw, float (&out)[8]) {
    const float2 scale_min = __half22float2(raw.scale_min);
    const int group = threadIdx.x % kWarp / 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Six bits each of a scale and a minimum: of the later four groups of 32 values the upper two are with the first.
      const int at = 8 * (2 * (group % 2) + h);
      const uint32_t a = raw.scales[0] >> at, b = raw.scales[1] >> at, c = raw.scales[2] >> at;
      const uint32_t scale = group < 2 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4;
      const uint32_t minimum = group < 2 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;
      const float d = scale_min.x * static_cast<float>(scale), m = scale_min.y * static_cast<float>(minimum);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * h + i] = d * static_cast<float>(raw.q >> (8 * i + 4 * h) & 15) - m;
    }
  }
};

struct MatVecArgs {
  const char* weight = nullptr;  // [rows, columns of `steps` times 256 values]
  const char* gate = nullptr;    // the same, or null
  const float* vectors = nullptr;
  const float* bias = nullptr;  // [rows], or null
  const float* gate_bias = nullptr;
  float* out = nullptr;
  int64_t row_bytes = 0, vector_stride = 0, out_stride = 0;
  int rows = 0, steps = 0, count = 0;  // count: vectors
  bool gelu = false;                   // of the gate; else silu
};

// kSplit warps make kRows rows of all products: each reads every kSplit-th group of kAhead steps.
template <typename Weight, int kColumns, int kRows, int kSplit, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarp) mat_vec(const MatVecArgs args) {
  constexpr int kRead = kGated ? 2 * kRows : kRows;
  // Steps whose parts of the vectors are asked for together, as far as there are registers for them.
  constexpr int kTogether = kColumns == 1 ? kAhead : kColumns == 2 ? 2 : 1;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = warp % kSplit;
  const int first_row = (blockIdx.x * (kWarps / kSplit) + warp / kSplit) * kRows;
  // The next kernel waits for the end of this one before it reads results.
  ggml_cuda_pdl_lc();
  const char* row[kRead];
#pragma unroll
  for (int r = 0; r < kRead; ++r)
    row[r] = (r < kRows ? args.weight : args.gate) + min(first_row + r % kRows, args.rows - 1) * args.row_bytes;
  // Steps of this warp: part, part + kSplit, ...
  typename Weight::Raw ahead[kAhead][kRead];
#pragma unroll
  for (int d = 0; d < kAhead; ++d)
    if (part + d * kSplit < args.steps)
#pragma unroll
      for (int r = 0; r < kRead; ++r) ahead[d][r] = Weight::load(row[r], part + d * kSplit, lane);
  ggml_cuda_pdl_sync();

  float sum[kRead][kColumns] = {};
  const float* vectors = args.vectors + Weight::first(lane);
  for (int s = part; s < args.steps; s += kAhead * kSplit) {
#pragma unroll
    for (int first = 0; first < kAhead; first += kTogether) {
      float4 x[kTogether][kColumns][2];
#pragma unroll
      for (int d = 0; d < kTogether; ++d)
        if (s + (first + d) * kSplit < args.steps)
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const float* from =
                vectors + min(c, args.count - 1) * args.vector_stride + (s + (first + d) * kSplit) * kStep;
            x[d][c][0] = *reinterpret_cast<const float4*>(from);
            x[d][c][1] = *reinterpret_cast<const float4*>(from + Weight::kSecond);
          }
#pragma unroll
      for (int d = 0; d < kTogether; ++d) {
        if (s + (first + d) * kSplit < args.steps) {
#pragma unroll
          for (int r = 0; r < kRead; ++r) {
            float w[8];
            Weight::widen(ahead[first + d][r], w);
            const int next = s + (first + d + kAhead) * kSplit;
            if (next < args.steps) ahead[first + d][r] = Weight::load(row[r], next, lane);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              const float4 a = x[d][c][0], b = x[d][c][1];
              sum[r][c] +=
                  w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w + w[4] * b.x + w[5] * b.y + w[6] * b.z + w[7] * b.w;
            }
          }
        }
      }
    }
  }
  float mine = 0, mine_gate = 0;  // a lane has one element
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float value = warp_reduce_sum<kWarp>(sum[r][c]);
      if (lane == c * kRows + r) mine = value;
      if constexpr (kGated) {
        const float gate = warp_reduce_sum<kWarp>(sum[kRows + r][c]);
        if (lane == c * kRows + r) mine_gate = gate;
      }
    }
  }
  if constexpr (kSplit > 1) {
    __shared__ float parts[kGated ? 2 : 1][kWarps][kRows * kColumns];
    if (lane < kRows * kColumns) {
      parts[0][warp][lane] = mine;
      if constexpr (kGated) parts[1][warp][lane] = mine_gate;
    }
    __syncthreads();
    if (part > 0 || lane >= kRows * kColumns) return;
    for (int p = 1; p < kSplit; ++p) {
      mine += parts[0][warp + p][lane];
      if constexpr (kGated) mine_gate += parts[1][warp + p][lane];
    }
  }
  const int out_row = first_row + lane % kRows, column = lane / kRows;
  if (column >= min(kColumns, args.count) || out_row >= args.rows) return;
  if (args.bias) mine += args.bias[out_row];
  if constexpr (kGated) {
    if (args.gate_bias) mine_gate += args.gate_bias[out_row];
    mine *= args.gelu ? ggml_cuda_op_gelu_single(mine_gate) : ggml_cuda_op_silu_single(mine_gate);
  }
  args.out[column * args.out_stride + out_row] = mine;
}

template <typename Weight, int kColumns, int kRows, int kSplit, bool kGated>
void launch(const MatVecArgs& args, cudaStream_t stream) {
  const int rows_of_block = kWarps / kSplit * kRows;
  const dim3 blocks((args.rows + rows_of_block - 1) / rows_of_block), threads(kWarps * kWarp);
  ggml_cuda_kernel_launch(mat_vec<Weight, kColumns, kRows, kSplit, kGated>,
                          ggml_cuda_kernel_launch_params(blocks, threads, 0, stream), args);
}

// Many rows share the vectors that a warp reads; few are cut, so that all processors have enough to wait for.
template <typename Weight, int kColumns>
void launch_for_rows(const MatVecArgs& args, cudaStream_t stream) {
  if (args.rows >= 16384) return launch<Weight, kColumns, 4, 1, false>(args, stream);
  if (args.rows >= 4096) return launch<Weight, kColumns, 1, 1, false>(args, stream);
  if (args.rows >= 2048 || args.steps < 8) return launch<Weight, kColumns, 1, 2, false>(args, stream);
  launch<Weight, kColumns, 1, 4, false>(args, stream);
}

template <typename Weight>
void launch_for_one(const MatVecArgs& args, cudaStream_t stream) {
  if (!args.gate) return launch_for_rows<Weight, 1>(args, stream);
  if (args.rows >= 8192) return launch<Weight, 1, 2, 1, true>(args, stream);
  if (args.rows >= 2048) return launch<Weight, 1, 1, 1, true>(args, stream);
  launch<Weight, 1, 1, 4, true>(args, stream);
}
template <typename Weight>
void launch_for_columns(const MatVecArgs& args, cudaStream_t stream) {
  if (args.count == 1) return launch_for_one<Weight>(args, stream);
  if (args.count == 2) return launch_for_rows<Weight, 2>(args, stream);
  if (args.count <= 4) return launch_for_rows<Weight, 4>(args, stream);
  launch_for_rows<Weight, kMostColumns>(args, stream);
}

// Up to how many vectors these kernels are the faster ones: beyond, tensor cores are, or ggml's products of bytes.
int64_t most_vectors(ggml_type type) { return ggml_is_quantized(type) ? 1 : 4; }

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A matrix whose rows are whole steps, at addresses that loads of 16 bytes take.
bool has_steps(ggml_type type, const int64_t* ne, const size_t* nb) {
  switch (type) {
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_K:
      return ne[0] % kStep == 0 && ne[2] == 1 && ne[3] == 1 && nb[0] == ggml_type_size(type) && nb[1] % 16 == 0;
    default:
      return false;
  }
}

bool is_matrix(const ggml_tensor* t) {
  return t->ne[2] == 1 && t->ne[3] == 1 && t->nb[0] == sizeof(float) && t->type == GGML_TYPE_F32;
}

// Whether the product was launched.
bool multiply(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1, const ggml_tensor* ids,
              ggml_tensor* dst, const ggml_cuda_mm_fusion_args_host* fusion) {
  if (ids || !has_steps(src0->type, src0->ne, src0->nb) || !is_matrix(src1) || !is_matrix(dst)) return false;
  if (src1->ne[1] > (ggml_is_quantized(src0->type) ? most_vectors(src0->type) : kMostColumns)) return false;
  if (src1->nb[1] % 16 != 0 || !is_aligned(src0->data) || !is_aligned(src1->data)) return false;
  MatVecArgs args;
  args.weight = static_cast<const char*>(src0->data);
  args.vectors = static_cast<const float*>(src1->data);
  args.out = static_cast<float*>(dst->data);
  args.row_bytes = static_cast<int64_t>(src0->nb[1]);
  args.vector_stride = static_cast<int64_t>(src1->nb[1] / sizeof(float));
  args.out_stride = static_cast<int64_t>(dst->nb[1] / sizeof(float));
  args.rows = static_cast<int>(src0->ne[1]);
  args.steps = static_cast<int>(src0->ne[0] / kStep);
  args.count = static_cast<int>(src1->ne[1]);
  if (fusion) {
    if (args.count != 1 || fusion->x_scale || fusion->gate_scale) return false;
    if (fusion->x_bias) args.bias = static_cast<const float*>(fusion->x_bias->data);
    if (fusion->gate) {
      if ((fusion->glu_op != GGML_GLU_OP_SWIGLU && fusion->glu_op != GGML_GLU_OP_GEGLU) ||
          fusion->gate->nb[1] != src0->nb[1] || !is_aligned(fusion->gate->data))
        return false;
      args.gate = static_cast<const char*>(fusion->gate->data);
      args.gelu = fusion->glu_op == GGML_GLU_OP_GEGLU;
      if (fusion->gate_bias) args.gate_bias = static_cast<const float*>(fusion->gate_bias->data);
    }
  }
  switch (src0->type) {
    case GGML_TYPE_F16:
      launch_for_columns<Halves<half>>(args, ctx.stream());
      return true;
    case GGML_TYPE_BF16:
      launch_for_columns<Halves<nv_bfloat16>>(args, ctx.stream());
      return true;
    case GGML_TYPE_Q8_0:
      launch_for_one<Q8_0>(args, ctx.stream());
      return true;
    case GGML_TYPE_Q4_K:
      launch_for_one<Q4_K>(args, ctx.stream());
      return true;
    default:
      return false;
  }
}

}  // namespace

bool ggml_cuda_should_use_mmvf(enum ggml_type type, int cc, const int64_t* src0_ne, const size_t* src0_nb,
                               int64_t ne11) {
  if ((type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) && has_steps(type, src0_ne, src0_nb))
    return ne11 <= most_vectors(type);
  return graft_ggml_should_use_mmvf(type, cc, src0_ne, src0_nb, ne11);
}

void ggml_cuda_mul_mat_vec_f(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                             const ggml_tensor* ids, ggml_tensor* dst, const ggml_cuda_mm_fusion_args_host* fusion) {
  if (!multiply(ctx, src0, src1, ids, dst, fusion)) graft_ggml_mul_mat_vec_f(ctx, src0, src1, ids, dst, fusion);
}

void ggml_cuda_mul_mat_vec_q(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                             const ggml_tensor* ids, ggml_tensor* dst, const ggml_cuda_mm_fusion_args_host* fusion) {
  if (!multiply(ctx, src0, src1, ids, dst, fusion)) graft_ggml_mul_mat_vec_q(ctx, src0, src1, ids, dst, fusion);
}
