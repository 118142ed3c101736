#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace graft::text::jinja {

struct Token {
  enum class Kind { text, output_begin, output_end, block_begin, block_end, name, constant, sign, end };
  Kind kind = Kind::end;
  std::string text;  // of text, name, sign
  Value value;       // of constant
  int line = 0;
};

// With trim_blocks and lstrip_blocks, as transformers sets them; comments and raw blocks are resolved. Throws
// InvalidProgram naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace graft::text::jinja
