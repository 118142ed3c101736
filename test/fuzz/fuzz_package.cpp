#include "feed.h"
#include "libfuzzer.h"
#include "mutate.h"

// libFuzzer's target for packages (.pte).
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  graft::fuzz::watch_allocations();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  graft::fuzz::count(graft::fuzz::feed_package(std::as_bytes(std::span(data, size))));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  return graft::fuzz::store(graft::fuzz::mutate_package(std::as_bytes(std::span(data, size)), seed), data, max_size);
}
