#include "stage/stage_info.h"

#include "base/check.h"
#include "base/json.h"
#include "base/rethrow.h"
#include "package/container.h"

namespace graft::stage {

StageInfo stage_info_of(const std::string& path, std::string_view text) {
  StageInfo out;
  try {
    const Json json = read_json<Json>(text);
    out.stage = json.at("stage").get<std::int64_t>();
    out.stages = json.at("stages").get<std::int64_t>();
    out.model = json.at("model").get<std::string>();
    out.exact_chunks = json.value("exact_chunks", false);
  } catch (const Json::exception& error) {
    throw InvalidProgram(str("'", path, "': '", kStageKey, "' cannot be read: ", error.what()));
  }
  GRAFT_CHECK(InvalidProgram, out.stages >= 2 && out.stage >= 0 && out.stage < out.stages && !out.model.empty(), "'",
              path, "': '", kStageKey, "' says stage ", out.stage, " of ", out.stages);
  return out;
}

std::optional<StageInfo> read_stage_info(const std::string& path) try {
  if (const auto text = named_text(path, kStageKey)) return stage_info_of(path, *text);
  return {};
} catch (...) {
  rethrow_typed();
}

}  // namespace graft::stage
