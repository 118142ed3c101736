#include "text/added_tokens.h"

#include <algorithm>
#include <functional>

#include "text/unicode.h"

namespace graft::text {
namespace {

std::size_t char_before(std::string_view text, std::size_t at) {
  do --at;
  while (continues_char(text[at]));
  return at;
}

bool word_goes_on(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0) {
    std::size_t at = char_before(text, begin);
    if (is_word_char(next_char(text, at))) return true;
  }
  return end < text.size() && is_word_char(next_char(text, end));
}

}  // namespace

void AddedTokenFinder::add(std::string key, const AddedToken* token) {
  auto& sizes = sizes_[static_cast<unsigned char>(key[0])];
  const auto where = std::lower_bound(sizes.begin(), sizes.end(), key.size(), std::greater<>());
  if (where == sizes.end() || *where != key.size()) sizes.insert(where, key.size());
  tokens_[std::move(key)] = token;
}

const AddedToken* AddedTokenFinder::at(std::string_view text, std::size_t position, std::size_t& size) const {
  for (std::size_t candidate : sizes_[static_cast<unsigned char>(text[position])]) {
    if (candidate > text.size() - position) continue;
    const auto found = tokens_.find(text.substr(position, candidate));
    if (found == tokens_.end()) continue;
    size = candidate;
    return found->second;
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::find(std::string_view text) const {
  std::vector<Part> out;
  std::size_t last = 0;  // where the last token and its spaces end
  for (std::size_t position = 0; position < text.size();) {
    std::size_t size = 0;
    const AddedToken* token = at(text, position, size);
    if (token == nullptr) {
      ++position;
      continue;
    }
    std::size_t begin = position;
    std::size_t end = position + size;
    position = end;
    if (token->single_word && word_goes_on(text, begin, end)) continue;
    while (token->lstrip && begin > last) {
      const std::size_t before = char_before(text, begin);
      std::size_t after = before;
      if (!is_white_space(next_char(text, after))) break;
      begin = before;
    }
    while (token->rstrip && end < text.size()) {
      std::size_t after = end;
      if (!is_white_space(next_char(text, after))) break;
      end = after;
    }
    if (last < begin) out.push_back({last, begin, nullptr});
    out.push_back({begin, end, token});
    last = end;
  }
  if (last < text.size()) out.push_back({last, text.size(), nullptr});
  return out;
}

}  // namespace graft::text
