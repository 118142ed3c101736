#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graft/audio.h"
#include "graft/image.h"
#include "graft/llm.h"
#include "serve/json_fields.h"

// Pictures and sound of requests.
namespace graft::serve {

// The most pixels of all pictures of a request.
inline constexpr std::int64_t kMaxRequestPixels = std::int64_t{1} << 25;

// The most samples of all sounds of a request: 35 minutes at 16 kHz.
inline constexpr std::int64_t kMaxRequestSamples = std::int64_t{1} << 25;

// What messages hold besides text.
struct Media {
  std::vector<Image> images;
  std::vector<Audio> audio;
  std::vector<Image> given = {};  // unless it is empty, parts of type image_url have indices of these
};

// The picture of a URL called `path`: "data:image/png;base64,...". `before`: others of the request. Throws ApiError
// (400).
Image image_of_url(const std::string& url, const std::string& path, const std::vector<Image>& before);
// The same of a file in base64.
Image image_of_base64(std::string_view data, const std::string& path, const std::vector<Image>& before);
// Whether it is one of those that are read.
bool is_image_type(std::string_view media_type);

// The sound of a part of type input_audio, {"data": "<base64>", "format": "wav"}, called `path`. The format is known by
// the content too. Throws ApiError (400).
Audio audio_of(const Json& given, const std::string& path, const std::vector<Audio>& before);

// Pictures of requests of other APIs that are served as chat completions. They are decoded where they are read, so that
// errors name what the request has; a chat's part of type image_url then has an index instead of an object.
class GivenPictures {
 public:
  explicit GivenPictures(const LanguageModelInfo& info) : taken_(info.images) {}

  bool taken() const { return taken_; }
  // Of the part called `path`. Throws ApiError (400) where the model takes no pictures.
  void check(const std::string& path, const std::string& type) const;
  const std::vector<Image>& images() const { return images_; }
  std::vector<Image> take() && { return std::move(images_); }
  // The part of a chat that stands for it.
  Json add(Image image);

 private:
  bool taken_;
  std::vector<Image> images_;
};

// A content of a chat's message, made of texts and of what GivenPictures::add() returned.
class ChatContent {
 public:
  void add_text(const std::string& text);
  void add_picture(Json part);
  // One string unless there are pictures.
  Json json() &&;

 private:
  Json parts_ = Json::array();
  bool pictures_ = false;
};

}  // namespace graft::serve
