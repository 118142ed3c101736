#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "graft/graft.h"
#include "stage/channel.h"

// What messages say: numbers of 64 bits, one after the other, in the byte order of the machine, which must be
// little-endian on both sides.
namespace graft::stage {

// Of `prepare` and `run`.
struct Step {
  std::int64_t width = 0, keep = 0;
  std::span<const std::int64_t> sequences;                        // [batch], of the cache
  std::span<const std::int64_t> ids, positions, cache_positions;  // [batch, width]
  std::vector<TensorDesc> tensors;                                // that the stage before gives: the payload, in order

  std::vector<std::int64_t> numbers() const;
  // Views into `meta`. Throws Refused for what no step says.
  static Step of(std::span<const std::byte> meta);
};

// Of `done`.
struct Result {
  std::vector<std::int64_t> shortest;  // by sequence of the step: Session::kv_shortest
  std::vector<TensorDesc> tensors;

  std::vector<std::int64_t> numbers() const;
  static Result of(std::span<const std::byte> meta);
};

// Of `open`.
struct Opening {
  std::int64_t stage = 0, stages = 0;
  std::string model;
  KvOptions kv;

  std::vector<std::byte> bytes() const;
  static Opening of(std::span<const std::byte> meta);
};

// Of `failed`: an error as one of graft's types and its text.
std::vector<std::byte> failure_of(const std::exception& error);
// Throws it, with `where` before its text.
[[noreturn]] void throw_failure(std::span<const std::byte> meta, const std::string& where);

// Where the tensors of a payload lie: one after the other, each aligned to 64 bytes.
std::uint64_t payload_bytes(std::span<const TensorDesc> tensors);
// Throws Refused when the payload has another size.
std::vector<Value> in_payload(std::span<const TensorDesc> tensors, std::span<std::byte> payload);
// Sets the addresses of tensors to those of the channel's next message. Returns its size.
std::uint64_t place_outgoing(std::span<Value> tensors, Channel& channel);
std::vector<TensorDesc> descs_of(std::span<const Value> tensors);

// The inputs of a stage's method: those of `step`, and the tensors of the stage before. `kept` is memory for
// logits_to_keep.
std::vector<Value> inputs_of(const Step& step, std::vector<std::int64_t>& kept, std::span<const Value> carried);

}  // namespace graft::stage
