#include "graft/build.h"

#include <algorithm>

#include "base/check.h"
#include "base/rethrow.h"
#include "exec/cpus.h"
#include "graft/graft.h"
#include "kernel/kernel.h"
#include "kernel/simd/dispatch.h"

namespace graft {

BuildInfo build_info() try {
  BuildInfo info;
  info.version = version();
  info.commit = GRAFT_COMMIT;
  info.ggml = str(GRAFT_GGML_VERSION, " (", GRAFT_GGML_COMMIT, ")");
  for (const simd::Isa isa : simd::available_isas()) info.instruction_sets.emplace_back(simd::name(isa));
  for (const simd::Target& target : simd::kTargets)
    if (target.built && std::ranges::find(info.instruction_sets, target.name) == info.instruction_sets.end())
      info.not_available.emplace_back(target.name);
  info.instruction_set = isa_names();
  info.cpus = usable_cpus();
  info.threads = resolve_threads(0);
  return info;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
