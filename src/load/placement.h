#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace graft {

// The first number in the path of a weight's name: "model.layers.12.mlp.up_proj.weight" is of layer 12.
std::optional<std::int64_t> layer_of(std::string_view name);

struct PlacedWeight {
  std::string_view name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// The weights that stay on the CPU, by address: those of layer `layers` and later ones, if it is given, else those of
// the first layer that no longer fits into `memory` and of all later ones. Weights of no layer, such as embeddings and
// heads, are on the device if all layers are and, without `layers`, as far as they fit. One with several names counts
// once, as the first of them.
std::set<const std::byte*> weights_on_host(const std::vector<PlacedWeight>& weights, std::optional<std::int64_t> layers,
                                           std::size_t memory);

}  // namespace graft
