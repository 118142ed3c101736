// ggml's own function is compiled under another name (CMakeLists.txt).
#include "ggml.h"

bool graft_ggml_should_use_mmf(enum ggml_type type, int cc, int warp_size, const int64_t* src0_ne, const size_t* src0_nb,
                               const int src1_ncols, bool mul_mat_id);

// That kernel rounds f32 operands to the other's type, or to TF32, whatever precision is asked for. Others, which do
// not, take its place, but that no other reads experts without waiting for the host.
bool ggml_cuda_should_use_mmf(enum ggml_type type, int cc, int warp_size, const int64_t* src0_ne, const size_t* src0_nb,
                              const int src1_ncols, bool mul_mat_id) {
  return mul_mat_id && type != GGML_TYPE_F32 &&
         graft_ggml_should_use_mmf(type, cc, warp_size, src0_ne, src0_nb, src1_ncols, mul_mat_id);
}
