#pragma once

#include <nlohmann/json_fwd.hpp>

// Forward declarations of JSON for headers. Only sources that use values include text/json.h, which takes seconds to
// compile.
namespace graft::text {

using Json = nlohmann::json;

}  // namespace graft::text
