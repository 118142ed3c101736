#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/call.h"
#include "serve/openai/text_request.h"

namespace graft::serve {

// A part of an answer for APIs that write it as a list of such: reasoning, text, calls of tools.
struct Block {
  AnswerPart::Kind kind = AnswerPart::Kind::content;  // reasoning, content or call
  std::size_t index = 0;
  std::string text;      // of a call: its arguments, JSON
  std::string name, id;  // of a call
};

struct Outcome {
  FinishReason reason = FinishReason::eos;
  std::size_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  bool cut_off() const { return reason == FinishReason::length || reason == FinishReason::context; }
};

// How one API writes one answer. `call` is the same for all functions of a writer.
class BlockWriter {
 public:
  virtual ~BlockWriter() = default;
  // Of a stream, in order: begin, then for each block open, delta as often as text comes, close; then end.
  virtual void begin(Call& call, std::size_t prompt_tokens) = 0;
  virtual void open(Call& call, const Block& block) = 0;
  virtual void delta(Call& call, const Block& block, const std::string& text) = 0;
  virtual void close(Call& call, const Block& block) = 0;
  virtual void end(Call& call, const std::vector<Block>& blocks, const Outcome& outcome) = 0;
  // An answer that is no stream.
  virtual Json whole(const std::vector<Block>& blocks, const Outcome& outcome) = 0;
};

// Runs the request, which has one prompt and asks for one text, and answers the call.
void answer_blocks(App& app, const std::shared_ptr<Call>& call, TextRequest request,
                   std::unique_ptr<BlockWriter> writer);

}  // namespace graft::serve
