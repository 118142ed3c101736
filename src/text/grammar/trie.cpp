#include "text/grammar/trie.h"

#include <algorithm>

#include "base/check.h"

namespace graft::text::grammar {
namespace {

constexpr std::size_t kLongest = 65535;

}  // namespace

Trie::Trie(std::span<const std::string> tokens, std::span<const std::int64_t> eos)
    : bytes_(tokens.begin(), tokens.end()), eos_(eos.begin(), eos.end()) {
  for (const std::int64_t id : eos_) {
    GRAFT_CHECK(InvalidArgument, id >= 0, "the EOS token ", id, " is negative");
    if (id >= size()) bytes_.resize(static_cast<std::size_t>(id) + 1);
    bytes_[static_cast<std::size_t>(id)].clear();
  }
  for (std::int64_t id = 0; id < size(); ++id)
    if (const std::size_t length = bytes_of(id).size(); length > 0 && length <= kLongest) order_.push_back(id);
  std::ranges::sort(order_, {}, [&](std::int64_t id) -> const std::string& { return bytes_of(id); });
  std::vector<std::uint32_t> path;  // nodes of the last token, by depth
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::string& text = bytes_of(order_[i]);
    std::size_t same = 0;
    if (i > 0) {
      const std::string& before = bytes_of(order_[i - 1]);
      same = static_cast<std::size_t>(std::ranges::mismatch(before, text).in1 - before.begin());
    }
    for (; path.size() > same; path.pop_back()) ends_[path.back()].node = static_cast<std::uint32_t>(nodes_.size());
    for (std::size_t depth = same; depth < text.size(); ++depth) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({static_cast<std::uint16_t>(depth + 1), 0, static_cast<std::uint8_t>(text[depth])});
      ends_.push_back({0, static_cast<std::uint32_t>(i)});
    }
    for (const std::uint32_t node : path)
      nodes_[node].deepest = std::max(nodes_[node].deepest, static_cast<std::uint16_t>(text.size()));
  }
  for (const std::uint32_t node : path) ends_[node].node = static_cast<std::uint32_t>(nodes_.size());
}

}  // namespace graft::text::grammar
