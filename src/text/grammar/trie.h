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
    std::uint32_t end = 0;          // the first node behind its subtree
    std::uint32_t first_token = 0;  // of tokens(); those before the next node's end here
    std::uint16_t depth = 0;        // bytes from the root, this one included
    std::uint8_t byte = 0;
  };

  // Tokens of no bytes, and those longer than 65535, never come. Throws InvalidArgument for EOS ids that are negative.
  Trie(std::span<const std::string> tokens, std::span<const std::int64_t> eos);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const std::int64_t> tokens_of(std::uint32_t node) const {
    const std::size_t end = node + 1 < nodes_.size() ? nodes_[node + 1].first_token : order_.size();
    return std::span(order_).subspan(nodes_[node].first_token, end - nodes_[node].first_token);
  }
  std::span<const std::int64_t> tokens() const { return order_; }  // in the order of their bytes
  const std::string& bytes_of(std::int64_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }  // of the vocabulary
  std::size_t words() const { return (bytes_.size() + 31) / 32; }
  std::span<const std::int64_t> eos() const { return eos_; }

 private:
  std::vector<std::string> bytes_;
  std::vector<std::int64_t> eos_, order_;
  std::vector<Node> nodes_;
};

}  // namespace graft::text::grammar
