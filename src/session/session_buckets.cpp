#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/check.h"
#include "ggml.h"
#include "session/session_impl.h"

// Dimensions padded up to listed sizes: inputs are copied into larger ones before a run, results out of larger ones
// behind it.
namespace graft {
namespace {

using DimPlace = std::pair<std::size_t, int>;

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

// Copies the corner of size `box` that two contiguous tensors share.
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

void Session::Impl::find_padded_dims() {
  for (std::size_t b = 0; b < options.buckets.size(); ++b) {
    const Buckets& buckets = options.buckets[b];
    check_sizes(buckets);
    bool found = false;
    for (std::uint32_t m = 0; m < loaded().public_methods; ++m) {
      const LoadedMethod& method = loaded().methods[m];
      const std::string symbol = expression_of(buckets, method.info);
      if (symbol.empty()) continue;
      found = true;
      const std::string owner = str(label(buckets), ", method '", method.info.name, "': ");
      GRAFT_CHECK(InvalidArgument, method.steps.empty(), owner,
                  "it runs in segments, and padding would change the sizes ", "that depend on data");
      for (const PaddedDim& other : padded)
        GRAFT_CHECK(
            InvalidArgument,
            other.method != m ||
                method.info.inputs[other.inputs[0].first].dims[static_cast<std::size_t>(other.inputs[0].second)].expr !=
                    symbol,
            owner, "the dimension has buckets already");
      PaddedDim dim{m, b, {}, {}};
      for (std::size_t i = 0; i < method.info.inputs.size(); ++i) {
        for (std::size_t d = 0; d < method.info.inputs[i].dims.size(); ++d) {
          const DimInfo& info = method.info.inputs[i].dims[d];
          if (info.expr != symbol) {
            GRAFT_CHECK(InvalidArgument, info.min == info.max || !mentions(info.expr, symbol), owner, "input ", i,
                        " has size '", info.expr, "', which cannot be padded alike");
            continue;
          }
          for (const std::int64_t size : buckets.sizes)
            GRAFT_CHECK(InvalidArgument, size >= info.min && size <= info.max, owner, "sizes must be in ", info.min,
                        "..", info.max, ", got ", size);
          dim.inputs.emplace_back(i, static_cast<int>(d));
        }
      }
      for (std::size_t o = 0; o < method.info.outputs.size(); ++o)
        for (std::size_t d = 0; d < method.info.outputs[o].dims.size(); ++d) {
          const std::string& expr = method.info.outputs[o].dims[d].expr;
          if (expr == symbol) dim.outputs.emplace_back(o, static_cast<int>(d));
          GRAFT_CHECK(InvalidArgument, expr == symbol || !mentions(expr, symbol), owner, "output ", o, " has size '",
                      expr, "', which cannot be cut back");
        }
      for (const ir::Output& output : loaded().graph(m)->methods[0].outputs)
        GRAFT_CHECK(InvalidArgument, output.kind == ir::OutputKind::user, owner, "it writes states or inputs, which ",
                    "would keep what was padded");
      GRAFT_CHECK(InvalidArgument, !has_kv, owner,
                  "it has a cache of keys and values, which would keep what was padded");
      padded.push_back(std::move(dim));
    }
    GRAFT_CHECK(InvalidArgument, found, label(buckets), ": no input has a dimension of that name that is not fixed");
    for (const auto& pair : buckets.padding) {
      const bool known = std::ranges::any_of(loaded().methods, [&](const LoadedMethod& method) {
        return std::ranges::any_of(method.info.inputs,
                                   [&](const ValueInfo& input) { return input.name == pair.first; });
      });
      GRAFT_CHECK(InvalidArgument, known, label(buckets), ": no input '", pair.first, "' to pad with ", pair.second);
    }
  }
}

bool Session::Impl::pad(std::uint32_t method, std::span<const Value> inputs, std::vector<Value>& padded_inputs,
                        std::vector<std::int64_t>& sizes) {
  sizes.assign(padded.size(), -1);
  const MethodInfo& info = loaded().methods[method].info;
  if (inputs.size() != info.inputs.size()) return false;  // refused as any run
  std::vector<Shape> shapes;
  for (const Value& input : inputs) shapes.push_back(input.tensor.shape);
  bool any = false;
  for (std::size_t p = 0; p < padded.size(); ++p) {
    if (padded[p].method != method) continue;
    std::int64_t size = -1;
    for (const auto& [i, d] : padded[p].inputs) {
      const DimInfo& dim = info.inputs[i].dims[static_cast<std::size_t>(d)];
      if (inputs[i].kind != Value::Kind::tensor || d >= inputs[i].tensor.shape.rank()) return false;
      const std::int64_t found = inputs[i].tensor.shape[d];
      if (found < dim.min || found > dim.max || (size >= 0 && found != size)) return false;
      size = found;
    }
    const std::vector<std::int64_t>& listed = options.buckets[padded[p].buckets].sizes;
    const auto bucket = std::ranges::lower_bound(listed, size);
    if (bucket == listed.end() || *bucket == size) continue;
    for (const auto& [i, d] : padded[p].inputs) shapes[i][d] = *bucket;
    sizes[p] = size;
    any = true;
  }
  if (!any) return false;
  padded_inputs.assign(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& from = inputs[i].tensor;
    if (shapes[i] == from.shape) continue;
    double number = 0;
    for (const PaddedDim& dim : padded) {
      const auto& given = options.buckets[dim.buckets].padding;
      if (const auto found = given.find(info.inputs[i].name); dim.method == method && found != given.end())
        number = found->second;
    }
    const std::vector<std::byte> element = padding_of(from.dtype, number);
    Value& to = padded_inputs[i];
    to = Value::of(TensorView{nullptr, from.dtype, shapes[i]});
    const std::size_t bytes = TensorDesc(from.dtype, shapes[i]).byte_count();
    to.owner = blocks->take(bytes);
    to.tensor.data = to.owner.get();
    auto* data = static_cast<std::byte*>(to.tensor.data);
    for (std::size_t at = 0; at < bytes; at += element.size()) std::memcpy(data + at, element.data(), element.size());
    if (from.data && from.shape.numel() > 0)
      copy_corner(static_cast<const std::byte*>(from.data), from.shape, data, shapes[i], from.shape, element.size());
  }
  return true;
}

Shape Session::Impl::cut_back(std::size_t output, Shape shape, std::span<const std::int64_t> sizes) const {
  for (std::size_t p = 0; p < padded.size(); ++p)
    for (const auto& [o, d] : padded[p].outputs)
      if (sizes[p] >= 0 && o == output) shape[d] = sizes[p];
  return shape;
}

void Session::Impl::run_padded(std::uint32_t index, std::span<const Value> inputs, std::span<Value> outputs,
                               std::span<const std::int64_t> sizes, const RunOptions& run_options) {
  const LoadedMethod& method = loaded().methods[index];
  describe_inputs(method, inputs);
  const Plan& plan = graph_for(index).executable->plan();
  check_output_count(method, outputs.size());
  std::vector<Value> whole(outputs.begin(), outputs.end());
  std::vector<bool> cut(outputs.size(), false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const PlanOutput& out = plan.outputs[method.user_outputs[i]];
    if (!out.is_tensor) continue;
    const Shape shape = cut_back(i, out.desc.shape, sizes);
    if (shape == out.desc.shape) continue;
    check_output(method, i, outputs[i], {out.desc.dtype, shape});
    cut[i] = true;
    whole[i] = {};
    place(whole[i], out.desc.dtype, out.desc.shape);
  }
  run_plan(index, inputs, whole, run_options);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!cut[i]) {
      outputs[i] = whole[i];
      continue;
    }
    const TensorView &from = whole[i].tensor, &to = outputs[i].tensor;
    if (to.shape.numel() > 0)
      copy_corner(static_cast<const std::byte*>(from.data), from.shape, static_cast<std::byte*>(to.data), to.shape,
                  to.shape, byte_size(from.dtype));
  }
}

}  // namespace graft
