#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "graft/llm.h"

namespace graft {
namespace {

constexpr std::string_view kInputs[] = {"input_ids", "attention_mask", "token_type_ids"};

// Appends the sum of the token rows, in f64, normalized to length 1, which makes dividing by their number unnecessary.
void add_normalized(std::span<const double> sum, std::vector<float>& out) {
  double squares = 0;
  for (const double x : sum) squares += x * x;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (const double x : sum) out.push_back(static_cast<float>(x / length));
}

}  // namespace

class TextEncoder::Impl {
 public:
  Impl(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
       const SessionOptions& options);
  std::vector<float> embed(std::span<const std::string> texts, const RunOptions& options);
  std::vector<float> embed_ids(std::span<const std::vector<std::int64_t>> texts, const RunOptions& options);
  std::int64_t size() const { return size_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Session session_;
  std::string method_;
  std::int64_t max_tokens_ = 0;
  std::int64_t size_ = 0;
};

TextEncoder::Impl::Impl(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
                        const SessionOptions& options)
    : tokenizer_(std::move(tokenizer)), session_(program, options) {
  GRAFT_CHECK(InvalidArgument, tokenizer_, "a text encoder needs a tokenizer");
  const std::vector<std::string> names = program->method_names();
  method_ = std::ranges::find(names, "forward") != names.end() || names.empty() ? "forward" : names[0];
  const MethodInfo& method = program->method(method_);
  for (const ValueInfo& input : method.inputs) {
    const bool known = std::ranges::find(kInputs, input.name) != std::end(kInputs) &&
                       input.kind == Value::Kind::tensor && input.dims.size() == 2 &&
                       (input.dtype == DType::i64 || input.dtype == DType::i32);
    GRAFT_CHECK(InvalidArgument, known, "method '", method_,
                "' is not a text encoder: expected inputs input_ids, "
                "attention_mask and token_type_ids [B, T] of integers, found '",
                input.name, "'");
  }
  GRAFT_CHECK(InvalidArgument, !method.inputs.empty() && method.inputs[0].name == kInputs[0], "method '", method_,
              "' is not a text encoder: its first input is not input_ids");
  GRAFT_CHECK(
      InvalidArgument,
      !method.outputs.empty() && method.outputs[0].kind == Value::Kind::tensor && method.outputs[0].dtype == DType::f32,
      "method '", method_, "' is not a text encoder: its first output is not a tensor of f32");
  max_tokens_ = method.inputs[0].dims[1].max;
  if (const auto limit = tokenizer_->truncation())
    max_tokens_ = std::min(max_tokens_, static_cast<std::int64_t>(*limit));
}

std::vector<float> TextEncoder::Impl::embed(std::span<const std::string> texts, const RunOptions& options) {
  std::vector<std::vector<std::int64_t>> ids;
  for (const std::string& text : texts) {
    GRAFT_CHECK(InvalidArgument, is_utf8(text), "a text is not UTF-8");
    EncodeOptions encode;
    if (max_tokens_ < std::numeric_limits<std::int32_t>::max())
      encode.max_length = static_cast<std::size_t>(max_tokens_);
    ids.push_back(tokenizer_->encode(text, encode));
  }
  return embed_ids(ids, options);
}

std::vector<float> TextEncoder::Impl::embed_ids(std::span<const std::vector<std::int64_t>> texts,
                                                const RunOptions& options) {
  std::vector<float> result;
  const MethodInfo& method = session_.program().method(method_);
  const DimInfo& tokens = method.inputs[0].dims[1];
  const std::int64_t vocabulary = tokenizer_->size();
  // One string at a time: no padding is computed, and a vector does not depend on the other strings.
  for (std::vector<std::int64_t> ids : texts) {
    GRAFT_CHECK(InvalidArgument, !ids.empty(), "a text has no tokens");
    GRAFT_CHECK(InvalidArgument, std::ssize(ids) <= max_tokens_, "a text has ", ids.size(),
                " tokens, the encoder takes ", max_tokens_);
    for (const std::int64_t id : ids)
      GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "a text has the token id ", id, ", expected from 0 to ",
                  vocabulary - 1);
    const auto count = ids.size();
    std::vector<std::int64_t> mask(count, 1), types(count, 0);
    if (std::ssize(ids) < tokens.min) {  // a program with fixed sizes
      const std::int64_t pad = tokenizer_->special_ids().pad.value_or(0);
      const auto size = static_cast<std::size_t>(tokens.min);
      ids.resize(size, pad);
      mask.resize(size, 0);
      types.resize(size, 0);
    }
    std::vector<Value> inputs;
    std::vector<std::vector<std::int32_t>> narrow;
    narrow.reserve(method.inputs.size());
    const Shape shape{1, std::ssize(ids)};
    for (const ValueInfo& input : method.inputs) {
      std::vector<std::int64_t>& wide = input.name == kInputs[0] ? ids : input.name == kInputs[1] ? mask : types;
      if (input.dtype == DType::i64) {
        inputs.push_back(Value::of(TensorView{wide.data(), DType::i64, shape}));
      } else {
        auto& copy = narrow.emplace_back();
        for (const std::int64_t v : wide) copy.push_back(static_cast<std::int32_t>(v));
        inputs.push_back(Value::of(TensorView{copy.data(), DType::i32, shape}));
      }
    }
    const std::vector<Value> outputs = session_.run(method_, inputs, options);
    const TensorView& found = outputs[0].tensor;
    const bool states = found.shape.rank() == 3;
    GRAFT_CHECK(InvalidArgument, (states && found.shape[1] == shape[1]) || found.shape.rank() == 2,
                "expected hidden states [B, T, H] or vectors [B, H] from method '", method_, "', found ",
                found.shape.str());
    size_ = found.shape[found.shape.rank() - 1];
    const auto* data = static_cast<const float*>(found.data);
    std::vector<double> sum(static_cast<std::size_t>(size_), 0.0);
    for (std::size_t t = 0; t < (states ? count : 1); ++t)
      for (std::size_t h = 0; h < sum.size(); ++h) sum[h] += static_cast<double>(data[t * sum.size() + h]);
    add_normalized(sum, result);
  }
  return result;
}

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
