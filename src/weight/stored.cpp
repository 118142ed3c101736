#include "weight/stored.h"

#include <ggml.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "weight/panels.h"

namespace graft {
namespace {

ggml_type type_of(BlockType type) { return static_cast<ggml_type>(type); }

bool same_letters(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace

std::optional<BlockType> find_block_type(std::string_view name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    // Formats of intermediate results (q8_1, q8_K) have no product of their own; removed ones have no size.
    if (!ggml_is_quantized(type) || ggml_type_size(type) == 0 || !ggml_get_type_traits(type)->to_float ||
        !ggml_cpu().type_traits(type)->vec_dot)
      continue;
    if (same_letters(name, ggml_type_name(type))) return static_cast<BlockType>(i);
  }
  return std::nullopt;
}

std::string_view block_type_name(BlockType type) { return ggml_type_name(type_of(type)); }

std::int64_t block_elements(BlockType type) { return ggml_blck_size(type_of(type)); }

std::int64_t block_row_bytes(BlockType type, std::int64_t elements) {
  GRAFT_ASSERT(elements % block_elements(type) == 0);
  return elements / block_elements(type) * static_cast<std::int64_t>(ggml_type_size(type_of(type)));
}

std::string Stored::str() const { return std::string(is_plain() ? name(dtype) : block_type_name(block)); }

MatrixSize matrix_size(const Shape& shape) {
  const std::int64_t depth = shape[shape.rank() - 1];
  return {shape.numel() / depth, depth};
}

std::string refuse_blocks(BlockType type, const Shape& shape) {
  if (shape.rank() == 0) return "a number has no rows of blocks";
  const std::int64_t row = shape[shape.rank() - 1];
  if (row % block_elements(type) == 0) return {};
  return graft::str("rows of ", row, " elements do not divide into blocks of ", block_elements(type));
}

std::string refuse_panels(BlockType type, const Shape& shape) {
  if (!panel_format_of(type)) return graft::str("there is no layout of panels for ", block_type_name(type));
  const bool stack = shape.rank() == 3 && shape[1] % kPanelColumns == 0;
  if (shape.rank() != 2 && !stack)
    return graft::str("only matrices, and stacks of those with whole panels, are packed in panels, found ",
                      shape.str());
  return refuse_blocks(type, shape);
}

std::uint64_t stored_bytes(const Stored& stored, const Shape& shape) {
  if (stored.is_plain()) return TensorDesc(stored.dtype, shape).byte_count();
  // Blocks take fewer bytes than f32, whose number is checked here.
  const TensorDesc values(DType::f32, shape);
  const std::int64_t row = shape[shape.rank() - 1];
  if (row == 0) return 0;
  const std::int64_t rows = values.numel() / row;
  return static_cast<std::uint64_t>(stored.kind == Stored::Kind::panels
                                        ? panels_bytes(*panel_format_of(stored.block), rows, row)
                                        : rows * block_row_bytes(stored.block, row));
}

}  // namespace graft
