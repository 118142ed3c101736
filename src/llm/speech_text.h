#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/speaker.h"

namespace graft::llm {

// The prompt of a text by the tokenizer's chat template: a message of a voice, where there is one, and the text.
std::string speech_prompt(const Tokenizer& tokenizer, std::string_view text, bool with_voice);
// `text` in chunks of at most `max_tokens` tokens that end with sentences, or where these are longer with clauses, as
// PocketTTSProcessor.split_text of transformers cuts it. A clause that is longer is a chunk.
std::vector<std::string> speech_chunks(const Tokenizer& tokenizer, const SpeakerInfo& info, std::string_view text,
                                       std::int64_t max_tokens);
// Words between spaces.
std::int64_t word_count(std::string_view text);
// A sound as PocketTTSFeatureExtractor of transformers prepares it: it ends on a pause, and is filled to whole frames.
std::vector<float> voice_samples(std::vector<float> samples, const SpeakerInfo& info);

}  // namespace graft::llm
