#include "session/padding.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "ggml.h"
#include "session/call_values.h"

namespace graft {
namespace {

constexpr std::string_view kComputedPositions =
    "the tokens' positions in the cache are computed in the method; it must take them as an input, where those of "
    "padding are -1 (DecoderOptions::buckets, graft.TextGenerator pad prompts of language models)";

// Of a method that cannot be padded while another one of the program may.
struct ComputesPositions : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

std::string label(const Buckets& buckets) { return str("buckets of '", buckets.dimension, "'"); }

void check_sizes(const Buckets& buckets) {
  GRAFT_CHECK(InvalidArgument, !buckets.sizes.empty(), label(buckets), " must name at least one size");
  for (std::size_t i = 0; i < buckets.sizes.size(); ++i) {
    GRAFT_CHECK(InvalidArgument, buckets.sizes[i] > 0, label(buckets), " must be positive, got ", buckets.sizes[i]);
    GRAFT_CHECK(InvalidArgument, i == 0 || buckets.sizes[i - 1] < buckets.sizes[i], label(buckets),
                " must ascend, got ", buckets.sizes[i - 1], " before ", buckets.sizes[i]);
  }
}

// The expression that a method has for the dimension; empty when it has none. "input.1" names one of an input.
std::string expression_of(const Buckets& buckets, const MethodInfo& info) {
  for (const ValueInfo& input : info.inputs)
    for (std::size_t d = 0; d < input.dims.size(); ++d) {
      const DimInfo& dim = input.dims[d];
      const bool named = buckets.dimension == str(input.name, ".", d);
      GRAFT_CHECK(InvalidArgument, !named || dim.min != dim.max, label(buckets), ": method '", info.name,
                  "' fixes that size to ", dim.min);
      if (named || (dim.min != dim.max && buckets.dimension == dim.expr)) return dim.expr;
    }
  return {};
}

// Whether an expression ("2*s77 + 1") has the symbol in it.
bool mentions(std::string_view expression, std::string_view symbol) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = expression.find(symbol); at != std::string_view::npos; at = expression.find(symbol, at + 1)) {
    const std::size_t end = at + symbol.size();
    if ((at == 0 || !is_word(expression[at - 1])) && (end == expression.size() || !is_word(expression[end])))
      return true;
  }
  return false;
}

// One element of what an input is padded with.
std::vector<std::byte> padding_of(DType dtype, double number) {
  std::vector<std::byte> out(byte_size(dtype));
  const auto put = [&](auto value) { std::memcpy(out.data(), &value, sizeof(value)); };
  const auto integer = static_cast<std::int64_t>(number);
  switch (dtype) {
    case DType::f32:
      put(static_cast<float>(number));
      break;
    case DType::f16:
      put(ggml_fp32_to_fp16(static_cast<float>(number)));
      break;
    case DType::bf16:
      put(ggml_fp32_to_bf16(static_cast<float>(number)));
      break;
    case DType::f64:
      put(number);
      break;
    case DType::i8:
    case DType::u8:
      put(static_cast<std::uint8_t>(integer));
      break;
    case DType::i16:
      put(static_cast<std::int16_t>(integer));
      break;
    case DType::i32:
      put(static_cast<std::int32_t>(integer));
      break;
    case DType::i64:
      put(integer);
      break;
    case DType::b8:
      put(static_cast<std::uint8_t>(number != 0));
      break;
  }
  return out;
}

// Copies the leading corner of size `box` from one contiguous tensor to another.
void copy_corner(const std::byte* from, const Shape& from_shape, std::byte* to, const Shape& to_shape, const Shape& box,
                 std::size_t element, int dim = 0) {
  if (dim == box.rank()) {
    std::memcpy(to, from, element);
    return;
  }
  std::size_t from_step = element, to_step = element;
  for (int d = dim + 1; d < box.rank(); ++d) {
    from_step *= static_cast<std::size_t>(from_shape[d]);
    to_step *= static_cast<std::size_t>(to_shape[d]);
  }
  if (dim + 1 == box.rank()) {
    std::memcpy(to, from, static_cast<std::size_t>(box[dim]) * element);
    return;
  }
  for (std::int64_t i = 0; i < box[dim]; ++i, from += from_step, to += to_step)
    copy_corner(from, from_shape, to, to_shape, box, element, dim + 1);
}

}  // namespace

