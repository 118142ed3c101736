#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graft/tensor.h"

// How the elements of a weight are stored, possibly in another type than their values: f16, bf16, or one of ggml's
// block formats ("q8_0", "q4_K"), where each row is cut into blocks that share scales.
namespace graft {

// Number of a block format in ggml (enum ggml_type).
using BlockType = std::int16_t;

// The block format with that name, in any case; nullopt if there is none with a product.
std::optional<BlockType> find_block_type(std::string_view name);
std::string_view block_type_name(BlockType type);  // ggml's spelling: "q8_0", "q4_K"
std::int64_t block_elements(BlockType type);       // of one block; rows must divide into blocks
std::int64_t block_row_bytes(BlockType type, std::int64_t elements);

struct Stored {
  enum class Kind : std::uint8_t {
    plain,   // elements of `dtype`
    blocks,  // rows of ggml's blocks, one after the other
    panels,  // the same values packed for graft's kernels: weight/panels.h
  };
  Kind kind = Kind::plain;
  DType dtype = DType::f32;  // plain
  BlockType block = -1;      // blocks, panels

  static Stored as(DType dtype) { return {Kind::plain, dtype, -1}; }
  static Stored as_blocks(BlockType type) { return {Kind::blocks, DType::f32, type}; }
  bool is_plain() const { return kind == Kind::plain; }
  bool operator==(const Stored&) const = default;
  std::string str() const;  // "bf16", "q8_0"
};

// A tensor as one matrix: those of a stack one below the other.
struct MatrixSize {
  std::int64_t rows = 0, depth = 0;
};
MatrixSize matrix_size(const Shape& shape);  // of at least rank 1, with no size 0

// Refusal of a tensor that cannot be stored in such blocks: "rows of 100 elements do not divide into blocks of 32";
// empty if it can.
std::string refuse_blocks(BlockType type, const Shape& shape);
// The same for panels, which support only matrices of some formats, and stacks of those with whole panels.
std::string refuse_panels(BlockType type, const Shape& shape);
// Bytes of a tensor stored like this. Throws InvalidArgument if they exceed 64 bits.
std::uint64_t stored_bytes(const Stored& stored, const Shape& shape);

}  // namespace graft
