#include "load/placement.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace graft {

std::optional<std::int64_t> layer_of(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && rest == part.data() + part.size() && number >= 0) return number;
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return std::nullopt;
}

std::set<const std::byte*> weights_on_host(const std::vector<PlacedWeight>& weights, std::optional<std::int64_t> layers,
                                           std::size_t memory) {
  std::map<std::int64_t, std::vector<const PlacedWeight*>> by_layer;
  std::vector<const PlacedWeight*> others;
  std::set<const std::byte*> seen, out;
  for (const PlacedWeight& weight : weights) {
    if (!seen.insert(weight.data).second) continue;
    const std::optional<std::int64_t> layer = layer_of(weight.name);
    (layer ? by_layer[*layer] : others).push_back(&weight);
  }
  std::size_t left = memory;
  bool all = true;
  for (const auto& [layer, members] : by_layer) {
    std::size_t bytes = 0;
    for (const PlacedWeight* weight : members) bytes += weight->bytes;
    all = all && (layers ? layer < *layers : bytes <= left);
    left -= all && !layers ? bytes : 0;
    if (!all)
      for (const PlacedWeight* weight : members) out.insert(weight->data);
  }
  std::ranges::stable_sort(others, {}, &PlacedWeight::bytes);
  for (const PlacedWeight* weight : others) {
    const bool fits = all && (layers || weight->bytes <= left);
    left -= fits && !layers ? weight->bytes : 0;
    if (!fits) out.insert(weight->data);
  }
  return out;
}

}  // namespace graft
