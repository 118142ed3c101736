#pragma once

#include <string>
#include <vector>

#include "graft/export.h"

// What this build is and what it uses of the machine, for reports and `graft doctor`.
namespace graft {

struct BuildInfo {
  std::string version;                        // as graft::version()
  std::string commit;                         // that the sources were configured at; empty outside a checkout
  std::string ggml;                           // release and commit of the ggml that it was built for: "0.9.4 (0c1e570)"
  std::vector<std::string> instruction_sets;  // built, and available on this CPU; worst first
  std::vector<std::string> not_available;     // built, and not available on this CPU
  std::string instruction_set;                // of the inner loops in use: the best that pays here, or GRAFT_ISA
  int cpus = 0;     // that this process may use: its affinity mask, bounded by the cgroup's CPU quota
  int threads = 0;  // of a session whose options say none: GRAFT_THREADS, else `cpus`
};

// Throws InvalidArgument when GRAFT_ISA or GRAFT_THREADS has a value that cannot be used.
GRAFT_API BuildInfo build_info();

}  // namespace graft
