#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "image/settings.h"
#include "llm/images.h"
#include "llm/sampler.h"

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

std::string numbered(std::string text, std::int64_t row, std::int64_t column) {
  for (const auto& [name, number] : {std::pair("{row}", row), std::pair("{column}", column)})
    if (const auto at = text.find(name); at != std::string::npos)
      text.replace(at, std::string_view(name).size(), std::to_string(number));
  return text;
}

Seen see(const ImagesInfo& info, const Image& image) {
  Seen out;
  const std::string& placeholder = info.placeholder.empty() ? info.token : info.placeholder;
  const auto one_piece = [&](std::int64_t rows) { return info.before + repeated(placeholder, rows) + info.after; };
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
                    const std::string placeholders = repeated(placeholder, info.rows);
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
                  },
                  [&](const CropProcessing& processing) {
                    out.one.crops = image::crops_of(processing, image);
                    out.one.rows = std::ssize(out.one.crops.order);
                    out.text = one_piece(out.one.rows);
                  },
                  [&](const CanvasProcessing& processing) {
                    out.one.canvas = image::canvas_of(processing, image);
                    out.one.height = out.one.width = processing.tile;
                    out.one.rows = 1;  // a token
                    out.text = placeholder;
                  }},
             info.processing);
  return out;
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
  // A token that is read alone has no logit: it is behind the vocabulary, where embeddings have room for a few.
  const bool attended = json.value("attended", false);
  info.token_id = size("token_id", 0, attended ? vocabulary + kMostWithoutLogits - 1 : vocabulary - 1);
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
  info.placeholder = text_in(text, "placeholder");
  info.after_last = text_in(text, "after_last");
  info.end = text_in(text, "end");
  info.add_special = text.value("add_special", true);
  info.bos = text_in(text, "bos");
  info.attended = attended;
  const auto blocks = json.value("blocks", std::string("none"));
  GRAFT_CHECK(InvalidProgram, blocks == "none" || blocks == "picture" || blocks == "prompt", "'", kLanguageModelKey,
              "': expected 'blocks' of 'images' to be none, picture or prompt, found '", blocks, "'");
  if (blocks != "none") info.blocks = blocks == "picture" ? ImagesInfo::Blocks::picture : ImagesInfo::Blocks::prompt;
  // So that those of two pictures are two.
  GRAFT_CHECK(InvalidProgram, blocks != "picture" || !(info.before + info.after).empty(), "'", kLanguageModelKey,
              "': pictures that are blocks need text around them");
  const Json& processing = json.at("processing");
  const auto kind = processing.at("kind").get<std::string>();
  try {
    if (kind == "fixed") {
      info.processing = image::processing_in(processing);
    } else if (kind == "tiles") {
      info.processing = image::tile_processing_in(processing);
    } else if (kind == "crops") {
      info.processing = image::crop_processing_in(processing);
    } else if (kind == "canvas") {
      info.processing = image::canvas_processing_in(processing);
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
  GRAFT_CHECK(InvalidProgram, attended == (kind == "canvas") && !(attended && info.blocks != ImagesInfo::Blocks::none),
              "'", kLanguageModelKey, "': 'attended' of 'images' is ", attended, " with pictures as ", kind,
              " and blocks of ", blocks);
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
  Placeholders placeholders{info->token, info->token_id, info->place, "pictures", {}, {}};
  placeholders.prepare = [&](std::size_t i, PreparedImages::One& one) {
    Seen seen = see(*info, images[i]);
    one = std::move(seen.one);
    return std::move(seen.text);
  };
  placeholders.digest = [&](std::size_t i) { return digest_of(images[i]); };
  placeholders.after_last = info->after_last;
  placeholders.end = info->end;
  placeholders.blocks = info->blocks;
  placeholders.bos = info->bos;
  Filled filled = with_placeholders(model, prompt, images.size(), placeholders, add_special && info->add_special);
  if (info->attended && filled.prepared) see_sources(*filled.prepared, info->rows);
  if (on_grid(*info) && filled.prepared) place(*filled.prepared, std::get<PatchProcessing>(info->processing));
  return {std::move(filled.tokens), std::move(filled.prepared)};
}

}  // namespace graft::llm
