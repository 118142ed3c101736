#pragma once

#include "serve/json_fields.h"

namespace graft::serve {

// A line of JSON on stderr: {"time": "2026-01-31T12:00:00.000Z", "level": "info", "event": event, ...fields}. Prompts
// and answers never go there. From any thread.
void log_event(const char* level, const char* event, const Json& fields = Json::object());

}  // namespace graft::serve
