#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

// Half of the last dimension of x, [from, to).
bool is_half(const Graph& graph, const ir::Arg& value, const ir::Arg& x, std::int64_t from, std::int64_t to) {
  const ir::Node* slice = graph.producer(value, "aten.slice.Tensor");
  if (!slice) return false;
  const ir::Arg& self = graph.arg(*slice, "self");
  const ir::Value* whole = graph.tensor(x);
  const auto dim = Graph::number(graph.arg(*slice, "dim"));
  if (!self.is_value() || self.i != x.i || (dim != -1 && dim != whole->rank() - 1)) return false;
  if (Graph::number(graph.arg(*slice, "step")) != 1) return false;
  const ir::Arg &start = graph.arg(*slice, "start"), &end = graph.arg(*slice, "end");
  const double size = static_cast<double>(whole->dims.back().min);
  const double first = start.kind == ir::Arg::Kind::none ? 0 : Graph::number(start).value_or(-1);
  const double last = end.kind == ir::Arg::Kind::none ? size : std::min(Graph::number(end).value_or(-1), size);
  return first == static_cast<double>(from) && last == static_cast<double>(to);
}

// cat(-x[d/2:], x[:d/2], -1)
bool is_rotated(const Graph& graph, const ir::Arg& value, const ir::Arg& x) {
  const ir::Node* cat = graph.producer(value, "aten.cat.default");
  if (!cat) return false;
  const ir::Arg& parts = graph.arg(*cat, "tensors");
  const int rank = graph.tensor(x)->rank();
  const auto dim = Graph::number(graph.arg(*cat, "dim"));
  if (parts.items.size() != 2 || (dim != -1 && dim != rank - 1)) return false;
  const ir::Node* negative = graph.producer(parts.items[0], "aten.neg.default");
  const std::int64_t size = graph.tensor(x)->dims.back().min, half = size / 2;
  return negative && is_half(graph, graph.arg(*negative, "self"), x, half, size) &&
         is_half(graph, parts.items[1], x, 0, half);
}

bool fits(const ir::Value* factor, const ir::Value& x) {
  if (factor == nullptr || factor->dtype != DType::f32 || factor->rank() != x.rank()) return false;
  return factor->dims.back().is_static() && factor->dims.back().min == x.dims.back().min;
}

struct Factors {
  ir::Arg left, right;
};

std::optional<Factors> product(const Graph& graph, const ir::Arg& value) {
  const ir::Node* node = graph.producer(value, "aten.mul.Tensor");
  if (!node) return std::nullopt;
  return Factors{graph.arg(*node, "self"), graph.arg(*node, "other")};
}

struct Rope {
  ir::Arg x, cos, sin;
};

std::optional<Rope> find_rope(const Graph& graph, const ir::Node& node) {
  if (!graph.is(node, "aten.add.Tensor") || Graph::number(graph.arg(node, "alpha")) != 1) return std::nullopt;
  const auto plain = product(graph, graph.arg(node, "self"));
  const auto turned = product(graph, graph.arg(node, "other"));
  if (!plain || !turned) return std::nullopt;
  for (const auto& [x, cos] : {std::pair{plain->left, plain->right}, std::pair{plain->right, plain->left}}) {
    const ir::Value* value = graph.tensor(x);
    if (value == nullptr || value->dtype != DType::f32 || value->rank() != 4) continue;
    if (!same_sizes(*value, graph.output(node))) continue;  // a factor would broadcast it
    const ir::Dim& last = value->dims.back();
    if (!last.is_static() || last.min < 2 || last.min % 2 != 0 || !fits(graph.tensor(cos), *value)) continue;
    for (const auto& [rotated, sin] :
         {std::pair{turned->left, turned->right}, std::pair{turned->right, turned->left}}) {
      if (!is_rotated(graph, rotated, x) || !fits(graph.tensor(sin), *value)) continue;
      return Rope{x, cos, sin};
    }
  }
  return std::nullopt;
}

constexpr int kRepeated = -1;

// A tensor whose elements are those of `base`: dimension d of it is dimension axes[d] of the base, or repeats it.
struct Source {
  ir::Arg base;
  std::vector<int> axes;
};

