#include "base/check.h"
#include "lowering/launch.h"

namespace graft {

namespace {

std::string reason_of_ggml(const Launch& launch) {
  if (launch.on_device) return "the device has the op";
  for (const Tensor& t : launch.inputs)
    if (t.stored) return str("plain lowering: ggml reads ", t.stored->str(), " as it is stored");
  return "plain lowering: ggml has the op";
}

}  // namespace

std::string explain_kernel(const Launch& launch) {
  if (!launch.kernel) return reason_of_ggml(launch);
  std::string reason = "the one kernel for it";
  if (launch.kernel->explain) reason = launch.kernel->explain(DescribedLaunch(launch).context());
  if (!launch.refused.empty()) reason += str("; ", launch.refused);
  if (launch.serial) reason += "; too little work for a second thread";
  return reason;
}

}  // namespace graft
