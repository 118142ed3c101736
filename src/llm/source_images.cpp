// Pictures that layers of a decoder attend to (MLlama). Their features lie beside a sequence, in tiles: first those of
// all pictures that are parts of them, picture by picture, then those behind a picture's last tile.
#include <algorithm>

#include "base/check.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

std::int64_t tiles_of(const PreparedImages::One& one) { return one.canvas.rows * one.canvas.columns; }

}  // namespace

std::int64_t source_rows(const ImagesInfo& info, std::int64_t pictures) {
  return pictures * std::get<CanvasProcessing>(info.processing).max_tiles * info.rows;
}

void see_sources(PreparedImages& prepared, std::int64_t tile_rows) {
  std::vector<std::int64_t> first;  // row of each picture, and behind the last one
  first.push_back(0);
  prepared.rows = 0;
  for (const PreparedImages::One& one : prepared.images) {
    first.push_back(first.back() + tiles_of(one) * tile_rows);
    prepared.rows += std::ssize(one.canvas.valid) * tile_rows;
  }
  const std::size_t count = prepared.feature_of.size();
  prepared.ranges.resize(2 * count);
  prepared.sees.resize(count);
  // Tokens before the first picture see every row, also those of no tile: so does the model in transformers, which
  // leaves out their feed-forward part alone.
  std::int64_t begin = 0, end = prepared.rows;
  for (std::size_t i = 0; i < count; ++i) {
    if (const std::int64_t image = prepared.feature_of[i]; image >= 0) {
      const bool beside = i > 0 && prepared.feature_of[i - 1] >= 0;
      if (!beside) begin = first[static_cast<std::size_t>(image)];
      end = first[static_cast<std::size_t>(image) + 1];
    }
    prepared.ranges[2 * i] = begin;
    prepared.ranges[2 * i + 1] = end - 1;
    prepared.sees[i] = i > 0 && prepared.sees[i - 1] != 0 ? 1 : prepared.feature_of[i] >= 0;
  }
  // What the first tokens see is of all pictures, and so is what follows them.
  prepared.begin = 0;
}

void store_images(Session& session, const ImagesInfo& info, const PreparedImages& images, std::int64_t row,
                  const RunOptions& options) {
  const std::vector<float> features = encode_images(session, info, images, options);
  RunOptions of_row = options;
  of_row.kv_rows = {&row, 1};
  std::vector<std::int64_t> positions(static_cast<std::size_t>(info.rows));
  std::int64_t next = 0;
  for (const bool valid : {true, false}) {
    std::int64_t tile = 0;  // of all
    for (const PreparedImages::One& one : images.images)
      for (const std::int64_t there : one.canvas.valid) {
        const std::int64_t at = tile++ * info.rows * info.width;
        if ((there != 0) != valid) continue;
        for (std::int64_t& position : positions) position = next++;
        const Value inputs[] = {Value::of(TensorView{const_cast<float*>(features.data() + at), DType::f32,
                                                     Shape{1, info.rows, info.width}}),
                                Value::of(TensorView{positions.data(), DType::i64, Shape{1, info.rows}})};
        session.run(kStoreImage, inputs, of_row);
      }
  }
}

}  // namespace graft::llm
