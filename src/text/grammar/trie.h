#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace graft::text::grammar {

// Tokens by their bytes. Nodes lie in depth-first order, children by byte.
class Trie {
 public:
  struct Node {
    std::uint16_t depth = 0;    // bytes from the root, this one included
    std::uint16_t deepest = 0;  // of the nodes of its subtree
    std::uint8_t byte = 0;
  };

  // Tokens of no bytes, and those longer than 65535, never come. Throws InvalidArgument for EOS ids that are negative.
  Trie(std::span<const std::string> tokens, std::span<const std::int64_t> eos);

  std::span<const Node> nodes() const { return nodes_; }
  // The first node behind the subtree of `node`. (Apart from nodes: walks read many of these, and few ends.)
  std::uint32_t end(std::uint32_t node) const { return ends_[node].node; }
  // The first of tokens() at `node` or behind it; `node` may be the number of nodes.
  std::uint32_t first_token(std::uint32_t node) const {
    return node < nodes_.size() ? ends_[node].first_token : static_cast<std::uint32_t>(order_.size());
  }
  std::span<const std::int64_t> tokens() const { return order_; }  // in the order of their bytes
  const std::string& bytes_of(std::int64_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }  // of the vocabulary
  std::size_t words() const { return (bytes_.size() + 31) / 32; }
  std::span<const std::int64_t> eos() const { return eos_; }

 private:
  std::vector<std::string> bytes_;
  std::vector<std::int64_t> eos_, order_;
  struct End {
    std::uint32_t node = 0, first_token = 0;
  };
  std::vector<Node> nodes_;
  std::vector<End> ends_;  // by node
};

}  // namespace graft::text::grammar
