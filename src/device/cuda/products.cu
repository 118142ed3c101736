// Which of ggml's kernels multiplies: these functions take the place of ggml's, which are compiled under other names
// (cmake/cuda/CMakeLists.txt).
#include "common.cuh"
#include "mmf.cuh"
#include "mmvf.cuh"

bool graft_ggml_should_use_mmf(enum ggml_type type, int cc, int warp_size, const int64_t* src0_ne,
                               const size_t* src0_nb, const int src1_ncols, bool mul_mat_id);
void graft_ggml_mul_mat_f(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                          const ggml_tensor* ids, ggml_tensor* dst);

// That kernel rounds f32 operands to TF32.
bool ggml_cuda_should_use_mmf(enum ggml_type type, int cc, int warp_size, const int64_t* src0_ne, const size_t* src0_nb,
                              const int src1_ncols, bool mul_mat_id) {
  return type != GGML_TYPE_F32 &&
         graft_ggml_should_use_mmf(type, cc, warp_size, src0_ne, src0_nb, src1_ncols, mul_mat_id);
}

// And f32 operands beside halves to halves, whatever precision is asked for. Others, which do not, take its place.
void ggml_cuda_mul_mat_f(ggml_backend_cuda_context& ctx, const ggml_tensor* src0, const ggml_tensor* src1,
                         const ggml_tensor* ids, ggml_tensor* dst) {
  if (ids || dst->op_params[0] != GGML_PREC_F32) return graft_ggml_mul_mat_f(ctx, src0, src1, ids, dst);
  for (int64_t i = 0; i < src1->ne[1]; i += MMVF_MAX_BATCH_SIZE) {
    ggml_tensor columns = *src1, out = *dst;
    columns.ne[1] = out.ne[1] = min(src1->ne[1] - i, int64_t{MMVF_MAX_BATCH_SIZE});
    columns.data = static_cast<char*>(src1->data) + i * src1->nb[1];
    out.data = static_cast<char*>(dst->data) + i * dst->nb[1];
    ggml_cuda_mul_mat_vec_f(ctx, src0, &columns, nullptr, &out, nullptr);
  }
}
