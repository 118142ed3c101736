#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/packed_quantized_conv.h"
#include "op/aten/spatial.h"
#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

const ir::Arg kNone{};
constexpr std::string_view kQuantize = "quantized_decomposed.quantize_per_tensor.default";
constexpr std::string_view kDequantize = "quantized_decomposed.dequantize_per_tensor.default";
constexpr std::string_view kConv = "graft.quantized_conv", kPacked = "graft.packed_quantized_conv";
// Views, which quantization commutes with.
constexpr std::array<std::string_view, 6> kViews = {"aten.view.default",    "aten.reshape.default",
                                                    "aten.permute.default", "aten.flatten.using_ints",
                                                    "aten.squeeze.dims",    "aten.unsqueeze.default"};
// Fewer output channels leave most of a panel empty.
constexpr std::int64_t kLeastChannels = 8;

bool is_byte(DType dtype) { return dtype == DType::i8 || dtype == DType::u8; }
std::int64_t least_of(DType dtype) { return dtype == DType::u8 ? 0 : -128; }

ir::Arg of_real(double x) { return {ir::Arg::Kind::real, 0, x, {}, {}}; }

// Bytes q for the values scale * (q - zero), from low to high.
struct Quantization {
  DType dtype = DType::i8;
  double scale = 1;
  std::int64_t zero = 0, low = 0, high = 0;

  // The quantized value of a number.
  std::int64_t of(double x) const {
    const float q = std::nearbyint(static_cast<float>(x) * static_cast<float>(1.0 / scale)) + static_cast<float>(zero);
    return static_cast<std::int64_t>(std::clamp(q, static_cast<float>(low), static_cast<float>(high)));
  }
  bool same_numbers(const Quantization& other) const {
    return dtype == other.dtype && scale == other.scale && zero == other.zero;
  }
  // Clamped to [from, to] first: quantizing is monotonic, so the clamp may come after.
  void clamp(std::int64_t from, std::int64_t to) {
    low = std::clamp(low, from, to);
    high = std::clamp(high, from, to);
  }
};

class Packer {
 public:
  Packer(ir::Program& program, ir::Method& method, const UniformWeight& uniform)
      : method_(method), graph_(program, method), uniform_(uniform) {}

  // Returns the number of nodes that it rewrote.
  std::size_t run() {
    for (ir::Node& node : graph_.nodes())
      if (graph_.is(node, kQuantize)) absorb(node);
    for (ir::Node& node : graph_.nodes())
      if (graph_.is(node, kConv) && graph_.uses(node.outputs[0]) > 0)
        if (auto args = packed(node)) graph_.replace(node, kPacked, std::move(*args));
    graph_.prepend_added();
    return graph_.rewrites();
  }

 private:
  // --- matching parts of a quantized graph ---

  // The parameters of a quantize or dequantize node, if they are numbers of the bytes' type.
  std::optional<Quantization> quantization(const ir::Node& node, DType dtype) const {
    const auto number = [&](const char* name) { return Graph::number(graph_.arg(node, name)); };
    const auto scale = number("scale"), zero = number("zero_point"), low = number("quant_min"),
               high = number("quant_max");
    if (!is_byte(dtype) || !scale || !zero || !low || !high || !(*scale > 0) || !std::isfinite(*scale))
      return std::nullopt;
    Quantization q{dtype, *scale, 0, 0, 0};
    const auto least = static_cast<double>(least_of(dtype));
    for (const auto& [from, to] : {std::pair(*zero, &q.zero), {*low, &q.low}, {*high, &q.high}}) {
      if (!(from >= least && from <= least + 255) || from != std::trunc(from)) return std::nullopt;
      *to = static_cast<std::int64_t>(from);
    }
    return q.low <= q.high ? std::optional(q) : std::nullopt;
  }

  bool read_once(const ir::Arg& arg) const { return arg.is_value() && graph_.uses(arg.value()) == 1; }

