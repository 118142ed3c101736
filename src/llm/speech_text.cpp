#include "llm/speech_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "base/json.h"

namespace graft::llm {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::string_view kSpaces = " \t\n\v\f\r";

std::string stripped(std::string_view text) {
  const auto first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpaces) - first + 1));
}

Ids ids_of(const Tokenizer& tokenizer, std::initializer_list<std::string_view> pieces) {
  Ids ids;
  for (const std::string_view piece : pieces)
    if (const auto id = tokenizer.find(piece); id && id != tokenizer.special_ids().unk) ids.push_back(*id);
  return ids;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Whether the boundary before token `at` is the point of a number.
bool is_decimal_point(const Tokenizer& tokenizer, std::span<const std::int64_t> tokens, std::size_t at) {
  const std::string before = tokenizer.decode(tokens.first(at)), after = tokenizer.decode(tokens.subspan(at));
  return before.size() >= 2 && before.back() == '.' && is_digit(before[before.size() - 2]) && !after.empty() &&
         is_digit(after[0]);
}

// `tokens` cut behind each run of these.
std::vector<std::span<const std::int64_t>> cut_behind(const Tokenizer& tokenizer, std::span<const std::int64_t> tokens,
                                                      const Ids& boundaries, bool but_in_numbers) {
  std::vector<std::span<const std::int64_t>> out;
  const auto ends = [&](std::int64_t id) { return std::ranges::find(boundaries, id) != boundaries.end(); };
  std::size_t begin = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i)
    if (ends(tokens[i - 1]) && !ends(tokens[i]) && !(but_in_numbers && is_decimal_point(tokenizer, tokens, i))) {
      out.push_back(tokens.subspan(begin, i - begin));
      begin = i;
    }
  out.push_back(tokens.subspan(begin));
  return out;
}

}  // namespace

std::string speech_prompt(const Tokenizer& tokenizer, std::string_view text, bool with_voice) {
  // Arrays are made before they are filled: nlohmann's null that becomes one is lost where memory fails meanwhile.
  Json variables = Json::object();
  Json& messages = variables["messages"] = Json::array();
  Json& message = messages.emplace_back(Json::object());
  message["role"] = "user";
  Json& content = message["content"] = Json::array();
  if (with_voice) content.emplace_back(Json::object())["type"] = "audio";
  Json& part = content.emplace_back(Json::object());
  part["type"] = "text";
  part["text"] = text;
  variables["add_generation_prompt"] = false;
  return tokenizer.apply_chat_template(variables.dump());
}

std::vector<std::string> speech_chunks(const Tokenizer& tokenizer, const SpeakerInfo& info, std::string_view text,
                                       std::int64_t max_tokens) {
  std::string prompt = speech_prompt(tokenizer, text, false);
  for (const std::int64_t id : info.placeholder_ids) {
    const std::string& piece = tokenizer.piece(id);
    for (std::size_t at = prompt.find(piece); at != prompt.npos; at = prompt.find(piece, at))
      prompt.erase(at, piece.size());
  }
  const Ids tokens = tokenizer.encode(prompt, {.add_special = false});
  const Ids sentences = ids_of(tokenizer, {".", "!", "...", "?"}), clauses = ids_of(tokenizer, {",", ";", ":"});
  std::vector<std::span<const std::int64_t>> parts;
  for (const auto sentence : cut_behind(tokenizer, tokens, sentences, true)) {
    if (std::ssize(sentence) <= max_tokens) {
      parts.push_back(sentence);
    } else {
      for (const auto clause : cut_behind(tokenizer, sentence, clauses, false)) parts.push_back(clause);
    }
  }
  std::vector<std::string> chunks;
  std::string chunk;
  std::int64_t count = 0;
  const auto end = [&] {
    if (!chunk.empty()) chunks.push_back(stripped(chunk));
    chunk.clear();
    count = 0;
  };
  for (const auto part : parts) {
    if (!chunk.empty() && count + std::ssize(part) > max_tokens) end();
    chunk += (chunk.empty() ? "" : " ") + tokenizer.decode(part);
    count += std::ssize(part);
  }
  end();
  return chunks;
}

std::int64_t word_count(std::string_view text) {
  std::int64_t words = 0;
  for (std::size_t at = text.find_first_not_of(kSpaces); at != text.npos; at = text.find_first_not_of(kSpaces, at)) {
    ++words;
    at = std::min(text.find_first_of(kSpaces, at), text.size());
  }
  return words;
}

std::vector<float> voice_samples(std::vector<float> samples, const SpeakerInfo& info) {
  const auto rate = static_cast<double>(info.sampling_rate);
  const auto frame = std::max<std::size_t>(1, static_cast<std::size_t>(info.analysis_seconds * rate));
  const std::size_t frames = samples.size() / frame;
  if (info.end_on_pause && frames > 0) {
    std::vector<double> levels;  // dB
    for (std::size_t f = 0; f < frames; ++f) {
      double sum = 0;
      for (std::size_t i = 0; i < frame; ++i)
        sum += static_cast<double>(samples[f * frame + i]) * samples[f * frame + i];
      levels.push_back(20 * std::log10(std::sqrt(sum / static_cast<double>(frame)) + 1e-12));
    }
    const double floor = std::ranges::max(levels) - info.silence_floor_db;
    std::size_t loud = frames;
    while (loud > 0 && levels[loud - 1] <= floor) --loud;
    samples.resize(loud * frame);
    const std::size_t fade = std::min(static_cast<std::size_t>(info.fade_out_seconds * rate), samples.size());
    for (std::size_t i = 0; i < fade; ++i)  // torch.linspace(1, 0, fade)
      samples[samples.size() - fade + i] *= fade > 1 ? 1 - static_cast<float>(i) / static_cast<float>(fade - 1) : 1;
    samples.resize(samples.size() + static_cast<std::size_t>(info.pause_seconds * rate), 0);
  }
  const auto whole = static_cast<std::size_t>(info.frame_size);
  samples.resize((samples.size() + whole - 1) / whole * whole, 0);
  return samples;
}

}  // namespace graft::llm
