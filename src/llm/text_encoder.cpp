#include "base/check.h"
#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/text_program.h"

namespace graft {

class TextEncoder::Impl {
 public:
  Impl(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
       const SessionOptions& options)
      : program_(program, std::move(tokenizer), options) {}

  std::vector<float> embed(std::span<const std::string> texts, const RunOptions& options) {
    std::vector<std::vector<std::int64_t>> ids;
    for (const std::string& text : texts) ids.push_back(program_.ids(text, program_.max_tokens()));
    return embed_ids(ids, options);
  }
  // One string at a time: no padding is computed, and a vector does not depend on the other strings.
  std::vector<float> embed_ids(std::span<const std::vector<std::int64_t>> texts, const RunOptions& options) {
    const std::int64_t vocabulary = program_.vocabulary();
    std::vector<float> result;
    for (const std::vector<std::int64_t>& ids : texts) {
      GRAFT_CHECK(InvalidArgument, !ids.empty(), "a text has no tokens");
      GRAFT_CHECK(InvalidArgument, std::ssize(ids) <= program_.max_tokens(), "a text has ", ids.size(),
                  " tokens, the encoder takes ", program_.max_tokens());
      for (const std::int64_t id : ids)
        GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "a text has the token id ", id,
                    ", expected from 0 to ", vocabulary - 1);
      const TensorView output = program_.run({&ids, 1}, options);
      llm::append_embedding(output, 0, std::ssize(ids), result);
      size_ = output.shape[output.shape.rank() - 1];
    }
    return result;
  }
  std::int64_t size() const { return size_; }

 private:
  llm::TextProgram program_;
  std::int64_t size_ = 0;
};

TextEncoder::TextEncoder(std::shared_ptr<const Program> program, std::shared_ptr<const Tokenizer> tokenizer,
                         const SessionOptions& options) try
    : impl_(std::make_unique<Impl>(program, std::move(tokenizer), options)) {
} catch (...) {
  rethrow_typed();
}
TextEncoder::TextEncoder(TextEncoder&&) noexcept = default;
TextEncoder& TextEncoder::operator=(TextEncoder&&) noexcept = default;
TextEncoder::~TextEncoder() = default;

std::vector<float> TextEncoder::embed(std::span<const std::string> texts, const RunOptions& options) try {
  return impl_->embed(texts, options);
} catch (...) {
  rethrow_typed();
}
std::vector<float> TextEncoder::embed_ids(std::span<const std::vector<std::int64_t>> ids,
                                          const RunOptions& options) try {
  return impl_->embed_ids(ids, options);
} catch (...) {
  rethrow_typed();
}
std::int64_t TextEncoder::size() const { return impl_->size(); }

}  // namespace graft
