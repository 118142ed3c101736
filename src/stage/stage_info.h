#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graft/llm.h"

namespace graft::stage {

inline constexpr std::string_view kMethod = "step";

// Key of a package's named data that says which stage of which model it is: JSON, written by graft.export_llm.
inline constexpr std::string_view kStageKey = "graft.stage.json";

// Empty for a package that is no stage. Throws InvalidProgram for one that says so wrongly, and what opening it throws.
GRAFT_API std::optional<StageInfo> read_stage_info(const std::string& path);
// Of the content of that data.
StageInfo stage_info_of(const std::string& path, std::string_view text);

}  // namespace graft::stage
