#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "graft/llm.h"
#include "image/prompt_images.h"

namespace graft::llm {

inline constexpr std::string_view kEncodeImage = "encode_image", kStepWithImages = "step_with_images",
                                  kStoreImage = "store_image";
inline constexpr std::string_view kEncodeAudio = "encode_audio", kStepWithAudio = "step_with_audio";
inline constexpr std::string_view kEmbedAudio = "embed_audio";

// The pictures or sounds of a prompt: as the tower takes them, and where their features stand.
struct PreparedImages {
  struct One {
    std::vector<float> pixels;  // [tiles, 3, height, width]; of patches and crops none
    std::int64_t height = 0, width = 0;
    image::Patches patches;
    image::Crops crops;
    image::Canvas canvas;
    std::vector<float> spectrograms;  // of a sound: [windows, mels, frames]; of a whole one [frames, mels]
    std::int64_t heard = 0;           // positions of its tower, where features end with it
    std::int64_t rows = 0;            // of features
  };
  std::vector<One> images;
  bool sounds = false;    // they are sounds
  std::int64_t rows = 0;  // of features, of all
  // By token of the prompt.
  std::vector<std::int64_t> feature_of;  // its row of the features; -1: it is text
  std::vector<std::int64_t> keys;        // tokens, and of pictures numbers that differ by what is seen
  std::vector<std::int64_t> positions;   // [3, tokens]: time, row and column; empty: a token's place is its position
  std::vector<std::int64_t> blocks;      // [tokens, 2]: the first and the last token that sees it and is seen; or empty
  std::int64_t begin = 0, end = 0;       // of the first placeholder, and behind the last
  std::int64_t shift = 0;                // added to the places of tokens behind: their positions
  // Of a model whose layers attend to pictures, by token of the prompt; those behind it see what its last one sees.
  std::vector<std::int64_t> ranges;          // [tokens, 2]: the first and the last row that a token sees
  std::vector<std::uint8_t> sees;            // [tokens]: 0 where no picture was named yet, and all rows are seen
  std::array<std::uint8_t, 32> digest = {};  // of all pictures
};

// Of a model that takes pictures or sound, or both, what a decoder does with their features.
struct FeaturesInfo {
  std::string_view step;                   // method
  std::vector<std::string_view> encoders;  // methods
  std::int64_t width = 0;                  // of a row
  bool on_grid = false;                    // tokens have three positions
  bool blocks = false;                     // the step is told which tokens see each other
  bool attended = false;  // features are stored beside the sequence, and the step is told which a token sees
};
// Whether tokens have the positions of a grid: time, row and column (Qwen-VL).
bool on_grid(const ImagesInfo& info);
std::optional<FeaturesInfo> features_of(const LanguageModelInfo& info);

// A prompt whose text has placeholders for pictures or sounds: what there is of them, and how it stands in the text.
struct Placeholders {
  std::string_view token;                                                       // in the text, the place of one
  std::int64_t token_id = 0;                                                    // of a placeholder
  std::string_view place;                                                       // where the text does not say
  std::string_view many;                                                        // "pictures", for messages
  std::function<std::string(std::size_t i, PreparedImages::One& one)> prepare;  // fills `one`; its text
  std::function<std::array<std::uint8_t, 32>(std::size_t i)> digest;            // SHA-256 of what is seen or heard
  std::string_view after_last = {}, end = {};  // text behind the last one, and behind all
  ImagesInfo::Blocks blocks = ImagesInfo::Blocks::none;
  std::string_view bos = {};  // begins a text that does not have it, behind the places that come first
};
// How many ids a prompt may have: a placeholder may be one that has no logit. At most kMostWithoutLogits have none.
std::int64_t input_ids(const LanguageModelInfo& info);
std::string repeated(std::string_view text, std::int64_t count);
struct Filled {
  std::vector<std::int64_t> tokens;
  std::shared_ptr<PreparedImages> prepared;  // null: the text is all
};
Filled with_placeholders(const LanguageModel& model, std::string_view prompt, std::size_t count,
                         const Placeholders& placeholders, bool add_special);

// Throws InvalidProgram, which names graft.llm.json, for a description that cannot be used.
ImagesInfo parse_images(const Json& json, std::int64_t vocabulary);
// What Decoder relies on: methods of such inputs. Throws InvalidArgument.
void check_image_methods(const Program& program, const ImagesInfo& info);
ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Image> images,
                    bool add_special);
AudioInfo parse_audio(const Json& json, std::int64_t vocabulary);
void check_audio_methods(const Program& program, const AudioInfo& info);
ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Audio> audio,
                    bool add_special);
// Throws InvalidArgument for placeholders without pictures, or for tokens that are not those of the pictures.
GRAFT_API void check_placeholders(const LanguageModelInfo& info, std::span<const std::int64_t> tokens,
                                  const PreparedImages* images);
// Run the tower: [rows, width].
std::vector<float> encode_images(Session& session, const ImagesInfo& info, const PreparedImages& images,
                                 const RunOptions& options);
// Of a model whose layers attend to pictures: which rows of the stored features each token of a prompt sees, whose
// `feature_of` says which picture a token is.
void see_sources(PreparedImages& prepared, std::int64_t tile_rows);
// Rows of features of so many pictures.
std::int64_t source_rows(const ImagesInfo& info, std::int64_t pictures);
// Run the tower, and make of the features what the layers of a row of the cache attend to.
void store_images(Session& session, const ImagesInfo& info, const PreparedImages& images, std::int64_t row,
                  const RunOptions& options);
std::vector<float> encode_audio(Session& session, const AudioInfo& info, const PreparedImages& sounds,
                                const RunOptions& options);
// The method that takes features [B, T, width], a mask [B, T] and maybe blocks [B, T, 2] besides what 'step' takes.
void check_step_with_features(const Program& program, const FeaturesInfo& info);

}  // namespace graft::llm
