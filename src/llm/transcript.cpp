#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/rethrow.h"
#include "base/trim.h"
#include "graft/transcriber.h"

namespace graft {
namespace {

// "01:02:03" and three digits after `point`.
std::string clock_time(double seconds, char point) {
  const auto all = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.) * 1000));
  char text[64];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld%c%03lld", static_cast<long long>(all / 3'600'000),
                static_cast<long long>(all / 60'000 % 60), static_cast<long long>(all / 1000 % 60), point,
                static_cast<long long>(all % 1000));
  return text;
}

// An empty line ends a subtitle.
std::string one_paragraph(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return std::string(trimmed(text));
}

std::string json_of(const Transcription& transcription) {
  OrderedJson segments = OrderedJson::array();
  for (const TranscriptionSegment& segment : transcription.segments)
    segments.push_back({{"id", segments.size()},
                        {"seek", std::llround(segment.window * 100)},  // frames of 10 ms
                        {"start", segment.start},
                        {"end", segment.end},
                        {"text", segment.text},
                        {"tokens", segment.tokens},
                        {"temperature", segment.temperature},
                        {"avg_logprob", segment.avg_logprob},
                        {"compression_ratio", segment.compression_ratio},
                        {"no_speech_prob", segment.no_speech_prob}});
  const OrderedJson json = {{"task", transcription.task},
                            {"language", transcription.language},
                            {"duration", transcription.seconds},
                            {"text", trimmed(transcription.text)},
                            {"segments", std::move(segments)}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string write_transcript(const Transcription& transcription, TranscriptFormat format) try {
  if (format == TranscriptFormat::text) return std::string(trimmed(transcription.text)) + "\n";
  if (format == TranscriptFormat::json) return json_of(transcription);
  const bool vtt = format == TranscriptFormat::vtt;
  const char point = vtt ? '.' : ',';
  std::string out = vtt ? "WEBVTT\n\n" : "";
  std::size_t number = 0;
  for (const TranscriptionSegment& segment : transcription.segments) {
    ++number;
    if (!vtt) out += std::to_string(number) + "\n";
    out += clock_time(segment.start, point) + " --> " + clock_time(segment.end, point) + "\n" +
           one_paragraph(segment.text) + "\n\n";
  }
  return out;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
