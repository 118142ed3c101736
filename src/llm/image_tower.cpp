#include <algorithm>

#include "base/check.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

bool is_tensor(const ValueInfo& value, DType dtype, std::initializer_list<std::int64_t> sizes) {
  if (value.kind != Value::Kind::tensor || value.dtype != dtype || value.dims.size() != sizes.size()) return false;
  return std::ranges::equal(value.dims, sizes, [](const DimInfo& dim, std::int64_t size) {
    return size < 0 || (dim.min <= size && size <= dim.max);  // -1: any
  });
}

// A size that the program fixes.
bool fixes(const DimInfo& dim, std::int64_t size) { return dim.min == size && dim.max == size; }

TensorView view(const std::vector<float>& data, Shape shape) {
  return {const_cast<float*>(data.data()), DType::f32, shape};
}
TensorView view(const std::vector<std::int64_t>& data, Shape shape) {
  return {const_cast<std::int64_t*>(data.data()), DType::i64, shape};
}

std::vector<Value> inputs_of(const image::Patches& patches) {
  const auto per_patch = [&](std::int64_t size) { return Shape{patches.groups, patches.group, size}; };
  const std::int64_t patch = std::ssize(patches.pixels) / (patches.groups * patches.group);
  std::vector<Value> out = {Value::of(view(patches.pixels, per_patch(patch))),
                            Value::of(view(patches.positions, per_patch(2)))};
  if (!patches.valid.empty())
    out.push_back(Value::of(
        TensorView{const_cast<std::uint8_t*>(patches.valid.data()), DType::b8, Shape{patches.groups, patches.group}}));
  if (!patches.table_rows.empty()) {
    out.push_back(Value::of(view(patches.table_rows, per_patch(4))));
    out.push_back(Value::of(view(patches.table_weights, per_patch(4))));
  }
  return out;
}

}  // namespace

void check_image_methods(const Program& program, const ImagesInfo& info) {
  const MethodInfo& encode = program.method(kEncodeImage);
  const auto& in = encode.inputs;
  bool good = encode.outputs.size() == 1 && is_tensor(encode.outputs[0], DType::f32, {-1, info.width}) &&
              fixes(encode.outputs[0].dims[1], info.width);
  if (const auto* patches = std::get_if<PatchProcessing>(&info.processing)) {
    const std::int64_t side = std::max<std::int64_t>(patches->window, 1) * patches->merge_size, group = side * side;
    const std::int64_t size = 3 * patches->temporal_patch_size * patches->patch_size * patches->patch_size;
    std::size_t next = 2;
    good = good && in.size() == 2u + (patches->window > 0) + (patches->table > 0 ? 2 : 0) &&
           is_tensor(in[0], DType::f32, {-1, group, size}) && is_tensor(in[1], DType::i64, {-1, group, 2});
    if (good && patches->window > 0) good = is_tensor(in[next++], DType::b8, {-1, group});
    if (good && patches->table > 0)
      good = is_tensor(in[next], DType::i64, {-1, group, 4}) && is_tensor(in[next + 1], DType::f32, {-1, group, 4});
  } else if (const auto* crops = std::get_if<CropProcessing>(&info.processing)) {
    const std::int64_t side = crops->crop / crops->patch_size;
    good = good && in.size() == 2 && is_tensor(in[0], DType::f32, {1, 3, crops->crop, crops->crop}) &&
           is_tensor(in[1], DType::b8, {1, side, side}) && info.rows == side / 2 * (side / 2) + 2;
  } else if (const auto* canvas = std::get_if<CanvasProcessing>(&info.processing)) {
    good = good && in.size() == 3 &&
           is_tensor(in[0], DType::f32, {1, canvas->max_tiles, 3, canvas->tile, canvas->tile}) &&
           is_tensor(in[1], DType::i64, {1, 1}) && is_tensor(in[2], DType::i64, {1, canvas->max_tiles});
    const auto& store = program.method(kStoreImage).inputs;
    GRAFT_CHECK(InvalidArgument,
                store.size() == 2 && is_tensor(store[0], DType::f32, {1, info.rows, info.width}) &&
                    is_tensor(store[1], DType::i64, {1, info.rows}),
                "method '", kStoreImage, "' is not what '", kLanguageModelKey,
                "' says of pictures: expected features [1, ", info.rows, ", ", info.width, "] and positions [1, ",
                info.rows, "]");
  } else {
    good = good && in.size() == 1 && is_tensor(in[0], DType::f32, {1, 3, -1, -1});
  }
  GRAFT_CHECK(InvalidArgument, good, "method '", kEncodeImage, "' is not what '", kLanguageModelKey,
              "' says of pictures: expected its pixels as inputs, and features [rows, ", info.width, "] as output");
}

