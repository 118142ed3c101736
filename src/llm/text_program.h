#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/graft.h"
#include "graft/tokenizer.h"

namespace graft::llm {

// A program with the inputs input_ids, attention_mask and, where it has it, token_type_ids [B, T], and its tokenizer:
// texts in, its first output out.
class GRAFT_API TextProgram {
 public:
  // `method`: empty for "forward", or the first one. Throws InvalidArgument for a method with other inputs, or whose
  // first output is no tensor of f32.
  TextProgram(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
              const SessionOptions& options, const std::string& method = {});

  // Special ones included. Throws InvalidArgument for what is not UTF-8 or has no tokens. `max_tokens`: the end of the
  // text is cut off; empty: it is not.
  std::vector<std::int64_t> ids(const std::string& text, std::optional<std::int64_t> max_tokens = {}) const;
  // Of a text: what the program and the tokenizer's file allow.
  std::int64_t max_tokens() const { return max_tokens_; }
  std::int64_t vocabulary() const { return tokenizer_->size(); }
  // Of a call.
  std::int64_t min_texts() const { return texts_.min; }
  std::int64_t max_texts() const { return texts_.max; }

  // Of `waiting` texts of `tokens` tokens: how many to give one run. A power of two, so that sizes share plans. One
  // where company would change a vector: where the program's rows are not independent, and for few tokens, whose
  // products have kernels of their own.
  std::size_t texts_at_once(std::size_t tokens, std::size_t waiting) const;

  // The first output for texts of the same number of tokens: nothing is padded but for programs of fixed sizes. Valid
  // until the next call.
  TensorView run(std::span<const std::vector<std::int64_t>> texts, const RunOptions& options = {});

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Session session_;
  const MethodInfo* method_ = nullptr;
  DimInfo texts_, tokens_;
  std::int64_t max_tokens_ = 0;
  std::vector<Value> outputs_;
};

// Appends a text's vector to `out`: of hidden states [B, T, H] the mean over its first `tokens`, of vectors [B, H] its
// own, normalized to length 1. Throws InvalidArgument for other sizes.
GRAFT_API void append_embedding(const TensorView& output, std::int64_t text, std::int64_t tokens,
                                std::vector<float>& out);

}  // namespace graft::llm
