#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace graft::text {

// A token that is looked for in the text itself, before the model sees it.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // not where a word goes on
  bool lstrip = false;       // takes the spaces before it along
  bool rstrip = false;       // and those behind it
  bool normalized = false;   // looked for in the normalized text, itself normalized
  bool special = false;      // left out by decode() on demand
};

// Finds added tokens: the leftmost first, of several there the longest.
class AddedTokenFinder {
 public:
  // A part of a text; `token` is null between tokens.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    const AddedToken* token = nullptr;
  };

  // `key`: what to look for, not empty. `token` must live as long as this.
  void add(std::string key, const AddedToken* token);
  bool empty() const { return tokens_.empty(); }
  std::vector<Part> find(std::string_view text) const;

 private:
  const AddedToken* at(std::string_view text, std::size_t position, std::size_t& size) const;

  std::map<std::string, const AddedToken*, std::less<>> tokens_;
  // For each first byte the sizes of what begins with it, the longest first.
  std::vector<std::vector<std::size_t>> sizes_ = std::vector<std::vector<std::size_t>>(256);
};

}  // namespace graft::text
