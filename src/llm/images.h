#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/json_fwd.h"
#include "graft/llm.h"
#include "image/prompt_images.h"

namespace graft::llm {

inline constexpr std::string_view kEncodeImage = "encode_image", kStepWithImages = "step_with_images";

// The pictures of a prompt: as the tower takes them, and where their features stand.
struct PreparedImages {
  struct One {
    std::vector<float> pixels;  // [tiles, 3, height, width]; of patches none
    std::int64_t height = 0, width = 0;
    image::Patches patches;
    std::int64_t rows = 0;  // of features
  };
  std::vector<One> images;
  std::int64_t rows = 0;  // of features, of all
  // By token of the prompt.
  std::vector<std::int64_t> feature_of;  // its row of the features; -1: it is text
  std::vector<std::int64_t> keys;        // tokens, and of pictures numbers that differ by what is seen
  std::vector<std::int64_t> positions;   // [3, tokens]: time, row and column; empty: a token's place is its position
  std::int64_t begin = 0, end = 0;       // of the first placeholder, and behind the last
  std::int64_t shift = 0;                // added to the places of tokens behind: their positions
};

// Throws InvalidProgram, which names graft.llm.json, for a description that cannot be used.
ImagesInfo parse_images(const Json& json, std::int64_t vocabulary);
// What Decoder relies on: methods of such inputs. Throws InvalidArgument.
void check_image_methods(const Program& program, const ImagesInfo& info);
ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Image> images,
                    bool add_special);
// Throws InvalidArgument for placeholders without pictures, or for tokens that are not those of the pictures.
GRAFT_API void check_placeholders(const LanguageModelInfo& info, std::span<const std::int64_t> tokens,
                                  const PreparedImages* images);
// Runs the tower: [rows, width].
std::vector<float> encode_images(Session& session, const ImagesInfo& info, const PreparedImages& images,
                                 const RunOptions& options);

}  // namespace graft::llm
