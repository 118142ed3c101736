#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/app.h"

namespace graft::serve {

// An inference request, ready to run.
struct InferRequest {
  std::optional<std::string> model_name;       // clients of KServe repeat that of the path
  Json id;                                     // null: none
  std::vector<std::vector<std::byte>> memory;  // of the inputs
  std::vector<Value> inputs;                   // in the method's order
  struct Output {
    std::size_t index = 0;  // of the method's
    bool binary = false;
  };
  std::vector<Output> outputs;
};

// `body`: JSON, behind which the binary tensors lie; `header_bytes`: of the JSON, empty: all. Throws ApiError (400) for
// anything that is not as the protocol, or the method, has it.
InferRequest read_infer(std::string_view body, std::string_view header_bytes, const MethodInfo& method);

// The answer, from the method's outputs.
Response write_infer(const InferRequest& request, const std::string& model, const MethodInfo& method,
                     const std::vector<Value>& outputs);

// What an input or output is called: its own name, or "input_0", "output_0".
std::string v2_input_name(const MethodInfo& method, std::size_t index);
std::string v2_output_name(const MethodInfo& method, std::size_t index);

}  // namespace graft::serve
