#include "kernel/elementwise/elementwise.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

void run_elementwise(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ElementwiseAttrs>();
  BlockJob job;
  job.function = simd::elementwise().function(attrs.compute, attrs.op);
  job.inputs = simd::operand_count(attrs.op);
  job.input_class.fill(attrs.compute);
  if (attrs.op == ElementwiseOp::where) job.input_class[0] = BlockClass::b8;
  job.output_class = simd::gives_bool(attrs.op) ? BlockClass::b8 : attrs.compute;
  job.immediate_mask = attrs.immediate_mask;
  for (int k = 0; k < job.inputs; ++k) job.immediates[static_cast<std::size_t>(k)] = attrs.immediates[k];
  job.params = attrs.params;
  if (job.function == nullptr) return ctx.fail(std::string(simd::name(attrs.op)) + ": no function of this class");
  run_or_fail(ctx, job);
}

}  // namespace

const Kernel kElementwise{"elementwise", run_elementwise, kMinParallelElements};

}  // namespace graft
