#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graft/audio.h"
#include "graft/export.h"
#include "graft/graft.h"
#include "graft/tokenizer.h"

// Text to speech with models such as Pocket TTS.
//
//   graft::Speaker speaker("tts.pte");
//   const graft::Voice voice = speaker.voice(graft::load_audio("somebody.wav"));
//   graft::save_audio(speaker.speak("Hello, world!", &voice), "hello.wav");
namespace graft {

// Key of the package's named data that describes its model of speech: JSON, written by graft.export_speaker.
inline constexpr std::string_view kSpeakerKey = "graft.speaker.json";

// Who speaks: frames of the codec, of a sound that the model goes on from.
struct Voice {
  std::vector<float> latents;  // [frames, latent_size]
  std::int64_t frames = 0;
};

// Names and meaning as in generate() of transformers' PocketTTSForConditionalGeneration and its processor.
struct SpeakingOptions {
  double temperature = 0;    // variance of the noise that frames are drawn from; 0: none
  std::uint64_t seed = 0;    // of that noise
  double eos_threshold = 0;  // a frame whose logit is above ends the speech
  std::int64_t min_frames_before_eos = 0;
  std::int64_t max_frames = 0;   // of a chunk; 0: by the number of its tokens
  std::int64_t max_tokens = 50;  // of a chunk: longer texts are cut behind sentences, and long sentences behind clauses
};

// What a package says of its model.
struct SpeakerInfo {
  std::string architecture;
  std::int64_t sampling_rate = 0, frame_size = 0;          // samples per second, and per frame
  double frame_rate = 0;                                   // frames per second
  std::int64_t latent_size = 0;                            // elements of a frame
  std::int64_t context_length = 0;                         // the most tokens and frames of a chunk with its voice
  bool takes_voice = false;                                // the package has the codec's encoder
  std::int64_t voice_id = 0, latent_id = 0, begin_id = 0;  // placeholders: a frame of the voice, of speech, its begin
  std::vector<std::int64_t> placeholder_ids;               // all tokens that are no text
  std::int64_t short_text_words = 0, tail_frames_short = 0, tail_frames = 0;  // frames behind the end of the speech
  double fade_in_seconds = 0;
  // Of a voice: it ends on a pause, behind the last frame that is not this much quieter than the loudest.
  bool end_on_pause = false;
  double pause_seconds = 0, fade_out_seconds = 0, silence_floor_db = 0, analysis_seconds = 0;
};

// For one thread at a time: calls throw Busy while another thread is in one.
class GRAFT_API Speaker {
 public:
  // A package of graft.export_speaker. `threads`: as in SessionOptions. Throws InvalidArgument for another package.
  explicit Speaker(const std::string& path, const LoadOptions& options = {}, int threads = 0);
  Speaker(Speaker&&) noexcept;
  Speaker& operator=(Speaker&&) noexcept;
  ~Speaker();

  // Sound of another rate than the model's is resampled. Throws InvalidArgument for no samples, samples that are not
  // finite, and a package without the codec's encoder.
  Voice voice(const Audio& audio, const RunOptions& run_options = {});

  using OnAudio = std::function<void(const Audio& chunk)>;

  // `voice`: null: the model's own. `on_audio` is called with each chunk as soon as it is spoken. Throws
  // InvalidArgument for a text without words, one that is not UTF-8, a voice of another model, a chunk that does not
  // fit into the context with its voice, and options that make no sense; what RunOptions make runs throw.
  Audio speak(std::string_view text, const Voice* voice = nullptr, const std::optional<SpeakingOptions>& options = {},
              const OnAudio& on_audio = {}, const RunOptions& run_options = {});
  // The chunks that `text` is spoken in.
  std::vector<std::string> chunks(std::string_view text, std::int64_t max_tokens = 50) const;
  // Of the model: what speak takes where no options are given.
  const SpeakingOptions& defaults() const;
  const SpeakerInfo& info() const;
  Session& session();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
