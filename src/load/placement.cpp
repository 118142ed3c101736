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

Placement place_layers(const std::vector<PlacedTensor>& tensors, std::optional<std::int64_t> layers,
                       std::size_t memory) {
  std::map<std::int64_t, std::vector<const PlacedTensor*>> by_layer;
  std::vector<const PlacedTensor*> others;
  std::set<const std::byte*> seen;
  Placement out;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.data && !seen.insert(tensor.data).second) continue;
    const std::optional<std::int64_t> layer = layer_of(tensor.name);
    (layer ? by_layer[*layer] : others).push_back(&tensor);
  }
  std::size_t left = memory;
  bool all = true;
  for (const auto& [layer, members] : by_layer) {
    std::size_t bytes = 0;
    for (const PlacedTensor* tensor : members) bytes += tensor->bytes;
    all = all && (layers ? layer < *layers : bytes <= left);
    left -= all && !layers ? bytes : 0;
    if (all) continue;
    out.layers = std::min(out.layers, layer);
    for (const PlacedTensor* tensor : members)
      if (tensor->data) out.weights_on_host.insert(tensor->data);
  }
  std::ranges::stable_sort(others, {}, &PlacedTensor::bytes);
  for (const PlacedTensor* tensor : others) {
    const bool fits = all && (layers || tensor->bytes <= left);
    left -= fits && !layers ? tensor->bytes : 0;
    if (!fits && tensor->data) out.weights_on_host.insert(tensor->data);
  }
  return out;
}

}  // namespace graft
