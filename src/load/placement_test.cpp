#include "load/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace graft {
namespace {

using ::testing::ElementsAre;

TEST(Placement, LayerOfAName) {
  EXPECT_EQ(layer_of("model.layers.12.mlp.up_proj.weight"), 12);
  EXPECT_EQ(layer_of("blk.0.attn_q.weight"), 0);
  EXPECT_EQ(layer_of("features.3.conv.0.weight"), 3);
  EXPECT_EQ(layer_of("7"), 7);
  for (const char* name : {"", "model.norm.weight", "layer1.weight", "a.1b.c", "a..b", ".", "a.-1.b"})
    EXPECT_EQ(layer_of(name), std::nullopt) << name;
}

// An embedding of 50 bytes, three layers of 100, a norm of 10, a head that is the embedding.
struct Model {
  std::array<std::byte, 8> memory{};
  std::vector<PlacedTensor> weights{{"embed.weight", &memory[0], 50},         {"layers.0.up.weight", &memory[1], 60},
                                    {"layers.0.down.weight", &memory[2], 40}, {"layers.1.up.weight", &memory[3], 100},
                                    {"layers.2.up.weight", &memory[4], 80},   {"norm.weight", &memory[5], 10},
                                    {"head.weight", &memory[0], 50}};

  // Which of the six are on the device.
  std::string there(std::optional<std::int64_t> layers, std::size_t bytes) const {
    const std::set<const std::byte*> on_host = place_layers(weights, layers, bytes).weights_on_host;
    std::string out;
    for (int i = 0; i < 6; ++i) out += on_host.contains(&memory[static_cast<std::size_t>(i)]) ? "." : std::to_string(i);
    return out;
  }
};

TEST(Placement, AsManyLayersAsFit) {
  const Model model;
  EXPECT_EQ(model.there({}, 1000), "012345");
  EXPECT_EQ(model.there({}, 340), "012345");
  EXPECT_EQ(model.there({}, 339), ".12345") << "the norm still fits";
  EXPECT_EQ(model.there({}, 289), ".1234.");
  EXPECT_EQ(model.there({}, 279), ".123..");
  EXPECT_EQ(model.there({}, 190), ".12...") << "no layer after one that does not fit";
  EXPECT_EQ(model.there({}, 99), "......");
  EXPECT_EQ(model.there({}, 0), "......");
}

// A layer's caches count with it, and stay where it is.
TEST(Placement, StatesOfLayers) {
  Model model;
  model.weights.push_back({"kv.0.key", nullptr, 30});
  model.weights.push_back({"kv.2.key", nullptr, 30});
  EXPECT_EQ(model.there({}, 400), "012345");
  EXPECT_EQ(model.there({}, 309), ".123..") << "the last layer no longer fits with its cache";
  EXPECT_EQ(model.there({}, 129), "......");
  const Placement placed = place_layers(model.weights, {}, 309);
  EXPECT_TRUE(placed.holds_state("kv.1.key") && placed.holds_state("total"));
  EXPECT_FALSE(placed.holds_state("kv.2.key"));
  EXPECT_TRUE(place_layers(model.weights, {}, 400).holds_state("kv.2.key"));
  EXPECT_FALSE(place_layers(model.weights, 0, 0).holds_state("kv.0.key"));
}

TEST(Placement, AsManyLayersAsAskedFor) {
  const Model model;
  EXPECT_EQ(model.there(0, 1000), "......");
  EXPECT_EQ(model.there(1, 1000), ".12...");
  EXPECT_EQ(model.there(2, 0), ".123..") << "without looking at memory";
  EXPECT_EQ(model.there(3, 0), "012345");
  EXPECT_EQ(model.there(99, 0), "012345");
}

}  // namespace
}  // namespace graft
