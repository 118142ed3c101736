#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace graft::text {

// A token that is matched in the text itself, before the model runs.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // matches whole words only
  bool lstrip = false;       // includes the spaces before it
  bool rstrip = false;       // includes the spaces after it
  bool normalized = false;   // matched in the normalized text, itself normalized
  bool special = false;      // decode() can skip it
};

// Finds added tokens: the leftmost first, and of several at one position the longest.
class AddedTokenFinder {
 public:
  // A part of a text; `token` is null between tokens.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    const AddedToken* token = nullptr;
  };

  // `key`: the string to match, not empty. `token` must outlive this object.
  void add(std::string key, const AddedToken* token);
  bool empty() const { return tokens_.empty(); }
  std::vector<Part> find(std::string_view text) const;

 private:
  const AddedToken* at(std::string_view text, std::size_t position, std::size_t& size) const;

  std::map<std::string, const AddedToken*, std::less<>> tokens_;
  // By first byte, the sizes of keys that begin with it, the longest first.
  std::vector<std::vector<std::size_t>> sizes_ = std::vector<std::vector<std::size_t>>(256);
};

}  // namespace graft::text
