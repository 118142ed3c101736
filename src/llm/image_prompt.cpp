#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "image/settings.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

template <typename... Kinds>
struct Each : Kinds... {
  using Kinds::operator()...;
};
template <typename... Kinds>
Each(Kinds...) -> Each<Kinds...>;

// A picture as the model takes it, and the text that stands for it.
struct Seen {
  PreparedImages::One one;
  std::string text;
};

std::string repeated(std::string_view text, std::int64_t count) {
  std::string out;
  out.reserve(text.size() * static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string numbered(std::string text, std::int64_t row, std::int64_t column) {
  for (const auto& [name, number] : {std::pair("{row}", row), std::pair("{column}", column)})
    if (const auto at = text.find(name); at != std::string::npos)
      text.replace(at, std::string_view(name).size(), std::to_string(number));
  return text;
}

Seen see(const ImagesInfo& info, const Image& image) {
  Seen out;
  const auto one_piece = [&](std::int64_t rows) { return info.before + repeated(info.token, rows) + info.after; };
  std::visit(Each{[&](const ImageProcessing& processing) {
                    const ImageProcessor processor(processing);
                    std::tie(out.one.height, out.one.width) = processor.size_of(image);
                    out.one.pixels = processor.pixels(image);
                    out.one.rows = info.rows;
                    out.text = one_piece(info.rows);
                  },
                  [&](const TileProcessing& processing) {
                    image::Tiles tiles = image::tiles_of(processing, image);
                    out.one.height = out.one.width = processing.tile;
                    out.one.pixels = std::move(tiles.pixels);
                    out.one.rows = (tiles.rows * tiles.columns + 1) * info.rows;
                    const std::string placeholders = repeated(info.token, info.rows);
                    if (tiles.rows > 0) out.text += info.before_tiles;
                    for (std::int64_t r = 0; r < tiles.rows; ++r) {
                      for (std::int64_t c = 0; c < tiles.columns; ++c)
                        out.text += numbered(info.before_tile, r + 1, c + 1) + placeholders;
                      out.text += info.after_row;
                    }
                    out.text += tiles.rows == 0 ? one_piece(info.rows) : info.before_whole + placeholders + info.after;
                  },
                  [&](const PatchProcessing& processing) {
                    out.one.patches = image::patches_of(processing, image);
                    out.one.rows = std::ssize(out.one.patches.order);
                    out.text = one_piece(out.one.rows);
                  }},
             info.processing);
  return out;
}

// Number i of a picture's tokens in the place of their common id: negative, and also where 32 bits of it are kept.
std::int64_t key_of(const std::array<std::uint8_t, 32>& digest, std::int64_t i) {
  std::uint64_t mixed = 0;
  for (std::size_t b = 0; b < 8; ++b) mixed = mixed << 8 | digest[static_cast<std::size_t>(i % 4) * 8 + b];
  mixed += 0x9e3779b97f4a7c15 * static_cast<std::uint64_t>(i + 1);  // SplitMix64, as in sequence.cpp
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::int64_t>((mixed ^ (mixed >> 31)) | 0x8000000080000000);
}

std::array<std::uint8_t, 32> digest_of(const Image& image) {
  Sha256 hash;
  const std::int64_t sizes[] = {image.height, image.width};
  hash.add(std::as_bytes(std::span(sizes)));
  hash.add(std::as_bytes(std::span(image.pixels)));
  return hash.digest();
}

// Time, row and column of each token, as get_rope_index of transformers' Qwen-VL counts them.
void place(PreparedImages& out, const PatchProcessing& processing) {
  const std::size_t count = out.feature_of.size();
  out.positions.resize(3 * count);
  std::int64_t next = 0;
  std::size_t image = 0;
  for (std::size_t i = 0; i < count;) {
    if (out.feature_of[i] < 0) {
      for (std::size_t axis = 0; axis < 3; ++axis) out.positions[axis * count + i] = next;
      ++next;
      ++i;
      continue;
    }
    const image::Patches& patches = out.images[image++].patches;
    const std::int64_t rows = patches.rows / processing.merge_size, columns = patches.columns / processing.merge_size;
    for (std::int64_t j = 0; j < rows * columns; ++j, ++i) {
      out.positions[i] = next;
      out.positions[count + i] = next + j / columns;
      out.positions[2 * count + i] = next + j % columns;
    }
    next += std::max(rows, columns);
  }
  out.shift = next - static_cast<std::int64_t>(count);
}

std::string text_in(const Json& json, const char* name) { return json.value(name, std::string()); }

}  // namespace

ImagesInfo parse_images(const Json& json, std::int64_t vocabulary) {
  ImagesInfo info;
  const auto size = [&](const char* name, std::int64_t least, std::int64_t most) {
    const auto value = json.at(name).get<std::int64_t>();
    GRAFT_CHECK(InvalidProgram, value >= least && value <= most, "'", kLanguageModelKey, "': '", name,
                "' of 'images' must be from ", least, " to ", most, ", found ", value);
    return value;
  };
  info.token_id = size("token_id", 0, vocabulary - 1);
  info.rows = size("rows", 0, std::int64_t{1} << 20);
  info.width = size("width", 1, std::int64_t{1} << 24);
  info.token = json.at("token").get<std::string>();
  const Json& text = json.at("text");
  info.place = text_in(text, "place");
  info.before = text_in(text, "before");
  info.after = text_in(text, "after");
  info.before_tiles = text_in(text, "before_tiles");
  info.before_tile = text_in(text, "before_tile");
  info.after_row = text_in(text, "after_row");
  info.before_whole = text_in(text, "before_whole");
  const Json& processing = json.at("processing");
  const auto kind = processing.at("kind").get<std::string>();
  try {
    if (kind == "fixed") {
      info.processing = image::processing_in(processing);
    } else if (kind == "tiles") {
      info.processing = image::tile_processing_in(processing);
    } else {
      GRAFT_CHECK(InvalidProgram, kind == "patches", "'", kLanguageModelKey, "': there is no processing of pictures '",
                  kind, "'");
      info.processing = image::patch_processing_in(processing);
    }
  } catch (const InvalidArgument& error) {
    throw InvalidProgram(str("'", kLanguageModelKey, "': ", error.what()));
  }
  GRAFT_CHECK(InvalidProgram, (info.rows == 0) == (kind == "patches"), "'", kLanguageModelKey,
              "': 'rows' of 'images' is ", info.rows, " with pictures as ", kind);
  return info;
}

ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Image> images,
                    bool add_special) {
  const auto& info = model.info().images;
  if (!info) {
    GRAFT_CHECK(InvalidArgument, images.empty(), model.info().architecture,
                " takes no pictures: the package is of text alone");
    return {model.encode(prompt, add_special), {}};
  }
  GRAFT_CHECK(InvalidArgument, is_utf8(prompt), "the prompt is not UTF-8");
  GRAFT_CHECK(NotFound, !info->token.empty(),
              "the package does not say what stands for pictures in a text: it was "
              "exported without a tokenizer");
  std::vector<std::string_view> between;  // of the places of pictures
  const auto split = [&](std::string_view text) {
    between.clear();
    for (std::size_t at = 0, next = 0; next != std::string_view::npos; at = next + info->token.size()) {
      next = text.find(info->token, at);
      between.push_back(text.substr(at, next == std::string_view::npos ? next : next - at));
    }
  };
  split(prompt);
  std::string with_places;
  if (between.size() == 1 && !images.empty()) {
    with_places = repeated(info->place, std::ssize(images)) + std::string(prompt);
    split(with_places);
  }
  GRAFT_CHECK(InvalidArgument, between.size() == images.size() + 1, "the prompt has ", between.size() - 1,
              " places of pictures ('", info->token, "'), and there are ", images.size(), " pictures");
  if (images.empty()) return {model.encode(prompt, add_special), {}};

  auto prepared = std::make_shared<PreparedImages>();
  std::string text(between[0]);
  for (std::size_t i = 0; i < images.size(); ++i) {
    Seen seen = see(*info, images[i]);
    text += seen.text;
    text += between[i + 1];
    prepared->rows += seen.one.rows;
    prepared->images.push_back(std::move(seen.one));
  }
  ImagePrompt out{model.tokenizer()->encode(text, {.add_special = add_special}), {}};
  const std::int64_t found = std::ranges::count(out.tokens, info->token_id);
  GRAFT_CHECK(InvalidArgument, found == prepared->rows, "the prompt has ", found,
              " tokens of pictures, and these have ", prepared->rows, " rows of features");
  prepared->keys = out.tokens;
  prepared->feature_of.assign(out.tokens.size(), -1);
  std::size_t image = 0;
  std::int64_t row = 0, first = 0;  // of all features; of this picture's
  std::array<std::uint8_t, 32> digest = digest_of(images[0]);
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    if (out.tokens[i] != info->token_id) continue;
    if (row - first == prepared->images[image].rows) {
      first = row;
      digest = digest_of(images[++image]);
    }
    if (row == 0) prepared->begin = static_cast<std::int64_t>(i);
    prepared->end = static_cast<std::int64_t>(i) + 1;
    prepared->keys[i] = key_of(digest, row - first);
    prepared->feature_of[i] = row++;
  }
  if (const auto* patches = std::get_if<PatchProcessing>(&info->processing)) place(*prepared, *patches);
  out.images = std::move(prepared);
  return out;
}

void check_placeholders(const LanguageModelInfo& info, std::span<const std::int64_t> tokens,
                        const PreparedImages* images) {
  if (!info.images) {
    GRAFT_CHECK(InvalidArgument, images == nullptr, info.architecture,
                " takes no pictures: the package is of text alone");
    return;
  }
  const std::int64_t id = info.images->token_id;
  if (images == nullptr) {
    const auto found = std::ranges::count(tokens, id);
    GRAFT_CHECK(InvalidArgument, found == 0, "the prompt has ", found, " tokens of pictures (", id,
                "), and there are no pictures");
    return;
  }
  bool same = tokens.size() == images->feature_of.size();
  for (std::size_t i = 0; same && i < tokens.size(); ++i) same = (tokens[i] == id) == (images->feature_of[i] >= 0);
  GRAFT_CHECK(InvalidArgument, same, "the tokens of the prompt are not those that its pictures were prepared for");
}

}  // namespace graft::llm
