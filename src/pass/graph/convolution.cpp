#include <optional>
#include <utility>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_conv.h"
#include "op/aten/spatial.h"
#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

const ir::Arg kNone{};
constexpr std::string_view kBatchNorm = "aten._native_batch_norm_legit_no_training.default";

// Fewer output channels leave most of a panel empty.
constexpr std::int64_t kLeastChannels = 8;

// Winograd pays from this many channels on either side and outputs per sample: below, reading weights 16/9 as large
// costs what the products save.
constexpr std::int64_t kWinogradChannels = 32, kWinogradOutputs = 144;

std::optional<Shape> static_shape(const ir::Value* value) {
  if (value == nullptr || value->dtype != DType::f32) return std::nullopt;
  Shape shape;
  for (const ir::Dim& dim : value->dims) {
    if (!dim.is_static() || dim.min < 1) return std::nullopt;
    shape.push_back(dim.min);
  }
  return shape;
}

class Packer {
 public:
  // `packs`: for graft's kernels; else batch norms are folded alone.
  Packer(ir::Program& program, ir::Method& method, bool packs)
      : method_(method), graph_(program, method), packs_(packs) {}

  // Returns the number of nodes that it rewrote.
  std::size_t run() {
    for (ir::Node& node : graph_.nodes())
      if (graph_.is(node, kBatchNorm)) pack_norm(node);
    for (ir::Node& node : graph_.nodes())
      if (packs_ && graph_.is(node, "aten.convolution.default") && graph_.uses(node.outputs[0]) > 0) pack(node);
    graph_.prepend_added();
    return graph_.rewrites();
  }

 private:
  // The weight's sizes if the convolution can be packed, or scaled and shifted.
  std::optional<Shape> packable(const ir::Node& node) const {
    const ir::Arg &input = graph_.arg(node, "input"), &weight = graph_.arg(node, "weight");
    const ir::Arg& bias = graph_.arg(node, "bias");
    const ir::Value* x = graph_.tensor(input);
    if (x == nullptr || x->dtype != DType::f32 || x->rank() < 3 || x->rank() > 5) return std::nullopt;
    if (!graph_.is_weight(weight) || Graph::number(graph_.arg(node, "groups")).value_or(0) < 1) return std::nullopt;
    if (const ir::Arg& transposed = graph_.arg(node, "transposed");
        transposed.kind != ir::Arg::Kind::boolean || transposed.i != 0)
      return std::nullopt;
    if (bias.kind != ir::Arg::Kind::none && !static_shape(graph_.tensor(bias))) return std::nullopt;
    const std::optional<Shape> shape = static_shape(graph_.tensor(weight));
    if (!shape || shape->rank() != x->rank()) return std::nullopt;
    const std::int64_t groups = groups_of(node);
    if ((*shape)[0] % groups != 0) return std::nullopt;
    if (!packs_) return shape;
    const Shape whole = with_three_spatial(*shape);
    if (!is_depthwise(whole, groups) && (*shape)[0] / groups < kLeastChannels) return std::nullopt;
    const std::int64_t floats = packed_conv_floats(whole, groups);
    constexpr auto size = static_cast<std::int64_t>(sizeof(float));
    if (!is_kept_at_load(whole.numel() * size, floats * size)) return std::nullopt;
    return shape;
  }

  std::int64_t groups_of(const ir::Node& node) const { return graph_.arg(node, "groups").i; }

  void pack(ir::Node& node) {
    if (const auto shape = packable(node)) put(node, node, *shape, kNone, graph_.arg(node, "bias"));
  }

  // Winograd needs the input's sizes to be known when the weight is packed.
  bool by_winograd(const ir::Node& conv, const Shape& shape) const {
    if (shape.rank() != 4 || shape[0] < kWinogradChannels || shape[1] < kWinogradChannels) return false;
    const std::optional<Shape> out = static_shape(graph_.tensor(ir::Arg::of_value(conv.outputs[0])));
    if (!out || (*out)[2] * (*out)[3] < kWinogradOutputs) return false;
    ConvAttrs attrs;
    attrs.groups = groups_of(conv);
    for (const auto& [name, to] : {std::pair{"stride", &attrs.stride}, std::pair{"dilation", &attrs.dilation}})
      for (const ir::Arg& item : graph_.arg(conv, name).items)
        if (Graph::number(item).value_or(0) != 1) (*to)[2] = 0;
    return fits_winograd(with_three_spatial(shape), attrs);
  }

  // Replaces `at` by the convolution `conv` with another scale and bias.
  void put(ir::Node& at, const ir::Node& conv, const Shape& shape, const ir::Arg& scale, const ir::Arg& bias) {
    if (!packs_) return put_scaled(at, conv, shape, scale, bias);
    const bool winograd = by_winograd(conv, shape);
    const Shape whole = with_three_spatial(shape);
    const std::int64_t floats = winograd ? winograd_floats(whole) : packed_conv_floats(whole, groups_of(conv));
    Graph::Args weight = {{"weight", graph_.arg(conv, "weight")}, {"scale", scale}};
    if (!winograd) weight.emplace_back("groups", graph_.arg(conv, "groups"));
    const ir::Arg packed = graph_.add(at.name + " packed", winograd ? "graft.pack_winograd" : "graft.pack_conv",
                                      std::move(weight), DType::f32, {{floats, floats, {}}});
    ir::Arg sizes;
    sizes.kind = ir::Arg::Kind::list;
    for (const std::int64_t size : shape.sizes()) sizes.items.push_back(ir::Arg::of_integer(size));
    Graph::Args args = {
        {"input", graph_.arg(conv, "input")}, {"weight", packed}, {"weight_size", sizes}, {"bias", bias}};
    for (const char* name : {"stride", "padding", "dilation", "transposed", "output_padding", "groups"})
      args.emplace_back(name, graph_.arg(conv, name));
    graph_.replace(at, winograd ? "graft.winograd_conv" : "graft.packed_conv", std::move(args));
  }

