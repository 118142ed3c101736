#pragma once

#include "lowering/launch.h"

namespace graft {

// Brings launches of one side, CPU or device, together as far as what they read and write allows, so that a run changes
// sides less often. Launches from LaunchSequence::commit_begin on stay last.
void order_for_stages(LaunchSequence& sequence);

// A copy by one of ggml's ops: it runs on the side where its input is.
bool is_ggml_copy(const Launch& launch);

}  // namespace graft
