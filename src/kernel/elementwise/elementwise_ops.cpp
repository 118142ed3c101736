#include "kernel/elementwise/elementwise_vec.h"

namespace graft::simd {

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
