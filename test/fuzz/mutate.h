#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Structured mutators: they parse a file, change its tables and write it again, so that the result is mostly a
// well-formed file with wrong content. The same seed gives the same mutant. Bytes that do not parse are mutated byte by
// byte.
namespace graft::fuzz {

using Blob = std::vector<std::byte>;

// Of a graft program (schema/graft.fbs).
Blob mutate_ir(std::span<const std::byte> blob, std::uint64_t seed);

// Of a .pte: the programs of its delegates, its flatbuffer, its header, its segments, or plain bytes.
Blob mutate_package(std::span<const std::byte> file, std::uint64_t seed);

// Texts that belong together are one input, with a line "%%" between them.
inline constexpr std::string_view kSection = "\n%%\n";
std::vector<std::string> sections(std::span<const std::byte> input);
Blob joined(const std::vector<std::string>& texts);

// tokenizer.json, tokenizer_config.json, a text to be encoded.
Blob mutate_tokenizer(std::span<const std::byte> input, std::uint64_t seed);
// A chat template, and its variables as JSON.
Blob mutate_template(std::span<const std::byte> input, std::uint64_t seed);
// Files of weights and vocabularies.
Blob mutate_gguf(std::span<const std::byte> file, std::uint64_t seed);
Blob mutate_safetensors(std::span<const std::byte> file, std::uint64_t seed);
Blob mutate_ptd(std::span<const std::byte> file, std::uint64_t seed);
// A .npz of stored arrays.
Blob mutate_npz(std::span<const std::byte> file, std::uint64_t seed);
Blob make_npz(const std::vector<std::pair<std::string, Blob>>& entries);
// A stored plan, mostly one of this build.
Blob mutate_plan(std::span<const std::byte> file, std::uint64_t seed);
// Files whose last 32 bytes are the SHA-256 of all before, which a mutant mostly has right: states.
Blob mutate_signed(std::span<const std::byte> file, std::uint64_t seed);
// A file of packed weights, whose head is signed.
Blob mutate_packed(std::span<const std::byte> file, std::uint64_t seed);

// Sound and pictures: words of their heads, or plain bytes.
Blob mutate_audio(std::span<const std::byte> file, std::uint64_t seed);

// What a driver and a stage say to each other.
Blob mutate_message(std::span<const std::byte> bytes, std::uint64_t seed);

// What a client sends: HTTP with JSON.
Blob mutate_request(std::span<const std::byte> input, std::uint64_t seed);

}  // namespace graft::fuzz
