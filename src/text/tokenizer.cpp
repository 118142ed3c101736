#include "graft/tokenizer.h"

#include <charconv>

#include "base/check.h"
#include "base/rethrow.h"
#include "text/byte_level.h"
#include "text/chat_template.h"

namespace graft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

Tokenizer::~Tokenizer() = default;

std::string Tokenizer::apply_chat_template(std::string_view variables_json) const try {
  GRAFT_CHECK(InvalidArgument, !chat_template().empty(), "the tokenizer's files have no chat template");
  return apply_chat_template(variables_json, chat_template());
} catch (...) {
  rethrow_typed();
}

std::string Tokenizer::apply_chat_template(std::string_view variables_json, std::string_view chat_template) const try {
  return text::render_chat_template(chat_template, variables_json, template_variables(), limits());
} catch (...) {
  rethrow_typed();
}

std::string Tokenizer::token_bytes(std::int64_t id) const try {
  const std::string& spelled = piece(id);
  if (is_special(id)) return spelled;
  // Byte fallback, "<0xE2>".
  if (spelled.size() == 6 && spelled.starts_with("<0x") && spelled.ends_with('>')) {
    int byte = 0;
    const char* begin = spelled.data() + 3;
    if (std::from_chars(begin, begin + 2, byte, 16).ptr == begin + 2) return {static_cast<char>(byte)};
  }
  // A decoder may drop a space at the start of a text: the token is decoded behind another one.
  for (std::int64_t other = 0; other < size(); ++other) {
    if (is_special(other)) continue;
    std::string before;
    try {
      before = decode({&other, 1});
    } catch (const InvalidArgument&) {  // ids may have gaps
      continue;
    }
    if (before.empty() || before.find(kReplacement) != std::string::npos) continue;
    const std::int64_t both[] = {other, id};
    const std::string text = decode(both);
    if (!text.starts_with(before)) continue;
    if (text.find(kReplacement, before.size()) == std::string::npos) return text.substr(before.size());
    return text::from_byte_level(spelled).value_or(text.substr(before.size()));
  }
  return decode({&id, 1});
} catch (...) {
  rethrow_typed();
}

struct Detokenizer::Impl {
  std::shared_ptr<const Tokenizer> tokenizer;
  bool skip_special;
  std::vector<std::int64_t> ids;  // those of the last returned text, then those not yet returned
  std::size_t returned_ids = 0;   // how many of them have been returned
  std::string returned;           // the text of those

  std::string text() const { return tokenizer->decode(ids, skip_special); }
};

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special) try
    : impl_(std::make_unique<Impl>(Impl{std::move(tokenizer), skip_special, {}, 0, {}})) {
  GRAFT_CHECK(InvalidArgument, impl_->tokenizer != nullptr, "a Detokenizer needs a Tokenizer");
} catch (...) {
  rethrow_typed();
}

Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;
Detokenizer::~Detokenizer() = default;

std::string Detokenizer::add(std::int64_t id) try {
  std::vector<std::int64_t>& ids = impl_->ids;
  ids.push_back(id);
  std::string text;
  try {
    text = impl_->text();
  } catch (...) {
    ids.pop_back();
    throw;
  }
  // A trailing replacement character may be an incomplete character.
  if (text.size() <= impl_->returned.size() || text.ends_with(kReplacement)) return "";
  std::string added = text.substr(impl_->returned.size());
  // A token's text can depend on the one before it, so those of the last step are decoded again with the next.
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(impl_->returned_ids));
  impl_->returned_ids = ids.size();
  impl_->returned = impl_->text();
  return added;
} catch (...) {
  rethrow_typed();
}

std::string Detokenizer::finish() try {
  const std::string text = impl_->text();
  std::string left = text.size() > impl_->returned.size() ? text.substr(impl_->returned.size()) : "";
  impl_->ids.clear();
  impl_->returned_ids = 0;
  impl_->returned.clear();
  return left;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
