#pragma once

#include <cstdint>

#include "ir/program.h"
#include "weight/stored.h"

// What the fields of a program's weights say about how their elements are stored.
namespace graft {

// Not for affine storage.
Stored stored_of(const ir::Weight& weight);
void set_stored(ir::Weight& weight, const Stored& stored);  // plain or blocks; byte_size too
void set_panels(ir::Weight& weight, std::uint64_t bytes);   // of blocks, which are now packed in panels

// What ir::verify leaves open, for the IR knows no formats: that the block types of weights are known, that their
// shapes can be stored so, and their bytes. Throws InvalidProgram naming the weight.
void verify_weights(const ir::Program& program);

}  // namespace graft
