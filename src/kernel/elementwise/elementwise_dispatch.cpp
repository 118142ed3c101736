#include "kernel/elementwise/elementwise_vec.h"

namespace graft::simd {

namespace baseline {
extern const ElementwiseTable kElementwise;
}
#ifdef GRAFT_HAVE_X86_ISA
namespace avx2 {
extern const ElementwiseTable kElementwise;
}
namespace avx512 {
extern const ElementwiseTable kElementwise;
}
#endif

const ElementwiseTable& elementwise(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kElementwise;
  if (isa >= Isa::avx2) return avx2::kElementwise;
#endif
  static_cast<void>(isa);
  return baseline::kElementwise;
}

const ElementwiseTable& elementwise() { return elementwise(active_isa()); }

namespace {

struct OpInfo {
  const char* name;
  int operands;
  char result;
};

constexpr OpInfo kInfo[] = {
#define GRAFT_X(name, operands, result) {#name, operands, #result[0]},
    GRAFT_ELEMENTWISE_OPS(GRAFT_X)
#undef GRAFT_X
};

const OpInfo& info(ElementwiseOp op) { return kInfo[static_cast<int>(op)]; }

}  // namespace

const char* name(ElementwiseOp op) { return info(op).name; }
int operand_count(ElementwiseOp op) { return info(op).operands; }
bool gives_bool(ElementwiseOp op) { return info(op).result == 'b'; }

}  // namespace graft::simd
