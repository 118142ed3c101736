#define STBI_NO_STDIO
#include <stb_image.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <new>
#include <string_view>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/rethrow.h"
#include "graft/image.h"

namespace graft {
namespace {

struct Free {
  void operator()(stbi_uc* pixels) const { stbi_image_free(pixels); }
};

Image decoded(std::span<const std::byte> file, const std::string& label, std::int64_t max_pixels = kMaxImagePixels) {
  GRAFT_CHECK(InvalidArgument, file.size() <= INT_MAX, label, " has ", file.size(), " bytes, more than ", INT_MAX);
  const auto* const bytes = reinterpret_cast<const stbi_uc*>(file.data());
  const auto size = static_cast<int>(file.size());
  int width = 0, height = 0, channels = 0;
  GRAFT_CHECK(InvalidArgument, stbi_info_from_memory(bytes, size, &width, &height, &channels) != 0, label,
              " cannot be read: expected PNG, JPEG or BMP, found ", file.size(), " bytes of something else");
  GRAFT_CHECK(InvalidArgument, width >= 1 && height >= 1 && std::int64_t{width} * height <= max_pixels, label, " has ",
              width, " x ", height, " pixels: expected 1 to ", max_pixels);
  GRAFT_CHECK(InvalidArgument, stbi_is_16_bit_from_memory(bytes, size) == 0, label,
              " has 16 bits for each channel; 8 are supported");
  const std::unique_ptr<stbi_uc, Free> pixels(stbi_load_from_memory(bytes, size, &width, &height, &channels, 3));
  if (!pixels && std::string_view(stbi_failure_reason()) == "outofmem") throw std::bad_alloc();
  GRAFT_CHECK(InvalidArgument, pixels, label, " is damaged: ", stbi_failure_reason());
  return {height,
          width,
          {pixels.get(),
           pixels.get() + std::size_t{3} * static_cast<std::size_t>(width) * static_cast<std::size_t>(height)}};
}

}  // namespace

Image decode_image(std::span<const std::byte> file, const std::string& label, std::int64_t max_pixels) try {
  return decoded(file, label, std::min(max_pixels, kMaxImagePixels));
} catch (...) {
  rethrow_typed();
}

Image load_image(const std::string& path) try {
  return decoded(MappedFile::read_whole(path), "'" + path + "'");
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