Padding::Padding(const ProgramImpl& program, const std::vector<Buckets>& buckets, std::shared_ptr<BlockPool> blocks,
                 Counters& counters)
    : program_(program), buckets_(buckets), blocks_(std::move(blocks)), counters_(counters) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    check_sizes(buckets_[b]);
    bool found = false;
    std::optional<ComputesPositions> refused;
    for (std::uint32_t m = 0; m < program_.public_methods; ++m) {
      const std::string expression = expression_of(buckets_[b], program_.methods[m].info);
      if (expression.empty()) continue;
      const std::size_t before = dims_.size();
      try {
        add(b, m, expression);
        found = true;
      } catch (const ComputesPositions& e) {
        dims_.resize(before);
        if (!refused) refused = e;
      }
    }
    // A package of a language model has `step`, which takes the positions, and `forward` for ExecuTorch's runner, which
    // does not: the latter runs at the sizes that it is given.
    if (!found && refused) throw *refused;
    GRAFT_CHECK(InvalidArgument, found, label(buckets_[b]),
                ": no input has a dimension of that name that is not fixed");
    for (const auto& [name, number] : buckets_[b].padding) {
      const auto has_input = [&input = name](const LoadedMethod& method) {
        return std::ranges::any_of(method.info.inputs, [&](const ValueInfo& info) { return info.name == input; });
      };
      GRAFT_CHECK(InvalidArgument, std::ranges::any_of(program_.methods, has_input), label(buckets_[b]), ": no input '",
                  name, "' to pad with ", number);
    }
  }
}

void Padding::add(std::size_t buckets, std::uint32_t index, const std::string& expression) {
  const LoadedMethod& method = program_.methods[index];
  const std::string owner = str(label(buckets_[buckets]), ", method '", method.info.name, "': ");
  for (const Dim& other : dims_) {
    if (other.method != index) continue;
    const auto [input, d] = other.inputs[0];
    GRAFT_CHECK(InvalidArgument, method.info.inputs[input].dims[static_cast<std::size_t>(d)].expr != expression, owner,
                "the dimension has buckets already");
  }
  Dim dim;
  dim.method = index;
  dim.buckets = buckets;
  dim.left = has_cache(index);
  add_inputs(dim, expression, owner, /*whole=*/true);
  for (const auto& [i, d] : dim.inputs)
    for (const std::int64_t size : buckets_[buckets].sizes) {
      const DimInfo& info = method.info.inputs[i].dims[static_cast<std::size_t>(d)];
      GRAFT_CHECK(InvalidArgument, size >= info.min && size <= info.max, owner, "sizes must be in ", info.min, "..",
                  info.max, ", got ", size);
    }
  add_outputs(dim, expression, owner, /*whole=*/true);
  if (dim.left) add_cache(dim, expression, owner);
  dims_.push_back(std::move(dim));
  add_steps(dims_.size() - 1, method, expression, owner);
}

void Padding::add_steps(std::size_t whole, const LoadedMethod& method, const std::string& expression,
                        const std::string& owner) {
  std::map<ir::ValueId, std::string> whole_only;  // values that cannot be cut back, and their size
  std::set<ir::ValueId> tokens;                   // values that are padded on their left
  const auto note = [&](ir::ValueId id, const ValueInfo& value) {
    for (const DimInfo& info : value.dims) {
      if (info.min == info.max || !mentions(info.expr, expression)) continue;
      if (dims_[whole].left) tokens.insert(id);
      if (info.expr != expression) whole_only[id] = info.expr;
    }
  };
  for (const ir::Input& input : method.signature.inputs) note(input.value, method.info.inputs[input.index]);
  for (const Step& step : method.steps) {
    // What runs between plans has no padding to hand on.
    if (step.kind == Step::Kind::host) {
      const std::string node = str(owner, "node ", step.node.name, ", which runs between segments, ");
      for (const ir::Value& result : step.results)
        for (const ir::Dim& dim : result.dims)
          GRAFT_CHECK(InvalidArgument, !mentions(dim.expr, expression), node, "gives ", result.str(),
                      ", which cannot be padded");
      ir::for_each_value(step.node, [&](ir::ValueId id) {
        const auto found = whole_only.find(id);
        GRAFT_CHECK(InvalidArgument, found == whole_only.end(), node, "takes a value of size '", found->second,
                    "', which cannot be cut back");
        GRAFT_CHECK(InvalidArgument, !tokens.contains(id), node,
                    "takes values of all tokens; over a cache they are padded on their left, and what it finds would "
                    "count from another token");
      });
    }
    for (const std::uint32_t part : step.parts) {
      const LoadedMethod& loaded = program_.methods[part];
      const std::string part_owner = str(owner, "segment '", loaded.info.name, "': ");
      Dim dim;
      dim.method = part;
      dim.buckets = dims_[whole].buckets;
      dim.left = dims_[whole].left;
      add_inputs(dim, expression, part_owner, /*whole=*/false);
      add_outputs(dim, expression, part_owner, /*whole=*/false);
      if (dim.left) add_cache(dim, expression, part_owner);
      for (const std::size_t position : dim.positions) {
        const ir::Arg& given = step.inputs[position];
        const auto input = std::ranges::find_if(method.signature.inputs, [&](const ir::Input& candidate) {
          return given.is_value() && candidate.value == given.value();
        });
        GRAFT_CHECK(ComputesPositions, input != method.signature.inputs.end(), part_owner, kComputedPositions);
        dims_[whole].positions.push_back(input->index);
      }
      dims_.push_back(std::move(dim));
      const bool gives = step.kind != Step::Kind::loop || part == step.parts[1];  // a loop's condition does not
      for (std::size_t o = 0; gives && o < step.outputs.size(); ++o) note(step.outputs[o], loaded.info.outputs[o]);
      add_steps(whole, loaded, expression, owner);
    }
  }
}

