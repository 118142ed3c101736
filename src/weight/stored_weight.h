#pragma once

#include <cstdint>

#include "ir/program.h"
#include "weight/stored.h"

// Converts between the fields of an IR weight and its stored type.
namespace graft {

Stored stored_of(const ir::Weight& weight);
void set_stored(ir::Weight& weight, const Stored& stored);  // plain or blocks; sets byte_size too
void set_panels(ir::Weight& weight, std::uint64_t bytes);   // blocks that are now packed in panels

// Checks that ir::verify leaves out because the IR knows no formats: that block types are known, that the shapes can be
// stored in them, and the sizes. Throws InvalidProgram naming the weight.
void verify_weights(const ir::Program& program);

}  // namespace graft
