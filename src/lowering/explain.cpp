#include "base/check.h"
#include "lowering/launch.h"

namespace graft {

namespace {

std::string explain_ggml(const Launch& launch) {
  if (launch.on_device) return "the device has the op";
  for (const Tensor& t : launch.inputs)
    if (t.stored) return str("plain lowering: ggml reads ", t.stored->str(), " as it is stored");
  return "plain lowering: ggml has the op";
}

}  // namespace

std::string explain_kernel(const Launch& launch) {
  if (!launch.kernel) return explain_ggml(launch);
  std::string explanation = "the one kernel for it";
  if (launch.kernel->explain) explanation = launch.kernel->explain(DescribedLaunch(launch).context());
  if (!launch.refused.empty()) explanation += str("; ", launch.refused);
  if (launch.serial) explanation += "; too little work for a second thread";
  return explanation;
}

}  // namespace graft