bool Padding::has_cache(std::uint32_t method) const {
  const LoadedMethod& whole = program_.methods[method];
  return std::ranges::any_of(
      program_.methods, [&](const LoadedMethod& part) { return part.source == whole.source && part.has_kv_cache; });
}

void Padding::add_cache(Dim& dim, const std::string& expression, const std::string& owner) const {
  const std::shared_ptr<const ir::Program> graph = program_.graph(dim.method);
  const ir::Method& method = graph->methods[0];
  const auto input_of = [&](const ir::Arg& arg) -> const ir::Input* {
    const auto input = std::ranges::find_if(method.inputs, [&](const ir::Input& candidate) {
      return arg.is_value() && candidate.value == arg.value() && candidate.kind == ir::InputKind::user;
    });
    return input == method.inputs.end() ? nullptr : &*input;
  };
  const auto is_padded = [&](ir::ValueId id, std::size_t d) {
    const std::vector<ir::Dim>& dims = method.values[id].dims;
    return d < dims.size() && !dims[d].is_static() && dims[d].expr == expression;
  };
  for (const ir::Node& node : method.nodes) {
    const ir::Op& op = graph->op_of(node);
    GRAFT_CHECK(InvalidArgument, op.target != "graft.source_positions", owner,
                "it fills the cache of an encoder, which would keep what was padded");
    if (op.target == "graft.cache_positions") {
      const ir::Input* input = input_of(node.args[0]);
      GRAFT_CHECK(ComputesPositions, input, owner, "node ", node.name, ": ", kComputedPositions);
      GRAFT_CHECK(InvalidArgument, is_padded(input->value, 1), owner, "it is not the tokens' dimension of '",
                  method.values[input->value].name,
                  "', their positions in the cache; no other dimension of a method with a cache can be padded");
      dim.positions.push_back(input->index);
    }
    // x[:, i] and index_select: padding before the tokens moves what the indices mean.
    if (op.target != "aten.index.Tensor" && op.target != "aten.index_select.default") continue;
    if (!node.args[0].is_value()) continue;
    const bool select = op.target == "aten.index_select.default";
    const std::span<const ir::Arg> indices = select ? std::span(&node.args[2], 1) : std::span(node.args[1].items);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const ir::Input* input = input_of(indices[i]);
      if (input && is_padded(node.args[0].value(), select ? static_cast<std::size_t>(node.args[1].i) : i) &&
          std::ranges::find(dim.indices, input->index) == dim.indices.end())
        dim.indices.push_back(input->index);
    }
  }
}

void Padding::add_inputs(Dim& dim, const std::string& expression, const std::string& owner, bool whole) const {
  const std::vector<ValueInfo>& inputs = program_.methods[dim.method].info.inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (std::size_t d = 0; d < inputs[i].dims.size(); ++d) {
      const DimInfo& info = inputs[i].dims[d];
      if (info.min == info.max) continue;
      GRAFT_CHECK(InvalidArgument, !whole || info.expr == expression || !mentions(info.expr, expression), owner,
                  "input ", i, " has size '", info.expr, "', which cannot be padded alike");
      if (info.expr == expression) dim.inputs.emplace_back(i, static_cast<int>(d));
    }
}

