#pragma once

#include <nlohmann/json_fwd.hpp>

// JSON for headers: a source that looks into values includes text/json.h, which takes seconds to compile.
namespace graft::text {

using Json = nlohmann::json;

}  // namespace graft::text
