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

// A weight, or a state, whose `data` is null.
struct PlacedTensor {
  std::string_view name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// What of a program is on a device.
struct Placement {
  std::set<const std::byte*> weights_on_host;  // by address: those that stay on the CPU
  std::int64_t layers = INT64_MAX;             // from this one on, states stay there too

  bool holds_state(std::string_view name) const { return layer_of(name).value_or(0) < layers; }
};

// On the CPU stay weights and states of layer `layers` and later ones, if it is given, else those of the first layer
// that no longer fits into `memory` and of all later ones. Weights of no layer, such as embeddings and heads, are on
// the device if all layers are and, without `layers`, as far as they fit. One with several names counts once, as the
// first of them.
Placement place_layers(const std::vector<PlacedTensor>& tensors, std::optional<std::int64_t> layers,
                       std::size_t memory);

}  // namespace graft
