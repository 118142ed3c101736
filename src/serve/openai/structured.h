#pragma once

#include <memory>

#include "serve/json_fields.h"
#include "serve/models.h"

namespace graft::serve {

// The form that a request asks its texts to have: one of response_format, structured_outputs (vLLM's), json_schema and
// grammar (llama-server's); null: none. Throws ApiError (400) for more than one of them, and for what is not served,
// naming it.
std::shared_ptr<const Grammar> structure_of(Fields& fields, const ServedModel& model);

// A grammar of `source`, as errors call it `path`. Throws ApiError (400) for what the grammar refuses.
std::shared_ptr<const Grammar> grammar_named(const ServedModel& model, const std::string& key, const std::string& path,
                                             const Grammars::Make& make);

}  // namespace graft::serve
