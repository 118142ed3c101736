#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/llm.h"
#include "llm/text_program.h"

namespace graft {

class TextEncoder::Impl {
 public:
  using Ids = std::vector<std::int64_t>;

  Impl(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
       const SessionOptions& options)
      : program_(program, std::move(tokenizer), options) {}

  std::vector<float> embed(std::span<const std::string> texts, const RunOptions& options) {
    std::vector<Ids> ids;
    for (const std::string& text : texts) ids.push_back(program_.ids(text, program_.max_tokens()));
    return embed_ids(ids, options);
  }
  std::vector<float> embed_ids(std::span<const Ids> texts, const RunOptions& options) {
    for (const Ids& ids : texts) check(ids);
    // By their number of tokens, and in order: nothing is padded.
    std::vector<std::size_t> order(texts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return texts[i].size(); });
    std::vector<std::vector<float>> vectors(texts.size());
    for (auto rest = std::span<const std::size_t>(order); !rest.empty();) {
      const std::size_t tokens = texts[rest[0]].size();
      const auto other = std::ranges::find_if(rest, [&](std::size_t i) { return texts[i].size() != tokens; });
      const std::size_t rows = program_.texts_at_once(tokens, static_cast<std::size_t>(other - rest.begin()));
      std::vector<Ids> run;
      for (const std::size_t i : rest.first(rows)) run.push_back(texts[i]);
      const TensorView output = program_.run(run, options);
      for (std::size_t row = 0; row < rows; ++row)
        llm::append_embedding(output, static_cast<std::int64_t>(row), std::ssize(run[row]), vectors[rest[row]]);
      size_ = output.shape[output.shape.rank() - 1];
      rest = rest.subspan(rows);
    }
    std::vector<float> result;
    for (const std::vector<float>& vector : vectors) result.insert(result.end(), vector.begin(), vector.end());
    return result;
  }
  std::int64_t size() const { return size_; }

 private:
  void check(const Ids& ids) const {
    const std::int64_t vocabulary = program_.vocabulary();
    GRAFT_CHECK(InvalidArgument, !ids.empty(), "a text has no tokens");
    GRAFT_CHECK(InvalidArgument, std::ssize(ids) <= program_.max_tokens(), "a text has ", ids.size(),
                " tokens, the encoder takes ", program_.max_tokens());
    for (const std::int64_t id : ids)
      GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "a text has the token id ", id, ", expected from 0 to ",
                  vocabulary - 1);
  }

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
