#include "llm/speech_rules.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "base/check.h"

namespace graft::llm {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> logits, std::int64_t begin, std::int64_t end) {
  end = std::min(end, std::ssize(logits));
  for (std::int64_t id = begin; id < end; ++id) logits[static_cast<std::size_t>(id)] = kNever;
}

}  // namespace

void SpeechRules::apply(std::span<float> logits, std::span<const std::int64_t> generated) const {
  if (generated.empty())
    for (const std::int64_t id : info_.suppressed_first_tokens) logits[static_cast<std::size_t>(id)] = kNever;
  for (const std::int64_t id : info_.suppressed_tokens) logits[static_cast<std::size_t>(id)] = kNever;
  if (timestamps_) apply_timestamps(logits, generated);
}

void SpeechRules::apply_timestamps(std::span<float> logits, std::span<const std::int64_t> generated) const {
  const std::int64_t first = info_.no_timestamps_id + 1, vocabulary = std::ssize(logits);
  const auto is_timestamp = [&](std::int64_t id) { return id >= first; };
  const std::size_t count = generated.size();
  logits[static_cast<std::size_t>(info_.no_timestamps_id)] = kNever;
  const bool last = count >= 1 && is_timestamp(generated[count - 1]);
  const bool before = count < 2 || is_timestamp(generated[count - 2]);
  if (last && before) forbid(logits, first, vocabulary);
  if (last && !before) forbid(logits, 0, eos_);
  const auto reversed = std::find_if(generated.rbegin(), generated.rend(), is_timestamp);
  if (reversed != generated.rend()) forbid(logits, first, *reversed + (last && !before ? 0 : 1));
  if (count == 0) {
    forbid(logits, 0, first);
    if (info_.max_initial_timestamp_index) forbid(logits, first + *info_.max_initial_timestamp_index + 1, vocabulary);
  }
  // The logarithm of the sum of all probabilities is the same on both sides and not needed.
  const auto text = logits.first(static_cast<std::size_t>(first)),
             times = logits.subspan(static_cast<std::size_t>(first));
  const float most_text = std::ranges::max(text), most_time = times.empty() ? kNever : std::ranges::max(times);
  if (most_time == kNever) return;
  double sum = 0;
  for (const float logit : times) sum += std::exp(static_cast<double>(logit - most_time));
  if (static_cast<double>(most_time) + std::log(sum) > static_cast<double>(most_text)) forbid(logits, 0, first);
}

SpeechWindow split_window(std::span<const std::int64_t> tokens, std::int64_t first_timestamp, std::int64_t seek,
                          std::int64_t frames) {
  const auto is_timestamp = [&](std::size_t i) { return tokens[i] >= first_timestamp; };
  const auto seconds = [&](std::int64_t token) {
    return static_cast<double>(token - first_timestamp) * kSecondsPerTimestamp;
  };
  const double offset = static_cast<double>(seek) * kSecondsPerTimestamp / static_cast<double>(kFramesPerTimestamp);
  const std::size_t count = tokens.size();
  std::vector<std::size_t> ends;  // of parts: between two time stamps
  for (std::size_t i = 1; i < count; ++i)
    if (is_timestamp(i - 1) && is_timestamp(i)) ends.push_back(i);
  SpeechWindow window;
  window.frames = frames;
  if (ends.empty()) {
    double end = static_cast<double>(
                     static_cast<std::int64_t>(static_cast<double>(frames) * kSecondsPerFrame / kSecondsPerTimestamp)) *
                 kSecondsPerTimestamp;
    for (std::size_t i = count; i-- > 0;)
      if (is_timestamp(i)) {
        if (tokens[i] != first_timestamp) end = seconds(tokens[i]);
        break;
      }
    window.parts.push_back({offset, offset + end, tokens});
    return window;
  }
  const bool single_ending = count >= 2 && !is_timestamp(count - 2) && is_timestamp(count - 1);
  if (single_ending)
    ends.push_back(count);
  else
    ++ends.back();  // both time stamps of the last pair: so it is seen that it was no single one
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto part = tokens.subspan(begin, ends[i] - begin);
    const bool both = i + 1 == ends.size() && !single_ending;
    window.parts.push_back(
        {offset + seconds(part.front()), offset + seconds(part[part.size() - (both ? 2 : 1)]), part});
    begin = ends[i];
  }
  if (!single_ending) window.frames = (tokens[begin - 2] - first_timestamp) * kFramesPerTimestamp;
  return window;
}

double compression_ratio(std::span<const std::int64_t> tokens, std::int64_t vocabulary) {
  const auto width = static_cast<std::size_t>(std::log2(static_cast<double>(vocabulary)) / 8) + 1;
  std::vector<unsigned char> bytes;
  for (const std::int64_t token : tokens)
    for (std::size_t b = 0; b < width; ++b) bytes.push_back(static_cast<unsigned char>(token >> (8 * b) & 255));
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<unsigned char> compressed(size);
  const int result = compress(compressed.data(), &size, bytes.data(), static_cast<uLong>(bytes.size()));
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  GRAFT_ASSERT(result == Z_OK);
  return static_cast<double>(bytes.size()) / static_cast<double>(size);
}

}  // namespace graft::llm
