#include "llm/text_program.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/utf8.h"

namespace graft::llm {
namespace {

constexpr std::string_view kInputs[] = {"input_ids", "attention_mask", "token_type_ids"};

// From here on more rows hardly make products faster (MiniLM, two cores: 4 and 8 texts of 64 tokens alike).
constexpr std::size_t kTokensAtOnce = 256;
// Products of so few rows have kernels of their own, which add in another order or, with "medium", don't round.
constexpr std::size_t kFewTokens = 8;

const MethodInfo& method_of(const Program& program, const std::string& name) {
  if (!name.empty()) return program.method(name);
  const std::vector<std::string> names = program.method_names();
  return program.method(std::ranges::find(names, "forward") != names.end() || names.empty() ? "forward" : names[0]);
}

}  // namespace

TextProgram::TextProgram(const std::shared_ptr<const Program>& program, std::shared_ptr<const Tokenizer> tokenizer,
                         const SessionOptions& options, const std::string& name)
    : tokenizer_(std::move(tokenizer)), session_(program, options), method_(&method_of(*program, name)) {
  GRAFT_CHECK(InvalidArgument, tokenizer_, "a text encoder needs a tokenizer");
  const MethodInfo& method = *method_;
  for (const ValueInfo& input : method.inputs) {
    const bool known = std::ranges::find(kInputs, input.name) != std::end(kInputs) &&
                       input.kind == Value::Kind::tensor && input.dims.size() == 2 &&
                       (input.dtype == DType::i64 || input.dtype == DType::i32);
    GRAFT_CHECK(InvalidArgument, known, "method '", method.name,
                "' is not a text encoder: expected inputs input_ids, "
                "attention_mask and token_type_ids [B, T] of integers, found '",
                input.name, "'");
  }
  GRAFT_CHECK(InvalidArgument, !method.inputs.empty() && method.inputs[0].name == kInputs[0], "method '", method.name,
              "' is not a text encoder: its first input is not input_ids");
  GRAFT_CHECK(
      InvalidArgument,
      !method.outputs.empty() && method.outputs[0].kind == Value::Kind::tensor && method.outputs[0].dtype == DType::f32,
      "method '", method.name, "' is not a text encoder: its first output is not a tensor of f32");
  texts_ = method.inputs[0].dims[0];
  tokens_ = method.inputs[0].dims[1];
  max_tokens_ = tokens_.max;
  if (const auto limit = tokenizer_->truncation())
    max_tokens_ = std::min(max_tokens_, static_cast<std::int64_t>(*limit));
}

std::vector<std::int64_t> TextProgram::ids(const std::string& text, std::optional<std::int64_t> max_tokens) const {
  GRAFT_CHECK(InvalidArgument, is_utf8(text), "a text is not UTF-8");
  EncodeOptions encode;
  if (max_tokens && *max_tokens < std::numeric_limits<std::int32_t>::max())
    encode.max_length = static_cast<std::size_t>(*max_tokens);
  std::vector<std::int64_t> ids = tokenizer_->encode(text, encode);
  GRAFT_CHECK(InvalidArgument, !ids.empty(), "a text has no tokens");
  return ids;
}

std::size_t TextProgram::texts_at_once(std::size_t tokens, std::size_t waiting) const {
  const auto least = static_cast<std::size_t>(texts_.min), most = static_cast<std::size_t>(texts_.max);
  const std::size_t rows =
      tokens <= kFewTokens || !method_->independent_rows ? 1 : std::max<std::size_t>(kTokensAtOnce / tokens, 1);
  return std::max(std::bit_floor(std::min({rows, waiting, most})), std::min(least, waiting));
}

TensorView TextProgram::run(std::span<const std::vector<std::int64_t>> texts, const RunOptions& options) {
  GRAFT_CHECK(InvalidArgument, !texts.empty(), "a call of a text encoder needs a text");
  const auto count = texts[0].size();
  const std::size_t width = std::max(count, static_cast<std::size_t>(tokens_.min));  // a program with fixed sizes
  const std::size_t rows = std::max(texts.size(), static_cast<std::size_t>(texts_.min));
  std::vector<std::int64_t> ids(rows * width, tokenizer_->special_ids().pad.value_or(0)), mask(rows * width, 0),
      types(rows * width, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    // A program that takes no fewer gets the last text again.
    const std::vector<std::int64_t>& text = texts[std::min(row, texts.size() - 1)];
    GRAFT_CHECK(InvalidArgument, text.size() == count, "texts of one call have the same number of tokens, found ",
                count, " and ", text.size());
    std::ranges::copy(text, ids.begin() + static_cast<std::ptrdiff_t>(row * width));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * width), count, 1);
  }
  const Shape shape{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)};
  std::vector<Value> inputs;
  std::vector<std::vector<std::int32_t>> narrow;
  narrow.reserve(method_->inputs.size());
  for (const ValueInfo& input : method_->inputs) {
    std::vector<std::int64_t>& wide = input.name == kInputs[0] ? ids : input.name == kInputs[1] ? mask : types;
    if (input.dtype == DType::i64) {
      inputs.push_back(Value::of(TensorView{wide.data(), DType::i64, shape}));
    } else {
      auto& copy = narrow.emplace_back();
      for (const std::int64_t v : wide) copy.push_back(static_cast<std::int32_t>(v));
      inputs.push_back(Value::of(TensorView{copy.data(), DType::i32, shape}));
    }
  }
  outputs_ = session_.run(method_->name, inputs, options);
  const TensorView& found = outputs_[0].tensor;
  const bool good = found.shape.rank() >= 1 && found.shape[0] == shape[0] &&
                    (found.shape.rank() == 2 || (found.shape.rank() == 3 && found.shape[1] == shape[1]));
  GRAFT_CHECK(InvalidArgument, good, "expected hidden states [B, T, H] or vectors [B, H] from method '", method_->name,
              "', found ", found.shape.str());
  return found;
}

void append_embedding(const TensorView& output, std::int64_t text, std::int64_t tokens, std::vector<float>& out) {
  const bool states = output.shape.rank() == 3;
  const auto size = static_cast<std::size_t>(output.shape[output.shape.rank() - 1]);
  const auto width = static_cast<std::size_t>(states ? output.shape[1] : 1);
  const float* data = static_cast<const float*>(output.data) + static_cast<std::size_t>(text) * width * size;
  std::vector<double> sum(size, 0.0);
  for (std::size_t t = 0; t < (states ? static_cast<std::size_t>(tokens) : 1); ++t)
    for (std::size_t h = 0; h < size; ++h) sum[h] += static_cast<double>(data[t * size + h]);
  // In f64. A length of 1 makes dividing by the number of tokens unnecessary.
  double squares = 0;
  for (const double x : sum) squares += x * x;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (const double x : sum) out.push_back(static_cast<float>(x / length));
}

}  // namespace graft::llm
