#include "serve/openai/media.h"

#include <algorithm>

#include "base/base64.h"
#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr std::string_view kImageTypes[] = {"image/png", "image/jpeg", "image/jpg", "image/bmp"};

}  // namespace

bool is_image_type(std::string_view media_type) {
  return std::ranges::find(kImageTypes, media_type) != std::end(kImageTypes);
}

Image image_of_base64(std::string_view data, const std::string& path, const std::vector<Image>& before) {
  const auto bytes = from_base64(data);
  if (!bytes) bad_request(path, "'", path, "' is not base64");
  std::int64_t left = kMaxRequestPixels;
  for (const Image& image : before) left -= image.height * image.width;
  try {
    return decode_image(std::as_bytes(std::span(*bytes)), "'" + path + "'", left);
  } catch (const InvalidArgument& error) {
    bad_request(path, error.what());
  }
}

Image image_of_url(const std::string& url, const std::string& path, const std::vector<Image>& before) {
  constexpr std::string_view scheme = "data:", encoding = ";base64,";
  const std::string_view text = url;
  const auto end = text.find(encoding);
  const bool data = text.starts_with(scheme) && end != text.npos;
  if (!data || !is_image_type(text.substr(scheme.size(), end - scheme.size())))
    bad_request(path, "'", path, "' must be data:image/png;base64,... (or jpeg, bmp): nothing is fetched");
  return image_of_base64(text.substr(end + encoding.size()), path, before);
}

Audio audio_of(const Json& given, const std::string& path, const std::vector<Audio>& before) {
  Fields fields = Fields::of(given, path);
  const std::string data = fields.need_text("data"), format = fields.need_text("format");
  fields.end();
  if (format != "wav" && format != "mp3" && format != "flac")
    bad_request(path + ".format", "'", path, ".format' is '", format, "'; formats are wav, mp3 and flac");
  const auto bytes = from_base64(data);
  if (!bytes) bad_request(path + ".data", "'", path, ".data' is not base64");
  std::int64_t left = kMaxRequestSamples;
  for (const Audio& audio : before) left -= std::ssize(audio.samples);
  try {
    Audio audio = decode_audio(std::as_bytes(std::span(*bytes)), "'" + path + ".data'");
    if (std::ssize(audio.samples) > left)
      bad_request(path + ".data", "'", path, ".data' has ", audio.samples.size(), " samples, and a request may have ",
                  kMaxRequestSamples, " in all");
    return audio;
  } catch (const InvalidArgument& error) {
    bad_request(path + ".data", error.what());
  }
}

void GivenPictures::check(const std::string& path, const std::string& type) const {
  if (!taken_)
    throw ApiError(400, "'" + path + ".type' is '" + type + "': the model takes no pictures", path + ".type",
                   "unsupported_parameter");
}

Json GivenPictures::add(Image image) {
  images_.push_back(std::move(image));
  return {{"type", "image_url"}, {"image_url", images_.size() - 1}};
}

void ChatContent::add_text(const std::string& text) { parts_.push_back({{"type", "text"}, {"text", text}}); }

void ChatContent::add_picture(Json part) {
  parts_.push_back(std::move(part));
  pictures_ = true;
}

Json ChatContent::json() && {
  if (pictures_) return std::move(parts_);
  std::string text;
  for (const Json& part : parts_) text += part["text"].get_ref<const std::string&>();
  return text;
}

}  // namespace graft::serve
