#include "graft/image.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bytes.h"

// The binding of pictures: pixels as bytes. python/graft/vision.py makes arrays.
namespace nb = nanobind;

namespace graft {
namespace {

Image image_of(const nb::bytes& pixels, std::int64_t height, std::int64_t width) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(pixels.c_str());
  return {height, width, {from, from + pixels.size()}};
}

nb::tuple tuple_of(const Image& image) {
  return nb::make_tuple(nb::bytes(image.pixels.data(), image.pixels.size()), image.height, image.width);
}

}  // namespace

void bind_image(nb::module_& m) {
  m.def("load_image", [](const std::string& path) { return tuple_of(load_image(path)); });
  m.def("resize_image", [](const nb::bytes& pixels, std::int64_t height, std::int64_t width, std::int64_t to_height,
                           std::int64_t to_width, int resample) {
    return tuple_of(resize(image_of(pixels, height, width), to_height, to_width, static_cast<Resample>(resample)));
  });
  nb::class_<ImageProcessor>(m, "ImageProcessor")
      .def_static("load", &ImageProcessor::load)
      .def("pixels",
           [](const ImageProcessor& processor, const nb::bytes& pixels, std::int64_t height, std::int64_t width) {
             const Image image = image_of(pixels, height, width);
             const std::vector<float> found = processor.pixels(image);
             const auto [rows, columns] = processor.size_of(image);
             return nb::make_tuple(bytes_of(std::span<const float>(found)), rows, columns);
           })
      .def_prop_ro("labels", &ImageProcessor::labels);
}

}  // namespace graft
