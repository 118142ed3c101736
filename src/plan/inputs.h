#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graft/graft.h"
#include "ir/program.h"
#include "ir/scalar.h"
#include "lowering/kv_shape.h"

namespace graft {

// One user input of a call: a tensor's dtype and sizes, or a number.
struct InputDesc {
  bool is_tensor = true;
  TensorDesc desc;  // contiguous
  Scalar scalar;
};

// Positions of the user's flattened arguments. Those that the graph does not read (None, a constant) have no value.
std::size_t user_input_count(const ir::Method& method);

// Checks the inputs (one per position) against the method's declared dtypes, ranks and ranges. Throws InvalidArgument
// naming the input.
void check_inputs(const ir::Method& method, std::span<const InputDesc> inputs);

// The plan key: a plan serves every call with an equal key. Sizes of the tensors, values of the numbers and, for a
// program with a KV cache, its sizes and type and what a device knows of it. Appended, so that a caller who keeps the
// vector allocates nothing.
void append_plan_key(std::span<const InputDesc> inputs, std::vector<std::int64_t>& key);
void append_kv_key(const KvOptions& kv, const KvExtent& extent, std::vector<std::int64_t>& key);
inline constexpr std::size_t kKvKeyNumbers = 7;  // added by append_kv_key
bool has_kv_cache(std::span<const ir::State> states);

}  // namespace graft
