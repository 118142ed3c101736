#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "base/number_at.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// A result of a PyTorch node, in the n-th run of the node: loops run theirs several times.
struct Key {
  std::string node;
  std::size_t result = 0;
  std::size_t time = 0;
  auto operator<=>(const Key&) const = default;

  std::string text() const {
    return printable(node) + (result > 0 ? ", result " + std::to_string(result) : "") +
           (time > 0 ? ", time " + std::to_string(time + 1) : "");
  }
};

struct Computed {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;
};

Computed copy_of(const TensorView& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.data);
  return {tensor.dtype, tensor.shape, {data, data + TensorDesc(tensor.dtype, tensor.shape).byte_count()}};
}

double number(const std::byte* data, DType dtype, std::int64_t i) {
  return number_at(data + static_cast<std::size_t>(i) * byte_size(dtype), dtype);
}

// What the nodes gave, as far as launches write it; `visit` gets it in order. Which nodes a launch computes, and what
// it is called by, depends on how each program was fused: a node's result does not.
template <typename Visit>
void run_observed(const CompareArgs& args, const std::string& file, Visit visit) {
  LoadArgs load = args.program;
  load.file = file;
  const std::shared_ptr<const Program> program = Program::load(file, load_options_of(load));
  const MethodInfo& method = pick_method(*program, args.program.method);
  SessionOptions session_options;
  session_options.threads = load.threads;
  Session session(program, session_options);
  std::map<std::pair<std::string, std::size_t>, std::size_t> times;
  RunOptions options;
  options.observe = [&](const ObservedLaunch& launch) {
    for (const ObservedResult& result : launch.results) {
      const std::string node(result.node);
      visit(Key{node, result.index, times[{node, result.index}]++}, result.value);
    }
  };
  session.run(method.name, read_inputs(method, args.inputs, args.inputs_npz, args.program.max_zip_ratio), options);
}

// Of two tensors of one shape.
struct Difference {
  double largest = 0;  // relative to the largest magnitude of the first
  std::int64_t at = 0;
  double first = 0, second = 0;
};

Difference difference(const Computed& first, const TensorView& second) {
  const auto a = [&](std::int64_t i) { return number(first.bytes.data(), first.dtype, i); };
  const auto b = [&](std::int64_t i) { return number(static_cast<const std::byte*>(second.data), second.dtype, i); };
  const std::int64_t count = first.shape.numel();
  double scale = 0;
  for (std::int64_t i = 0; i < count; ++i)
    if (const double value = std::fabs(a(i)); std::isfinite(value)) scale = std::max(scale, value);
  Difference out;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = a(i), y = b(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double d = std::isfinite(x) && std::isfinite(y) ? std::fabs(x - y) / (scale > 0 ? scale : 1) : INFINITY;
    if (d > out.largest) out = {d, i, x, y};
  }
  return out;
}

std::string index_text(std::int64_t element, const Shape& shape) {
  std::string out;
  for (int d = shape.rank(); d-- > 0; element /= shape[d])
    out = std::to_string(element % shape[d]) + (out.empty() ? "" : ", ") + out;
  return "[" + out + "]";
}

}  // namespace

bool compare(const CompareArgs& args) {
  std::map<Key, Computed> first;
  run_observed(args, args.program.file, [&](const Key& key, const TensorView& t) { first.emplace(key, copy_of(t)); });
  std::size_t compared = 0, unmatched = 0;
  std::optional<std::pair<Key, Difference>> found, largest;
  std::optional<Computed> where;
  run_observed(args, args.other, [&](const Key& key, const TensorView& tensor) {
    const auto other = first.find(key);
    if (other == first.end() || other->second.shape != tensor.shape) {
      ++unmatched;
      return;
    }
    ++compared;
    const Difference d = difference(other->second, tensor);
    if (!largest || d.largest > largest->second.largest) largest = {key, d};
    if (found || d.largest <= args.tolerance) return;
    found = {key, d};
    where = Computed{tensor.dtype, tensor.shape, {}};
  });
  if (compared == 0)
    fail<InvalidArgument>("the two programs have no node of the same name and size: nothing was compared");
  std::cout << compared << " results of nodes compared, " << first.size() - compared
            << " seen in the first program only, " << unmatched << " in the second only\n";
  if (!found) {
    std::cout << "none differs by more than " << args.tolerance << " of its largest value; the largest difference is "
              << largest->second.largest << ", of node " << largest->first.text() << "\n";
    return true;
  }
  const Difference& d = found->second;
  std::cout << "first difference above " << args.tolerance << ": node " << found->first.text() << ", "
            << TensorDesc(where->dtype, where->shape).str() << ", element " << index_text(d.at, where->shape) << ": "
            << d.first << " and " << d.second << ", " << d.largest << " of its largest value\n";
  return false;
}

}  // namespace graft::cli
