#pragma once

namespace graft::simd {

// Throws Unsupported, naming the missing instruction sets, when ggml was compiled for instructions that this CPU lacks:
// its kernels would end the process with an illegal instruction. Also settles active_isa(), so that a wrong GRAFT_ISA
// is an error at start and not inside a kernel.
void check_cpu();

}  // namespace graft::simd
