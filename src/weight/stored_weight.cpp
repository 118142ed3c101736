#include "weight/stored_weight.h"

#include <optional>
#include <string>

#include "base/check.h"

namespace graft {

Stored stored_of(const ir::Weight& weight) {
  if (weight.storage == ir::Storage::plain) return Stored::as(weight.dtype);
  const std::optional<BlockType> type = find_block_type(weight.block_type);
  GRAFT_ASSERT(type);
  return {weight.storage == ir::Storage::panels ? Stored::Kind::panels : Stored::Kind::blocks, DType::f32, *type};
}

void set_stored(ir::Weight& weight, const Stored& stored) {
  GRAFT_ASSERT(stored.kind != Stored::Kind::panels);
  weight.storage = stored.is_plain() ? ir::Storage::plain : ir::Storage::ggml_block;
  weight.dtype = stored.dtype;
  weight.block_type = stored.is_plain() ? std::string() : std::string(block_type_name(stored.block));
  weight.byte_size = stored_bytes(stored, weight.shape);
}

void set_panels(ir::Weight& weight, std::uint64_t bytes) {
  GRAFT_ASSERT(weight.storage == ir::Storage::ggml_block);
  weight.storage = ir::Storage::panels;
  weight.key += " in panels";  // equal keys mean equal sizes
  weight.byte_size = bytes;
}

void verify_weights(const ir::Program& program) {
  for (const ir::Weight& weight : program.weights) {
    if (weight.storage == ir::Storage::plain) continue;
    const auto fail = [&](const std::string& what) { throw InvalidProgram(str("weight '", weight.key, "'", what)); };
    const std::optional<BlockType> type = find_block_type(weight.block_type);
    if (!type) fail(str(": block type '", weight.block_type, "' is not known"));
    const std::string refusal =
        weight.storage == ir::Storage::panels ? refuse_panels(*type, weight.shape) : refuse_blocks(*type, weight.shape);
    if (!refusal.empty()) fail(str(" cannot be stored as ", weight.block_type, ": ", refusal));
    const std::uint64_t bytes = stored_bytes(stored_of(weight), weight.shape);
    if (weight.byte_size != bytes)
      fail(str(": ", weight.block_type, weight.shape.str(), " takes ", bytes, " bytes, found ", weight.byte_size));
  }
}

}  // namespace graft
