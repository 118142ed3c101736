#pragma once

#include <cstddef>

// Test only: counts all allocations of the process, ggml's included. Defined in steady_test.cpp.
namespace graft::test {

// False where a sanitizer owns malloc: then nothing is counted.
extern const bool kCountsAllocations;
void begin_counting_allocations();
long end_counting_allocations();   // the number of allocations
std::size_t largest_allocation();  // in bytes

}  // namespace graft::test
