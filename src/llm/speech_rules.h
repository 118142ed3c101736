#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graft/llm.h"

// What a model of speech may say, and how its time stamps cut the text: as transformers' Whisper.
namespace graft::llm {

inline constexpr double kSecondsPerTimestamp = 0.02, kSecondsPerFrame = 0.01;
inline constexpr std::int64_t kFramesPerTimestamp = 2;

// The logits of tokens that may not come next become -infinity: suppressed ones, and those against the rules of time
// stamps (WhisperTimeStampLogitsProcessor): they come in pairs and do not decrease, the first token is one, and one
// comes where all of them together are more likely than any other token.
class SpeechRules {
 public:
  SpeechRules(const SpeechInfo& info, std::int64_t eos, bool timestamps)
      : info_(info), eos_(eos), timestamps_(timestamps) {}

  // `generated`: the tokens of the window so far, without its prompt.
  void apply(std::span<float> logits, std::span<const std::int64_t> generated) const;

 private:
  void apply_timestamps(std::span<float> logits, std::span<const std::int64_t> generated) const;

  const SpeechInfo& info_;
  std::int64_t eos_;
  bool timestamps_;
};

struct SpeechPart {
  double start = 0, end = 0;  // seconds
  std::span<const std::int64_t> tokens;
};

struct SpeechWindow {
  std::vector<SpeechPart> parts;
  std::int64_t frames = 0;  // after which the next window begins
};

// Cuts the tokens of a window, without the one that ends a text, at pairs of time stamps. What follows the last pair is
// dropped and heard again by the next window, unless the tokens end in a single time stamp: nothing is said after it.
// `seek`, `frames`: where the window begins, and how long it is.
SpeechWindow split_window(std::span<const std::int64_t> tokens, std::int64_t first_timestamp, std::int64_t seek,
                          std::int64_t frames);

// The bytes of the tokens, so many for each that the vocabulary needs, by those that zlib makes of them.
double compression_ratio(std::span<const std::int64_t> tokens, std::int64_t vocabulary);

}  // namespace graft::llm
