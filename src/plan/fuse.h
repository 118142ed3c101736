#pragma once

#include "plan/plan.h"

namespace graft {

// Passes over the launches of a plan before memory is laid out. A launch that became part of another is left without
// outputs, so that dropping dead launches removes it.

// A matrix product whose f32 result is read by one activation alone (relu, silu, gelu) writes the activation's result.
// The same numbers: the activation is applied to the f32 sum before it is stored.
void fuse_activations(Plan& plan);

}  // namespace graft