  // Bytes that one node here dequantizes for a single reader.
  struct Bytes {
    ir::Arg q;
    Quantization quantization;
  };
  std::optional<Bytes> dequantized(const ir::Arg& value) const {
    const ir::Node* node = graph_.producer(value, kDequantize);
    if (node == nullptr) return std::nullopt;
    const ir::Arg& q = graph_.arg(*node, "input");
    const auto found = quantization(*node, graph_.tensor(q)->dtype);
    return found ? std::optional(Bytes{q, *found}) : std::nullopt;
  }

  // The node that clamps the value, with its bounds.
  struct Clamp {
    ir::Arg input;
    double low, high;
  };
  std::optional<Clamp> clamped(const ir::Arg& value) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (const ir::Node* node = graph_.producer(value, "aten.relu.default"))
      return Clamp{graph_.arg(*node, "self"), 0, kInfinity};
    const auto bounded = [&](const ir::Node& node, const char* low, const char* high) -> std::optional<Clamp> {
      Clamp clamp{graph_.arg(node, "self"), -kInfinity, kInfinity};
      for (const auto& [name, to] : {std::pair(low, &clamp.low), {high, &clamp.high}}) {
        const ir::Arg& bound = graph_.arg(node, name);
        if (bound.kind == ir::Arg::Kind::none) continue;
        const auto number = Graph::number(bound);
        if (!number || std::isnan(*number)) return std::nullopt;
        *to = *number;
      }
      return clamp.low <= clamp.high ? std::optional(clamp) : std::nullopt;
    };
    if (const ir::Node* node = graph_.producer(value, "aten.hardtanh.default"))
      return bounded(*node, "min_val", "max_val");
    if (const ir::Node* node = graph_.producer(value, "aten.clamp.default")) return bounded(*node, "min", "max");
    return std::nullopt;
  }

  // --- rewriting quantize nodes ---

  void absorb(ir::Node& node) {
    auto to = quantization(node, graph_.output(node).dtype);
    if (!to) return;
    ir::Arg value = graph_.arg(node, "input");
    bool clamps = false;
    while (read_once(value)) {
      const auto clamp = clamped(value);
      if (!clamp || graph_.tensor(clamp->input)->dtype != DType::f32) break;
      to->clamp(to->of(clamp->low), to->of(clamp->high));
      value = clamp->input;
      clamps = true;
    }
    if (!read_once(value)) return;
    if (const ir::Node* conv = graph_.producer(value, kConv)) {
      if (auto args = packed(*conv)) {
        set(*args, "", *to);
        graph_.replace(node, kPacked, std::move(*args));
      }
    } else if (const auto bytes = dequantized(value)) {
      requantize(node, *bytes, *to, clamps);
    } else if (const ir::Node* add = graph_.producer(value, "aten.add.Tensor")) {
      add_residual(node, *add, *to);
    } else if (!clamps) {
      move_view(node, value, *to);
    }
  }

  // Bytes dequantized and quantized again with equal parameters: clamped, or unchanged.
  void requantize(ir::Node& node, const Bytes& bytes, const Quantization& to, bool clamps) {
    if (!bytes.quantization.same_numbers(to)) return;
    const ir::Node* conv = graph_.producer(bytes.q, kPacked);
    if (conv != nullptr && read_once(bytes.q)) {
      const std::string which = graph_.arg(*conv, "residual").kind == ir::Arg::Kind::none ? "" : "sum_";
      Graph::Args args = arguments(*conv);
      for (const char* bound : {"low", "high"}) {
        std::int64_t& byte = at(args, which + bound).i;
        byte = std::clamp(byte, to.low, to.high);
      }
      graph_.replace(node, kPacked, std::move(args));
    } else if (!clamps && is_whole(to)) {
      graph_.replace(node, "aten.alias.default", {{"self", bytes.q}});
    }
  }

  static bool is_whole(const Quantization& q) {
    return q.low == least_of(q.dtype) && q.high == least_of(q.dtype) + 255;
  }

  // A view of bytes that were dequantized for it alone.
  void move_view(ir::Node& node, const ir::Arg& value, const Quantization& to) {
    for (const std::string_view view : kViews) {
      const ir::Node* found = graph_.producer(value, view);
      if (found == nullptr) continue;
      const ir::Arg& self = graph_.arg(*found, "self");
      const auto bytes = dequantized(self);
      if (!bytes || !read_once(self) || !bytes->quantization.same_numbers(to) || !is_whole(to)) return;
      Graph::Args args = arguments(*found);
      at(args, "self") = bytes->q;
      graph_.replace(node, view, std::move(args));
      return;
    }
  }

  // A sum of two dequantized tensors, one of them made by a convolution for it alone.
  void add_residual(ir::Node& node, const ir::Node& add, const Quantization& to) {
    if (Graph::number(graph_.arg(add, "alpha")) != 1) return;
    const ir::Arg operands[2] = {graph_.arg(add, "self"), graph_.arg(add, "other")};
    for (int i = 0; i < 2; ++i) {
      const auto sum = dequantized(operands[i]), other = dequantized(operands[1 - i]);
      if (!sum || !other || !read_once(operands[i]) || !read_once(sum->q)) continue;
      const ir::Node* conv = graph_.producer(sum->q, kPacked);
      if (conv == nullptr || graph_.arg(*conv, "residual").kind != ir::Arg::Kind::none) continue;
      if (sum->quantization.dtype != to.dtype || !same_size(sum->q, other->q)) continue;
      // With another scale the bytes would mean other values than were quantized.
      if (graph_.arg(*conv, "scale").f != sum->quantization.scale ||
          graph_.arg(*conv, "zero").i != sum->quantization.zero)
        continue;
      Graph::Args args = arguments(*conv);
      at(args, "residual") = other->q;
      at(args, "residual_scale") = of_real(other->quantization.scale);
      at(args, "residual_zero") = ir::Arg::of_integer(other->quantization.zero);
      set(args, "sum_", to);
      graph_.replace(node, kPacked, std::move(args));
      return;
    }
  }

  bool same_size(const ir::Arg& a, const ir::Arg& b) const {
    const auto &left = graph_.tensor(a)->dims, &right = graph_.tensor(b)->dims;
    return std::ranges::equal(left, right, [](const ir::Dim& x, const ir::Dim& y) {
      return graft::same_size(x, y) && (x.is_static() || !x.expr.empty());
    });
  }

  // --- arguments ---

  static ir::Arg& at(Graph::Args& args, std::string_view name) {
    return std::ranges::find(args, name, &Graph::Args::value_type::first)->second;
  }

  Graph::Args arguments(const ir::Node& node) const {
    Graph::Args args;
    const std::vector<std::string>& names = graph_.names(node);
    for (std::size_t i = 0; i < names.size(); ++i) args.emplace_back(names[i], node.args[i]);
    return args;
  }

  static void set(Graph::Args& args, const std::string& which, const Quantization& to) {
    at(args, which + "scale") = of_real(to.scale);
    at(args, which + "zero") = ir::Arg::of_integer(to.zero);
    at(args, which + "low") = ir::Arg::of_integer(to.low);
    at(args, which + "high") = ir::Arg::of_integer(to.high);
  }

  // The weight's sizes if the convolution can be packed.
  std::optional<Shape> packable(const ir::Node& node) const {
    const ir::Arg &weight = graph_.arg(node, "weight"), &scale = graph_.arg(node, "weight_scale"),
                  &zero = graph_.arg(node, "weight_zero"), &bias = graph_.arg(node, "bias");
    if (!graph_.is_weight(weight)) return std::nullopt;
    Shape shape;
    for (const ir::Dim& dim : graph_.tensor(weight)->dims) {
      if (!dim.is_static() || dim.min < 1) return std::nullopt;
      shape.push_back(dim.min);
    }
    const ir::Arg& groups = graph_.arg(node, "groups");
    if (groups.kind != ir::Arg::Kind::integer || groups.i < 1 || shape[0] % groups.i != 0) return std::nullopt;
    const Shape whole = with_three_spatial(shape);
    if (!is_depthwise(whole, groups.i) && shape[0] / groups.i < kLeastChannels) return std::nullopt;
    if (shape.numel() / shape[0] > kLongestByteSum) return std::nullopt;
    // Scales and bias per channel, or one scale for all.
    const auto of_channels = [&](const ir::Arg& arg) {
      const ir::Value* value = graph_.tensor(arg);
      if (!graph_.is_weight(arg) || value->dtype != DType::f32 || value->rank() > 1) return false;
      return value->rank() == 0 || (value->dims[0].is_static() && value->dims[0].min == shape[0]);
    };
    if (!Graph::number(scale) && !of_channels(scale)) return std::nullopt;
    if (bias.kind != ir::Arg::Kind::none && (!of_channels(bias) || graph_.tensor(bias)->rank() != 1))
      return std::nullopt;
    if (zero.kind != ir::Arg::Kind::none && Graph::number(zero) != 0 && uniform(zero) != 0) return std::nullopt;
    return shape;
  }

  std::optional<double> uniform(const ir::Arg& arg) const {
    for (const ir::Input& input : method_.inputs)
      if (arg.is_value() && input.kind == ir::InputKind::weight && input.value == arg.value())
        return uniform_(input.index);
    return std::nullopt;
  }

  // The arguments of a packed convolution that writes f32.
  std::optional<Graph::Args> packed(const ir::Node& node) {
    const auto shape = packable(node);
    const ir::Arg &input = graph_.arg(node, "input"), &zero = graph_.arg(node, "input_zero");
    const auto scale = Graph::number(graph_.arg(node, "input_scale"));
    const auto zero_point = zero.kind == ir::Arg::Kind::none ? 0 : Graph::number(zero);
    if (!shape || !scale || !zero_point) return std::nullopt;
    const auto least = static_cast<double>(least_of(graph_.tensor(input)->dtype));
    if (!(*zero_point >= least && *zero_point <= least + 255) || *zero_point != std::trunc(*zero_point))
      return std::nullopt;
    ConvAttrs conv;
    conv.groups = graph_.arg(node, "groups").i;
    for (const auto& [name, to] : {std::pair("stride", conv.stride), {"dilation", conv.dilation}}) {
      const auto given = Graph::integers(graph_.arg(node, name));
      if (!given || given->empty()) return std::nullopt;
      to[2] = given->back();
    }
    const std::int64_t bytes = packed_quantized_conv_bytes(with_three_spatial(*shape), conv);
    const ir::Arg& bias = graph_.arg(node, "bias");
    const std::int64_t per_channel = bias.kind == ir::Arg::Kind::none ? 4 : 8;
    if (!is_kept_at_load(shape->numel() + (*shape)[0] * per_channel, bytes)) return std::nullopt;

    ir::Arg sizes;
    sizes.kind = ir::Arg::Kind::list;
    for (const std::int64_t size : shape->sizes()) sizes.items.push_back(ir::Arg::of_integer(size));
    const auto unsigned_zero = static_cast<std::int64_t>(*zero_point - least);
    const ir::Arg weight = graph_.add(node.name + " packed", "graft.pack_quantized_conv",
                                      {{"weight", graph_.arg(node, "weight")},
                                       {"weight_scale", graph_.arg(node, "weight_scale")},
                                       {"bias", bias},
                                       {"input_scale", of_real(*scale)},
                                       {"input_zero", ir::Arg::of_integer(unsigned_zero)},
                                       {"stride", graph_.arg(node, "stride")},
                                       {"dilation", graph_.arg(node, "dilation")},
                                       {"groups", graph_.arg(node, "groups")}},
                                      DType::u8, {{bytes, bytes, {}}});
    Graph::Args args = {{"input", input},
                        {"input_zero", ir::Arg::of_integer(static_cast<std::int64_t>(*zero_point))},
                        {"weight", weight},
                        {"weight_size", sizes},
                        {"bias", kNone}};
    for (const char* name : {"stride", "padding", "dilation", "transposed", "output_padding", "groups"})
      args.emplace_back(name, graph_.arg(node, name));
    for (const char* name : {"scale", "zero", "low", "high", "residual", "residual_scale", "residual_zero", "sum_scale",
                             "sum_zero", "sum_low", "sum_high"})
      args.emplace_back(name, kNone);
    return args;
  }

  ir::Method& method_;
  Graph graph_;
  const UniformWeight& uniform_;
};

}  // namespace

std::size_t pack_quantized_convolutions(ir::Program& program, const UniformWeight& uniform) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += Packer(program, method, uniform).run();
  drop_dead_nodes(program);
  return count;
}

}  // namespace graft