void Padding::add_outputs(Dim& dim, const std::string& expression, const std::string& owner, bool whole) const {
  const LoadedMethod& method = program_.methods[dim.method];
  for (std::size_t o = 0; o < method.info.outputs.size(); ++o)
    for (std::size_t d = 0; d < method.info.outputs[o].dims.size(); ++d) {
      const std::string& expr = method.info.outputs[o].dims[d].expr;
      if (expr == expression) dim.outputs.emplace_back(o, static_cast<int>(d));
      GRAFT_CHECK(InvalidArgument, !whole || expr == expression || !mentions(expr, expression), owner, "output ", o,
                  " has size '", expr, "', which cannot be cut back");
    }
  const std::shared_ptr<const ir::Program> graph = program_.graph(dim.method);
  const auto is_cache = [&](const ir::Output& output) {
    return output.kind == ir::OutputKind::state_mutation && graph->states[output.index].kind != ir::StateKind::plain;
  };
  for (const ir::Output& output : graph->methods[0].outputs)
    GRAFT_CHECK(InvalidArgument, output.kind == ir::OutputKind::user || is_cache(output), owner,
                "it writes states or inputs, which would keep what was padded");
}

RunSizes Padding::run_sizes(const PreparedCall& call) const {
  RunSizes sizes(buckets_.size(), -1);
  for (std::size_t p = 0; p < call.sizes.size(); ++p)
    if (call.sizes[p] >= 0) sizes[dims_[p].buckets] = call.sizes[p];
  return sizes;
}

void Padding::round_up(PreparedCall& call, const RunSizes* run) const {
  if (dims_.empty()) return;
  const MethodInfo& info = call.method->info;
  std::vector<std::int64_t> sizes(dims_.size(), -1), padded(dims_.size(), -1);
  bool any = false;
  for (std::size_t p = 0; p < dims_.size(); ++p) {
    if (dims_[p].method != call.index) continue;
    std::int64_t size = run ? (*run)[dims_[p].buckets] : -1;
    if (run && size < 0) continue;
    for (const auto& [i, d] : dims_[p].inputs) {
      const DimInfo& dim = info.inputs[i].dims[static_cast<std::size_t>(d)];
      const InputDesc& input = call.inputs[i];
      const bool is_tensor = info.inputs[i].kind == Value::Kind::tensor;
      if (input.is_tensor != is_tensor || (is_tensor && d >= input.desc.rank())) return;
      const std::int64_t found = is_tensor ? input.desc.shape[d] : input.scalar.i;
      if (found < dim.min || found > dim.max || (size >= 0 && found != size)) return;
      size = found;
    }
    const std::vector<std::int64_t>& listed = buckets_[dims_[p].buckets].sizes;
    const auto bucket = std::ranges::lower_bound(listed, size);
    if (bucket == listed.end() || *bucket == size) continue;
    sizes[p] = size;
    padded[p] = *bucket;
    any = true;
  }
  if (!any) return;
  for (std::size_t p = 0; p < dims_.size(); ++p) {
    if (padded[p] < 0) continue;
    for (const auto& [i, d] : dims_[p].inputs) {
      InputDesc& input = call.inputs[i];
      if (!input.is_tensor) {
        input.scalar = Scalar::of(padded[p]);
        continue;
      }
      Shape shape = input.desc.shape;
      shape[d] = padded[p];
      input.desc = TensorDesc(input.desc.dtype, shape);
    }
  }
  call.sizes = std::move(sizes);
}

double Padding::number_for(const PreparedCall& call, std::size_t input) const {
  double number = 0;
  for (const Dim& dim : dims_) {
    if (dim.method != call.index) continue;
    const auto& given = buckets_[dim.buckets].padding;
    if (const auto found = given.find(call.method->info.inputs[input].name); found != given.end())
      number = found->second;
    if (std::ranges::find(dim.positions, input) != dim.positions.end()) return -1;
  }
  return number;
}