std::vector<float> encode_images(Session& session, const ImagesInfo& info, const PreparedImages& images,
                                 const RunOptions& options) {
  std::vector<float> out(static_cast<std::size_t>(images.rows * info.width));
  float* to = out.data();
  std::vector<Value> found;  // has the memory of the features
  const auto run = [&](std::span<const Value> inputs, std::int64_t rows) {
    found = session.run(kEncodeImage, inputs, options);
    const TensorView& features = found[0].tensor;
    GRAFT_CHECK(InvalidProgram, features.shape == Shape({rows, info.width}), "method '", kEncodeImage,
                "' gave features ", features.shape.str(), ", [", rows, ", ", info.width, "] were expected");
    return std::span(static_cast<const float*>(features.data), static_cast<std::size_t>(rows * info.width));
  };
  const auto add_rows = [&](std::span<const float> features, std::span<const std::int64_t> order) {
    const auto width = static_cast<std::size_t>(info.width);
    for (const std::int64_t row : order)
      to = std::ranges::copy(features.subspan(static_cast<std::size_t>(row) * width, width), to).out;
  };
  for (const PreparedImages::One& one : images.images) {
    if (const auto* patches = std::get_if<PatchProcessing>(&info.processing)) {
      const image::Patches& prepared = one.patches;
      const std::int64_t merged = patches->merge_size * patches->merge_size;
      add_rows(run(inputs_of(prepared), prepared.groups * prepared.group / merged), prepared.order);
      continue;
    }
    if (std::holds_alternative<CropProcessing>(info.processing)) {
      const std::int64_t crop = one.crops.crop, side = one.crops.side, size = 3 * crop * crop;
      std::vector<float> features;
      for (std::int64_t at = 0; at < std::ssize(one.crops.pixels) / size; ++at) {
        const Value inputs[] = {
            Value::of(TensorView{const_cast<float*>(one.crops.pixels.data() + at * size), DType::f32,
                                 Shape{1, 3, crop, crop}}),
            Value::of(TensorView{const_cast<std::uint8_t*>(one.crops.valid.data() + at * side * side), DType::b8,
                                 Shape{1, side, side}})};
        const std::span<const float> of_crop = run(inputs, info.rows);
        features.insert(features.end(), of_crop.begin(), of_crop.end());
      }
      add_rows(features, one.crops.order);
      continue;
    }
    if (!one.canvas.pixels.empty()) {
      const std::int64_t tiles = std::ssize(one.canvas.valid);
      const std::vector<std::int64_t> shape{one.canvas.shape};
      const Value inputs[] = {Value::of(view(one.canvas.pixels, Shape{1, tiles, 3, one.height, one.width})),
                              Value::of(view(shape, Shape{1, 1})), Value::of(view(one.canvas.valid, Shape{1, tiles}))};
      to = std::ranges::copy(run(inputs, tiles * info.rows), to).out;
      continue;
    }
    // Tile by tile: all have one plan, and memory for one is enough.
    const std::int64_t size = 3 * one.height * one.width;
    for (std::int64_t at = 0; at < std::ssize(one.pixels); at += size) {
      const Value pixels = Value::of(
          TensorView{const_cast<float*>(one.pixels.data() + at), DType::f32, Shape{1, 3, one.height, one.width}});
      to = std::ranges::copy(run({&pixels, 1}, info.rows), to).out;
    }
  }
  return out;
}

}  // namespace graft::llm
