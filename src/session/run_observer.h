#pragma once

#include <map>
#include <string>
#include <vector>

#include "exec/launch_observer.h"
#include "graft/graft.h"
#include "plan/plan.h"

namespace graft {

// What RunOptions::check and RunOptions::observe ask for.
class RunObserver final : public LaunchObserver {
 public:
  // `options` and `plan`, of which it sees the launches, outlive it.
  RunObserver(const RunOptions& options, const Plan& plan);

  static bool wanted(const RunOptions& options) { return options.check != Check::none || options.observe; }

  void before(const Launch& launch, const KernelContext& context) override;
  void after(const Launch& launch, const KernelContext& context) override;

 private:
  bool is_fault(double value) const;
  void check_outputs(const KernelContext& context) const;

  const RunOptions& options_;
  const Plan& plan_;
  std::map<const Launch*, std::vector<const NodeResult*>> completed_;  // by a launch
  bool clean_ = false;               // no input of the launch has what the check looks for
  std::vector<std::string> inputs_;  // of the launch: type, sizes and range, for the message
};

}  // namespace graft
