#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace graft {

// Releases the pages entirely inside these ranges that lie in read-only mappings of files, whoever mapped them, if no
// page of the mapping was ever written: they are read from the file again when they are needed, and locked no more.
// Other memory stays as it is. Nobody may unmap the ranges meanwhile. Returns the bytes released; 0 where
// /proc/self/smaps cannot be read. Takes some milliseconds.
std::size_t release_file_pages(const std::vector<std::span<const std::byte>>& ranges);

}  // namespace graft
