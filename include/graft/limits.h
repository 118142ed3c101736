#pragma once

#include <cstdint>

namespace graft {

// Limits on the work and memory that a tokenizer and its chat template may cost. Beyond one: Unsupported for a
// vocabulary, InvalidArgument for a template, naming the limit.
struct TextLimits {
  std::int64_t max_vocabulary = std::int64_t{1} << 22;  // tokens, and ids; at most 2^24
  // Statements, iterations and expressions, and one more for every 64 bytes or items that an expression makes.
  std::int64_t max_template_steps = 10'000'000;
  std::int64_t max_template_bytes = std::int64_t{1} << 26;  // of the prompt
};

}  // namespace graft
