#include "weight/stored_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graft/error.h"
#include "weight/panels.h"

namespace graft {
namespace {

ir::Program with_weight(ir::Storage storage, const std::string& block_type, const Shape& shape, std::uint64_t bytes) {
  ir::Program program;
  ir::Weight& weight = program.weights.emplace_back();
  weight.key = "w";
  weight.shape = shape;
  weight.storage = storage;
  weight.block_type = block_type;
  weight.byte_size = bytes;
  return program;
}

std::string error_of(const ir::Program& program) {
  try {
    verify_weights(program);
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "";
}

TEST(VerifyWeights, BlockTypesAreKnown) {
  EXPECT_EQ(error_of(with_weight(ir::Storage::ggml_block, "q9_0", Shape{4, 32}, 0)),
            "weight 'w': block type 'q9_0' is not known");
}

TEST(VerifyWeights, RowsDivideIntoBlocks) {
  EXPECT_EQ(error_of(with_weight(ir::Storage::ggml_block, "q4_K", Shape{4, 4}, 0)),
            "weight 'w' cannot be stored as q4_K: rows of 4 elements do not divide into blocks of 256");
}

TEST(VerifyWeights, OnlyMatricesOfSomeFormatsAreInPanels) {
  // A panel would hold columns of two matrices.
  EXPECT_EQ(error_of(with_weight(ir::Storage::panels, "q8_0", Shape{2, 24, 32}, 0)),
            "weight 'w' cannot be stored as q8_0: only matrices, and stacks of those with whole panels, are packed in "
            "panels, found [2, 24, 32]");
  EXPECT_EQ(error_of(with_weight(ir::Storage::panels, "q4_1", Shape{16, 256}, 0)),
            "weight 'w' cannot be stored as q4_1: there is no layout of panels for q4_1");
}

TEST(VerifyWeights, BytesAreThoseOfTheStorage) {
  for (const PanelLayout& layout : kPanelLayouts) {
    const auto type = static_cast<BlockType>(layout.type);
    for (const auto& [shape, panels] :
         {std::pair(Shape{17, 3 * layout.elements}, false), std::pair(Shape{17, 3 * layout.elements}, true),
          std::pair(Shape{3, 32, 2 * layout.elements}, true)}) {
      const ir::Storage storage = panels ? ir::Storage::panels : ir::Storage::ggml_block;
      const std::uint64_t bytes =
          stored_bytes({panels ? Stored::Kind::panels : Stored::Kind::blocks, DType::f32, type}, shape);
      const std::string name(block_type_name(type));
      EXPECT_EQ(error_of(with_weight(storage, name, shape, bytes)), "");
      EXPECT_THAT(error_of(with_weight(storage, name, shape, bytes - 1)),
                  ::testing::HasSubstr(" takes " + std::to_string(bytes) + " bytes, found "));
    }
  }
}

// The table repeats ggml's numbers, as compile-time constants.
TEST(PanelLayouts, AreOfGgmlsBlocks) {
  for (const PanelLayout& layout : kPanelLayouts) {
    EXPECT_EQ(layout.elements, ggml_blck_size(layout.type)) << ggml_type_name(layout.type);
    EXPECT_EQ(static_cast<std::size_t>(layout.bytes), ggml_type_size(layout.type)) << ggml_type_name(layout.type);
  }
}

}  // namespace
}  // namespace graft
