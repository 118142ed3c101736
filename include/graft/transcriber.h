#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/audio.h"
#include "graft/llm.h"

// Speech to text with models such as Whisper, and those whose classification by connectionist temporal classification
// (CTC) makes text: Wav2Vec2, HuBERT, WavLM, Parakeet.
//
//   graft::Transcriber transcriber("whisper.pte");
//   std::cout << transcriber.transcribe(graft::load_audio("speech.mp3")).text;
namespace graft {

// Key of the package's named data that describes a model whose output is decoded by CTC: JSON, written by
// graft.export_llm.
inline constexpr std::string_view kCtcKey = "graft.ctc.json";

// What a model of speech takes and gives.
struct SpeechModelInfo {
  std::string architecture;  // the class of transformers
  std::int64_t sampling_rate = 16000;
  std::int64_t mels = 0;         // of the spectrograms that it takes; 0: it takes samples
  bool mels_first = false;       // [mels, frames]; otherwise [frames, mels]
  std::int64_t min_samples = 1;  // of a sound at its rate
  std::int64_t max_samples = 0;  // 0: any, window by window
  bool timestamps = false;       // segments are parts with times, and all of TranscriptionOptions is taken
};

// Names and meaning as in generate() of transformers' WhisperForConditionalGeneration. Models without time stamps take
// none of these: they throw InvalidArgument for one that is set, by its name.
struct TranscriptionOptions {
  std::string language = {};        // "en" or "<|en|>"; empty: the model says which it hears
  std::string task = "transcribe";  // or "translate", to English
  std::string prompt = {};          // text that comes before: names, spelling
  // Absent: where the model has them. Sound of more than a window of Whisper's always has them.
  std::optional<bool> return_timestamps = {};
  // The second and further ones are tried where a window fails a threshold; 0: the most likely token.
  std::vector<double> temperatures = {0};
  std::optional<double> compression_ratio_threshold = {};  // a window fails above: text that repeats itself
  std::optional<double> logprob_threshold = {};            // a window fails below, by the mean of its tokens
  // A window whose probability of no speech is above, and which fails logprob_threshold, has no text. Needs that.
  std::optional<double> no_speech_threshold = {};
  bool condition_on_prev_tokens = false;  // each window begins with the text of those before
  std::uint64_t seed = 0;                 // of temperatures above 0
};

// What OpenAI's whisper takes for its fallback, by default.
inline const std::vector<double> kWhisperTemperatures = {0, 0.2, 0.4, 0.6, 0.8, 1};
inline constexpr double kWhisperCompressionRatioThreshold = 2.4, kWhisperLogprobThreshold = -1,
                        kWhisperNoSpeechThreshold = 0.6;

// A part of the text with its time. Of a model without time stamps: the whole.
struct TranscriptionSegment {
  double start = 0, end = 0;         // seconds
  std::vector<std::int64_t> tokens;  // those of its time stamps included
  std::string text;
  // Of the window that it lies in:
  double window = 0;  // where that begins, in seconds
  double temperature = 0;
  double avg_logprob = 0;        // mean natural logarithm of its tokens' probabilities, as they were drawn from
  double compression_ratio = 0;  // bytes of its tokens by those that zlib makes of them
  double no_speech_prob = 0;     // 0 where the model does not say
};

struct Transcription {
  std::string task;      // "transcribe" or "translate"
  std::string language;  // "en"; empty where the model knows one language alone
  std::string text;
  std::vector<TranscriptionSegment> segments;
  double seconds = 0;  // of the sound
  std::int64_t prompt_tokens = 0, new_tokens = 0;
};

// text: what was said. json: OpenAI's verbose_json. srt, vtt: subtitles (SubRip, WebVTT).
enum class TranscriptFormat : std::uint8_t { text, json, srt, vtt };
GRAFT_API std::string write_transcript(const Transcription& transcription, TranscriptFormat format);

// Whisper: sound of any length, window by window (30 seconds), by the sequential algorithm of Radford et al., "Robust
// Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5, as transformers computes it: each window
// begins at the last time stamp of the one before, and tokens keep the rules of time stamps. Other models: the sound as
// one input. Of CTC the most likely token of each frame is taken; repeats are one, blanks none (Graves et al., 2006).
// For one thread at a time: calls throw Busy while another thread is in one.
class GRAFT_API Transcriber {
 public:
  // `threads`: as in SessionOptions. Throws InvalidArgument for a model that is not of speech.
  explicit Transcriber(std::shared_ptr<const LanguageModel> model, int threads = 0);
  // A package of graft.export_llm. `tokenizer`: as in LanguageModel::load. Throws what that throws.
  explicit Transcriber(const std::string& path, const LoadOptions& options = {}, const std::string& tokenizer = {},
                       int threads = 0);
  Transcriber(Transcriber&&) noexcept;
  Transcriber& operator=(Transcriber&&) noexcept;
  ~Transcriber();

  // Whether the package at `path` is that of a model of CTC, which is no language model. Throws NotFound, SystemError
  // or InvalidProgram.
  static bool is_ctc_package(const std::string& path);

  using OnSegment = std::function<void(const TranscriptionSegment&)>;

  // `on_segment` is called with each segment as soon as its window is done. Sound of another rate than the model's is
  // resampled. Throws InvalidArgument for a language or task that the model does not know, a prompt that does not fit,
  // options that make no sense, samples that are not finite, and sound that is shorter or longer than the model takes;
  // what RunOptions make runs throw, between runs too.
  Transcription transcribe(const Audio& audio, const TranscriptionOptions& options = {},
                           const OnSegment& on_segment = {}, const RunOptions& run_options = {});
  // The encoder's input for sound at the model's rate, f32: a spectrogram as info() says, of Whisper of at least a
  // window, or samples. Throws InvalidArgument for no samples, and for less or more than the model takes.
  std::vector<float> features(std::span<const float> samples);
  // "en", ...: the languages that the model tells apart, in the order of its tokens; none where it knows one alone.
  std::vector<std::string> languages() const;
  const SpeechModelInfo& info() const;
  Session& session();
  // Of a model of CTC, which has neither, these throw Unsupported.
  const LanguageModel& model() const;
  Decoder& decoder();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