std::int64_t Padding::first_element(const PreparedCall& call, std::size_t value, const Shape& shape,
                                    std::vector<std::pair<std::size_t, int>> Dim::*places) const {
  std::int64_t first = 0;
  for (std::size_t p = 0; p < dims_.size(); ++p)
    for (const auto& [index, d] : dims_[p].*places) {
      if (call.sizes[p] < 0 || !dims_[p].left || dims_[p].method != call.index || index != value) continue;
      std::int64_t step = 1;
      for (int after = d + 1; after < shape.rank(); ++after) step *= shape[after];
      first += (shape[d] - call.sizes[p]) * step;
    }
  return first;
}

std::vector<Value> Padding::pad(const PreparedCall& call, std::span<const Value> whole) const {
  std::vector<Value> out(call.given.begin(), call.given.end());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const TensorView& from = call.given[i].tensor;
    if (!call.inputs[i].is_tensor || call.inputs[i].desc.shape == from.shape) continue;
    if (i < whole.size() && has_memory(whole[i]) && whole[i].tensor.shape == call.inputs[i].desc.shape) {
      out[i] = whole[i];
      continue;
    }
    const std::vector<std::byte> element = padding_of(from.dtype, number_for(call, i));
    out[i] = blocks_->tensor(from.dtype, call.inputs[i].desc.shape);
    auto* data = static_cast<std::byte*>(out[i].tensor.data);
    const std::size_t bytes = call.inputs[i].desc.byte_count();
    for (std::size_t at = 0; at < bytes; at += element.size()) std::memcpy(data + at, element.data(), element.size());
    const Shape& padded = call.inputs[i].desc.shape;
    if (from.data && from.shape.numel() > 0)
      copy_corner(static_cast<const std::byte*>(from.data), from.shape,
                  data + static_cast<std::size_t>(first_element(call, i, padded, &Dim::inputs)) * element.size(),
                  padded, from.shape, element.size());
    ++counters_.inputs_padded;
  }
  move_indices(call, out);
  return out;
}

void Padding::move_indices(const PreparedCall& call, std::vector<Value>& inputs) const {
  for (std::size_t p = 0; p < dims_.size(); ++p) {
    if (call.sizes[p] < 0 || dims_[p].method != call.index) continue;
    const std::vector<std::int64_t>& listed = buckets_[dims_[p].buckets].sizes;
    const std::int64_t by = *std::ranges::lower_bound(listed, call.sizes[p]) - call.sizes[p];
    for (const std::size_t i : dims_[p].indices) {
      const TensorView given = inputs[i].tensor;
      GRAFT_CHECK(InvalidArgument, given.dtype == DType::i64 || given.dtype == DType::i32, "input ", i, " of method '",
                  call.method->info.name, "' selects padded tokens: it must be i64 or i32, found ", name(given.dtype));
      Value moved = blocks_->tensor(given.dtype, given.shape);
      const auto move = [&]<typename T>(T) {
        const auto* from = static_cast<const T*>(given.data);
        std::transform(from, from + given.shape.numel(), static_cast<T*>(moved.tensor.data), [&](T index) {
          return index < 0 ? index : static_cast<T>(index + by);  // from the end it is what it was
        });
      };
      given.dtype == DType::i64 ? move(std::int64_t{}) : move(std::int32_t{});
      inputs[i] = std::move(moved);
      ++counters_.inputs_padded;
    }
  }
}

Shape Padding::cut_shape(const PreparedCall& call, std::size_t output) const {
  Shape shape = call.output(output).desc.shape;
  if (!call.padded()) return shape;
  for (std::size_t p = 0; p < dims_.size(); ++p)
    for (const auto& [o, d] : dims_[p].outputs)
      if (call.sizes[p] >= 0 && dims_[p].method == call.index && o == output) shape[d] = call.sizes[p];
  return shape;
}

Value Padding::number(const PreparedCall& call, std::size_t output) const {
  if (call.padded())
    for (std::size_t p = 0; p < dims_.size(); ++p)
      for (const auto& [o, d] : dims_[p].outputs)
        if (call.sizes[p] >= 0 && dims_[p].method == call.index && o == output) return Value::of(call.sizes[p]);
  return number_of(call.output(output));
}

void Padding::cut(const PreparedCall& call, std::size_t output, const TensorView& padded, const TensorView& to) const {
  if (to.shape.numel() == 0) return;
  const auto first = static_cast<std::size_t>(first_element(call, output, padded.shape, &Dim::outputs));
  copy_corner(static_cast<const std::byte*>(padded.data) + first * byte_size(to.dtype), padded.shape,
              static_cast<std::byte*>(to.data), to.shape, to.shape, byte_size(to.dtype));
}

}  // namespace graft