  // The same for ggml's ops, which read weights as they are.
  void put_scaled(ir::Node& at, const ir::Node& conv, const Shape& shape, const ir::Arg& scale, const ir::Arg& bias) {
    std::vector<ir::Dim> dims, column;
    ir::Arg sizes;
    sizes.kind = ir::Arg::Kind::list;
    for (int d = 0; d < shape.rank(); ++d) {
      const std::int64_t size = d == 0 ? shape[0] : 1;
      dims.push_back({shape[d], shape[d], {}});
      column.push_back({size, size, {}});
      sizes.items.push_back(ir::Arg::of_integer(size));
    }
    const ir::Arg by_channel = graph_.add(at.name + " scale by channel", "aten.view.default",
                                          {{"self", scale}, {"size", sizes}}, DType::f32, column);
    const ir::Arg weight = graph_.add(at.name + " weight", "aten.mul.Tensor",
                                      {{"self", graph_.arg(conv, "weight")}, {"other", by_channel}}, DType::f32, dims);
    Graph::Args args = {{"input", graph_.arg(conv, "input")}, {"weight", weight}, {"bias", bias}};
    for (const char* name : {"stride", "padding", "dilation", "transposed", "output_padding", "groups"})
      args.emplace_back(name, graph_.arg(conv, name));
    graph_.replace(at, "aten.convolution.default", std::move(args));
  }

  // Folds a batch norm with given statistics that alone reads a convolution: a scale and a shift per channel.
  void pack_norm(ir::Node& node) {
    const ir::Node* conv = graph_.producer(graph_.arg(node, "input"), "aten.convolution.default");
    if (conv == nullptr || graph_.uses(conv->outputs[0]) != 1) return;
    for (std::size_t i = 1; i < node.outputs.size(); ++i)
      if (graph_.uses(node.outputs[i]) != 0) return;
    const auto shape = packable(*conv);
    const auto eps = Graph::number(graph_.arg(node, "eps"));
    if (!shape || !eps) return;
    const Shape channels = {(*shape)[0]};
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      const ir::Arg& arg = graph_.arg(node, name);
      const bool optional = std::string_view(name) == "weight" || std::string_view(name) == "bias";
      if (optional && arg.kind == ir::Arg::Kind::none) continue;
      if (!graph_.is_weight(arg) || static_shape(graph_.tensor(arg)) != channels) return;
    }
    const ir::Arg conv_bias = graph_.arg(*conv, "bias");
    if (conv_bias.kind != ir::Arg::Kind::none && !graph_.is_weight(conv_bias)) return;

    const std::vector<ir::Dim> dims = {{channels[0], channels[0], {}}};
    const auto add = [&](const char* what, std::string_view target, Graph::Args args) {
      return graph_.add(node.name + " " + what, target, std::move(args), DType::f32, dims);
    };
    const auto binary = [&](const char* what, std::string_view target, const ir::Arg& a, const ir::Arg& b) {
      Graph::Args args = {{"self", a}, {"other", b}};
      if (target != "aten.mul.Tensor") args.emplace_back("alpha", ir::Arg::of_integer(1));
      return add(what, target, std::move(args));
    };
    const ir::Arg variance = binary("variance", "aten.add.Scalar", graph_.arg(node, "running_var"),
                                    ir::Arg{ir::Arg::Kind::real, 0, *eps, {}, {}});
    ir::Arg scale = add("deviation", "aten.rsqrt.default", {{"self", variance}});
    if (const ir::Arg& weight = graph_.arg(node, "weight"); weight.kind != ir::Arg::Kind::none)
      scale = binary("scale", "aten.mul.Tensor", scale, weight);
    ir::Arg mean = graph_.arg(node, "running_mean");
    if (conv_bias.kind != ir::Arg::Kind::none) mean = binary("mean", "aten.sub.Tensor", mean, conv_bias);
    ir::Arg shift = binary("scaled", "aten.mul.Tensor", mean, scale);
    const ir::Arg& bias = graph_.arg(node, "bias");
    shift = bias.kind != ir::Arg::Kind::none ? binary("shift", "aten.sub.Tensor", bias, shift)
                                             : add("shift", "aten.neg.default", {{"self", shift}});
    node.outputs.resize(1);
    put(node, ir::Node(*conv), *shape, scale, shift);
  }

  ir::Method& method_;
  Graph graph_;
  bool packs_;
};

std::size_t rewrite_convolutions(ir::Program& program, bool packs) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += Packer(program, method, packs).run();
  drop_dead_nodes(program);
  return count;
}

}  // namespace

std::size_t pack_convolutions(ir::Program& program) { return rewrite_convolutions(program, true); }
std::size_t fold_batch_norms(ir::Program& program) { return rewrite_convolutions(program, false); }

}  // namespace graft