// Dimensions of `inner`, by what is made of them: `outer` names those of a value with `missing` dimensions before them.
std::vector<int> through(const std::vector<int>& outer, const std::vector<int>& inner, int missing = 0) {
  std::vector<int> out;
  for (const int axis : outer)
    out.push_back(axis == kRepeated || axis < missing ? kRepeated : inner[static_cast<std::size_t>(axis - missing)]);
  return out;
}

// Through views that neither join nor divide dimensions, and conversions to f32.
Source source_of(const Graph& graph, ir::Arg value) {
  std::vector<int> axes(static_cast<std::size_t>(graph.tensor(value)->rank()));
  std::iota(axes.begin(), axes.end(), 0);
  const auto wrapped = [](const ir::Arg& dim, int rank) {
    const int given = static_cast<int>(Graph::number(dim).value_or(0));
    return given < 0 ? given + rank : given;
  };
  while (true) {
    // Where dimension d of this value is in the one it is made of.
    std::vector<int> from(static_cast<std::size_t>(graph.tensor(value)->rank()));
    std::iota(from.begin(), from.end(), 0);
    const ir::Node* node = nullptr;
    if ((node = graph.producer(value, "aten.to.dtype")) || (node = graph.producer(value, "aten.to.device"))) {
      if (graph.output(*node).dtype != DType::f32) return {value, axes};
    } else if ((node = graph.producer(value, "aten.unsqueeze.default"))) {
      const int at = wrapped(graph.arg(*node, "dim"), static_cast<int>(from.size()));
      from.insert(from.begin() + at, kRepeated);
      from.pop_back();
    } else if ((node = graph.producer(value, "aten.transpose.int"))) {
      const int rank = static_cast<int>(from.size());
      std::swap(from[static_cast<std::size_t>(wrapped(graph.arg(*node, "dim0"), rank))],
                from[static_cast<std::size_t>(wrapped(graph.arg(*node, "dim1"), rank))]);
    } else if ((node = graph.producer(value, "aten.expand.default"))) {
      const ir::Value* narrow = graph.tensor(graph.arg(*node, "self"));
      const ir::Value& wide = graph.output(*node);
      if (narrow->rank() != wide.rank()) return {value, axes};
      for (int d = 0; d < wide.rank(); ++d)
        if (!same_size(narrow->dims[static_cast<std::size_t>(d)], wide.dims[static_cast<std::size_t>(d)]))
          from[static_cast<std::size_t>(d)] = kRepeated;
    } else {
      return {value, axes};
    }
    value = graph.arg(*node, "self");
    axes = through(axes, from);
  }
}

struct Angles {
  ir::Arg position;   // integers [B, T] or [T]
  ir::Arg frequency;  // a weight, f32 [D / 2]
  double scale = 1;   // of cosines and sines
};

