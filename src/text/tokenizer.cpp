#include "graft/tokenizer.h"

#include "base/check.h"
#include "text/chat_template.h"

namespace graft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

Tokenizer::~Tokenizer() = default;

std::string Tokenizer::apply_chat_template(std::string_view variables_json) const {
  GRAFT_CHECK(InvalidArgument, !chat_template().empty(), "the tokenizer's files have no chat template");
  return apply_chat_template(variables_json, chat_template());
}

std::string Tokenizer::apply_chat_template(std::string_view variables_json, std::string_view chat_template) const {
  return text::render_chat_template(chat_template, variables_json, template_variables());
}

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {
  GRAFT_CHECK(InvalidArgument, tokenizer_ != nullptr, "a Detokenizer needs a Tokenizer");
}

std::string Detokenizer::add(std::int64_t id) {
  ids_.push_back(id);
  std::string text;
  try {
    text = tokenizer_->decode(ids_, skip_special_);
  } catch (...) {
    ids_.pop_back();
    throw;
  }
  // A trailing replacement character may be an incomplete character.
  if (text.size() <= returned_.size() || text.ends_with(kReplacement)) return "";
  std::string added = text.substr(returned_.size());
  // A token's text can depend on the one before it, so those of the last step are decoded again with the next.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(returned_ids_));
  returned_ids_ = ids_.size();
  returned_ = tokenizer_->decode(ids_, skip_special_);
  return added;
}

std::string Detokenizer::finish() {
  const std::string text = tokenizer_->decode(ids_, skip_special_);
  std::string left = text.size() > returned_.size() ? text.substr(returned_.size()) : "";
  ids_.clear();
  returned_ids_ = 0;
  returned_.clear();
  return left;
}

}  // namespace graft
