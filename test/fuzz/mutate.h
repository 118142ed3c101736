#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Structured mutators: they parse a file, change its tables and write it again, so that the result is mostly a
// well-formed file with wrong content. The same seed gives the same mutant.
namespace graft::fuzz {

using Blob = std::vector<std::byte>;

// Of a graft program (schema/graft.fbs). Bytes that do not parse are mutated byte by byte.
Blob mutate_ir(std::span<const std::byte> blob, std::uint64_t seed);

// Of a .pte: the programs of its delegates, its flatbuffer, its header, its segments, or plain bytes.
Blob mutate_package(std::span<const std::byte> file, std::uint64_t seed);

}  // namespace graft::fuzz