// What a factor [B or 1, 1, T, D] of a rope is made of: scale * f(cat(a, a)), a = position * frequency.
std::optional<Angles> angles_of(const Graph& graph, const ir::Arg& factor, std::string_view function) {
  Angles out;
  Source all = source_of(graph, factor);
  if (const ir::Node* scaled = graph.producer(all.base, "aten.mul.Tensor")) {
    const auto scale = Graph::number(graph.arg(*scaled, "other"));
    if (!scale) return std::nullopt;
    out.scale = *scale;
    const Source inner = source_of(graph, graph.arg(*scaled, "self"));
    all = {inner.base, through(all.axes, inner.axes)};
  }
  const ir::Node* applied = graph.producer(all.base, function);
  if (!applied) return std::nullopt;
  const ir::Node* cat = graph.producer(graph.arg(*applied, "self"), "aten.cat.default");
  if (!cat) return std::nullopt;
  const ir::Arg& parts = graph.arg(*cat, "tensors");
  const int rank = graph.output(*cat).rank();
  const auto dim = Graph::number(graph.arg(*cat, "dim"));
  if (parts.items.size() != 2 || parts.items[0].i != parts.items[1].i || (dim != -1 && dim != rank - 1) || rank != 3 ||
      all.axes != std::vector<int>{0, kRepeated, 1, 2})
    return std::nullopt;
  // [B or 1, T, D / 2]
  const Source half = source_of(graph, parts.items[0]);
  const ir::Node* product = graph.producer(half.base, "aten.mul.Tensor");
  if (!product) return std::nullopt;
  // Dimensions of an operand by those of the halves.
  const auto operand = [&](std::string_view name) -> std::optional<Source> {
    const ir::Arg& arg = graph.arg(*product, name);
    const ir::Value* value = graph.tensor(arg);
    if (!value) return std::nullopt;
    const int missing = graph.output(*product).rank() - value->rank();
    const Source found = source_of(graph, arg);
    return Source{found.base, through(half.axes, found.axes, missing)};
  };
  const std::optional<Source> sides[] = {operand("self"), operand("other")};
  if (!sides[0] || !sides[1]) return std::nullopt;
  for (const int i : {0, 1}) {
    const Source &position = *sides[i], &frequency = *sides[1 - i];
    const ir::Value *p = graph.tensor(position.base), *f = graph.tensor(frequency.base);
    const auto repeats = [](const ir::Value& value, int axis) {
      return axis == kRepeated || (value.dims[static_cast<std::size_t>(axis)].is_static() &&
                                   value.dims[static_cast<std::size_t>(axis)].min == 1);
    };
    if ((p->dtype != DType::i64 && p->dtype != DType::i32) || f->dtype != DType::f32) continue;
    if (!graph.is_weight(frequency.base) || f->rank() != 1 || frequency.axes.back() != 0 ||
        frequency.axes[0] != kRepeated || frequency.axes[1] != kRepeated)
      continue;
    const bool whole = p->rank() == 2 && position.axes[0] == 0 && position.axes[1] == 1;
    const bool row = p->rank() == 1 && position.axes[0] == kRepeated && position.axes[1] == 0;
    if ((!whole && !row) || !repeats(*p, position.axes[2])) continue;
    out.position = position.base;
    out.frequency = frequency.base;
    return out;
  }
  return std::nullopt;
}

// Runs rewrite(graph, node, rope) on every rotary embedding; each graph has a rewrite of its own.
template <typename Rewrite>
std::size_t rewrite_ropes(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) {
    Graph graph(program, method);
    Rewrite rewrite;
    for (ir::Node& node : graph.nodes())
      if (const auto rope = find_rope(graph, node)) rewrite(graph, node, *rope);
    graph.prepend_added();
    count += graph.rewrites();
  }
  drop_dead_nodes(program);
  return count;
}

struct ToRope {
  void operator()(Graph& graph, ir::Node& node, const Rope& rope) {
    graph.replace(node, "graft.rope", {{"self", rope.x}, {"cos", rope.cos}, {"sin", rope.sin}});
  }
};

class ToRopeAt {
 public:
  void operator()(Graph& graph, ir::Node& node, const Rope& rope) {
    const auto cos = angles_of(graph, rope.cos, "aten.cos.default");
    const auto sin = angles_of(graph, rope.sin, "aten.sin.default");
    if (!cos || !sin || cos->position.i != sin->position.i || cos->frequency.i != sin->frequency.i ||
        cos->scale != sin->scale)
      return;
    const ir::Arg& frequency = cos->frequency;
    if (!periods_.contains(frequency.i))
      periods_[frequency.i] = graph.add(graph.output(node).name + " periods", "aten.reciprocal.default",
                                        {{"self", frequency}}, DType::f32, graph.tensor(frequency)->dims);
    graph.replace(node, "graft.rope_at",
                  {{"self", rope.x},
                   {"position", cos->position},
                   {"frequency", frequency},
                   {"period", periods_[frequency.i]},
                   {"scale", ir::Arg::of_real(cos->scale)}});
  }

 private:
  std::map<std::int64_t, ir::Arg> periods_;  // by value of the frequencies
};

}  // namespace

std::size_t fuse_rope(ir::Program& program) { return rewrite_ropes<ToRope>(program); }

std::size_t rope_at_positions(ir::Program& program) { return rewrite_ropes<ToRopeAt>(program); }

}  // namespace graft
