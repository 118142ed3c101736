#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/text_program.h"

namespace graft {

class TextEncoder::Impl {
 public:
  Impl(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
       const SessionOptions& options)
      : program_(program, std::move(tokenizer), options) {}

  // One string at a time: no padding is computed, and a vector does not depend on the other strings.
  std::vector<float> embed(std::span<const std::string> texts, const RunOptions& options) {
    std::vector<float> result;
    for (const std::string& text : texts) {
      const std::vector<std::int64_t> ids = program_.ids(text, program_.max_tokens());
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
std::int64_t TextEncoder::size() const { return impl_->size(); }

}  // namespace graft
