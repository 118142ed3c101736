#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "kernel/conv/packed_conv.h"
#include "kernel/matmul/packed_pairs.h"
#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

constexpr std::string_view kLinear = "aten.linear.default";

// Fewer outputs leave most of a panel empty.
constexpr std::int64_t kLeastOutputs = 8;

// If the weights of f32 linear layers exceed this in total, they are not packed: a copy of all of them would cost more
// memory and load time than faster products with many rows give back.
constexpr std::int64_t kMostBytes = std::int64_t{512} << 20;

class LinearPacker {
 public:
  LinearPacker(ir::Program& program, ir::Method& method, bool in_bf16, const OtherStages& others)
      : program_(program), method_(method), graph_(program, method), in_bf16_(in_bf16), others_(others) {
    for (const ir::Input& input : method.inputs)
      if (input.kind == ir::InputKind::weight) weight_of_.emplace(input.value, input.index);
  }

  // Returns the number of nodes that it rewrote.
  std::size_t run() {
    find_packable();
    std::int64_t bytes = others_.linear_bytes;
    for (std::uint32_t i = 0; i < packable_.size(); ++i)
      if (packable_[i]) bytes += bytes_of(i);
    if (bytes > kMostBytes) return 0;
    for (ir::Node& node : graph_.nodes())
      if (graph_.is(node, kLinear)) pack(node);
    graph_.prepend_added();
    return graph_.rewrites();
  }

 private:
  static bool is_static(const ir::Value& value) {
    return std::ranges::all_of(value.dims, [](const ir::Dim& dim) { return dim.is_static() && dim.min > 0; });
  }

  // The packed weight that the node may read.
  std::optional<std::uint32_t> weight_of(const ir::Node& node) const {
    if (!graph_.is(node, kLinear)) return std::nullopt;
    const ir::Arg &weight = graph_.arg(node, "weight"), &bias = graph_.arg(node, "bias");
    const auto found = weight.is_value() ? weight_of_.find(weight.value()) : weight_of_.end();
    const ir::Value* x = graph_.tensor(graph_.arg(node, "input"));
    if (found == weight_of_.end() || x == nullptr || x->dtype != DType::f32) return std::nullopt;
    const ir::Weight& stored = program_.weights[found->second];
    const bool in_bf16 = in_bf16_ && stored.dtype == DType::bf16;  // else twice the memory
    if (stored.storage != ir::Storage::plain || !(stored.dtype == DType::f32 || in_bf16)) return std::nullopt;
    const ir::Value& w = *graph_.tensor(weight);
    if (w.rank() != 2 || !is_static(w) || w.dims[0].min < kLeastOutputs) return std::nullopt;
    if (bias.kind != ir::Arg::Kind::none) {
      const ir::Value* b = graph_.tensor(bias);
      if (b == nullptr || b->dtype != DType::f32 || b->rank() != 1 || !is_static(*b) || b->dims[0].min != w.dims[0].min)
        return std::nullopt;
    }
    // With so few rows, dot products with the weight's own rows already run at memory bandwidth.
    const std::optional<std::int64_t> rows = rows_of(*x);
    return rows && *rows <= simd::kMaxDotRows ? std::nullopt : std::optional(found->second);
  }

  // Rows of the input of a layer, where that is known.
  static std::optional<std::int64_t> rows_of(const ir::Value& x) {
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < x.rank(); ++d) {
      const ir::Dim& dim = x.dims[static_cast<std::size_t>(d)];
      if (!dim.is_static()) return std::nullopt;
      rows *= dim.min;
    }
    return rows;
  }

  // Weights that only such nodes read: the original rows need not be kept.
  void find_packable() {
    packable_.assign(program_.weights.size(), false);
    std::vector<bool> other(program_.weights.size(), false);
    for (const ir::Node& node : method_.nodes) {
      const auto weight = weight_of(node);
      if (weight) packable_[*weight] = true;
      int reads = 0;
      ir::for_each_value(node, [&](ir::ValueId id) {
        const auto found = weight_of_.find(id);
        if (found == weight_of_.end()) return;
        if (weight == found->second && ++reads == 1) return;
        other[found->second] = true;
      });
    }
    for (const ir::Output& output : method_.outputs)
      ir::for_each_value(output.arg, [&](ir::ValueId id) {
        if (const auto found = weight_of_.find(id); found != weight_of_.end()) other[found->second] = true;
      });
    for (const ir::State& state : program_.states)
      if (state.initial >= 0) other[static_cast<std::size_t>(state.initial)] = true;
    for (std::size_t i = 0; i < other.size(); ++i)
      other[i] = other[i] || others_.read_so.contains(program_.weights[i].key);
    for (std::size_t i = 0; i < other.size(); ++i) packable_[i] = packable_[i] && !other[i];
  }

  // Of the copy, but for what fills the last panel up.
  std::int64_t bytes_of(std::uint32_t weight) const {
    const std::int64_t words = in_bf16_ ? words_of(weight) : program_.weights[weight].shape.numel();
    return words * static_cast<std::int64_t>(sizeof(float));
  }

  std::int64_t words_of(std::uint32_t weight) const {
    const Shape& shape = program_.weights[weight].shape;
    return in_bf16_ ? packed_pair_words(shape[0], shape[1], *simd::packed_pairs())
                    : packed_conv_floats({shape[0], shape[1], 1, 1, 1}, 1);
  }

  void pack(ir::Node& node) {
    const auto weight = weight_of(node);
    if (!weight || !packable_[*weight]) return;
    const ir::Arg rows = graph_.arg(node, "weight");
    const ir::Value& w = *graph_.tensor(rows);
    const ir::Arg size = list_of({w.dims[0].min, w.dims[1].min});
    const ir::Arg in_bf16 = ir::Arg::of_integer(in_bf16_ ? 1 : 0);
    if (!packed_.contains(*weight)) {
      const std::int64_t words = words_of(*weight);
      packed_[*weight] = graph_.add(w.name + " packed", "graft.pack_linear", {{"weight", rows}, {"in_bf16", in_bf16}},
                                    DType::f32, {{words, words, {}}});
    }
    const bool may_be_few = in_bf16_ && !rows_of(*graph_.tensor(graph_.arg(node, "input")));
    graph_.replace(node, "graft.packed_linear",
                   {{"input", graph_.arg(node, "input")},
                    {"weight", packed_[*weight]},
                    {"weight_size", size},
                    {"bias", graph_.arg(node, "bias")},
                    {"in_bf16", in_bf16},
                    {"rows_weight", may_be_few ? rows : ir::Arg()}});
  }

  static ir::Arg list_of(std::initializer_list<std::int64_t> sizes) {
    ir::Arg list;
    list.kind = ir::Arg::Kind::list;
    for (const std::int64_t size : sizes) list.items.push_back(ir::Arg::of_integer(size));
    return list;
  }

  ir::Program& program_;
  ir::Method& method_;
  Graph graph_;
  const bool in_bf16_;
  const OtherStages& others_;
  std::map<ir::ValueId, std::uint32_t> weight_of_;
  std::vector<bool> packable_;               // by weight
  std::map<std::uint32_t, ir::Arg> packed_;  // by weight
};

}  // namespace

std::size_t pack_linear_layers(ir::Program& program, bool in_bf16, const OtherStages& others) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += LinearPacker(program, method, in_bf16, others).run();
  return count;
}

}  // namespace graft
