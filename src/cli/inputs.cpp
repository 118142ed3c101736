#include "cli/inputs.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <utility>

#include "base/json.h"
#include "cli/npz.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// "input 1 ('mask', bool[1..16, 1..512])"
std::string label(const MethodInfo& method, std::size_t index) {
  const ValueInfo& info = method.inputs[index];
  return str("input ", index, " ('", printable(info.name), "', ", printable(type_text(info)), ")");
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// By name, else by number, else as numpy.savez names positional arrays (only in .npz files).
std::size_t find_input(const MethodInfo& method, std::string_view key, bool from_npz) {
  for (std::size_t i = 0; i < method.inputs.size(); ++i)
    if (method.inputs[i].name == key) return i;
  std::string_view digits = key;
  if (from_npz && digits.starts_with("arr_")) digits.remove_prefix(4);
  std::size_t index = 0;
  if (parse_number(digits, index) && index < method.inputs.size()) return index;
  std::string known;
  for (std::size_t i = 0; i < method.inputs.size(); ++i)
    if (method.inputs[i].kind != Value::Kind::none)
      known += str(known.empty() ? "" : ", ", i, " '", method.inputs[i].name, "'");
  fail<NotFound>("no input '", printable(key), "' in method '", printable(method.name), "'; it takes ",
                 known.empty() ? "none" : printable(known));
}

// Collects the inputs of a call, each at most once.
class Inputs {
 public:
  explicit Inputs(const MethodInfo& method)
      : method_(method), values_(method.inputs.size()), given_(method.inputs.size(), false) {}

  std::size_t claim(std::string_view key, bool from_npz) {
    const std::size_t index = find_input(method_, key, from_npz);
    if (given_[index]) fail(label(method_, index), " is given twice");
    if (method_.inputs[index].kind == Value::Kind::none)
      fail(label(method_, index), " was fixed when the program was exported; it takes no value");
    given_[index] = true;
    return index;
  }
  const ValueInfo& info(std::size_t index) const { return method_.inputs[index]; }
  std::string name(std::size_t index) const { return label(method_, index); }
  void set(std::size_t index, Value value) { values_[index] = std::move(value); }
  bool given(std::size_t index) const { return given_[index]; }

  std::vector<Value> finish(std::string_view how) {
    std::string missing;
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (!given_[i] && method_.inputs[i].kind != Value::Kind::none)
        missing += str(missing.empty() ? "" : ", ", label(method_, i));
    if (!missing.empty()) fail("method '", printable(method_.name), "': missing ", missing, "; ", how);
    return std::move(values_);
  }

 private:
  const MethodInfo& method_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

std::pair<std::string, std::string> split(const std::string& assignment, std::string_view form) {
  auto found = key_and_value(assignment);
  if (!found) fail("'", printable(assignment), "' must have the form ", form);
  return *std::move(found);
}

Value number_from_text(const Inputs& inputs, std::size_t index, const std::string& text) {
  const Value::Kind kind = inputs.info(index).kind;
  std::int64_t i = 0;
  double f = 0;
  if (kind == Value::Kind::integer && parse_number(text, i)) return Value::of(i);
  if (kind == Value::Kind::real && parse_number(text, f)) return Value::of(f);
  if (kind == Value::Kind::boolean && (text == "true" || text == "True" || text == "1")) return Value::of(true);
  if (kind == Value::Kind::boolean && (text == "false" || text == "False" || text == "0")) return Value::of(false);
  fail(inputs.name(index), " must be ", kind == Value::Kind::boolean ? "true or false" : kind_text(kind), ", got '",
       printable(text), "'");
}

template <typename T>
T only_element(const Array& array) {
  return *static_cast<const T*>(array.tensor.data);
}

Value number_from_array(const Inputs& inputs, std::size_t index, const Array& array) {
  const Value::Kind kind = inputs.info(index).kind;
  if (array.tensor.shape.rank() == 0) {
    const DType dtype = array.tensor.dtype;
    if (kind == Value::Kind::integer && dtype == DType::i64) return Value::of(only_element<std::int64_t>(array));
    if (kind == Value::Kind::integer && dtype == DType::i32)
      return Value::of(std::int64_t{only_element<std::int32_t>(array)});
    if (kind == Value::Kind::real && dtype == DType::f64) return Value::of(only_element<double>(array));
    if (kind == Value::Kind::real && dtype == DType::f32)
      return Value::of(static_cast<double>(only_element<float>(array)));
    if (kind == Value::Kind::boolean && dtype == DType::b8) return Value::of(only_element<std::uint8_t>(array) != 0);
  }
  fail(inputs.name(index),
       " must be one number (an array of rank 0: int64 or int32 for an integer, float64 or float32 "
       "for a float, bool for a bool), got dtype '",
       array.numpy_dtype, "', shape ", array.tensor.shape.str());
}

void set_array(Inputs& inputs, std::size_t index, const Array& array) {
  const ValueInfo& info = inputs.info(index);
  if (info.kind != Value::Kind::tensor) {
    inputs.set(index, number_from_array(inputs, index, array));
    return;
  }
  if (array.tensor.dtype != info.dtype)
    fail(inputs.name(index), " must be ", name(info.dtype),
         info.dtype == DType::bf16 ? " (bit patterns in an array of dtype uint16)" : "", ", the array has dtype '",
         array.numpy_dtype, "'");
  Value value = Value::of(array.tensor);
  value.owner = array.owner;
  inputs.set(index, std::move(value));
}

Shape parse_shape(const std::string& text, const std::string& what) {
  std::vector<std::int64_t> sizes;
  std::int64_t count = 8;
  for (std::size_t at = 0; !text.empty() && at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::int64_t size = 0;
    if (!parse_number(std::string_view(text).substr(at, end - at), size) || size < 0)
      fail(what, ": a shape must be sizes with commas between, such as 1,7, got '", printable(text), "'");
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(size, 1), &count))
      fail(what, ": shape ", text, " does not fit 64 bits");
    sizes.push_back(size);
    at = end + 1;
  }
  return Shape(sizes);
}

// Deeper trees than this keep the graph's names: the spec comes from a file, and the walk is recursive.
constexpr int kMaxDepth = 100;

// The keys of a node of a pytree spec, when its context lists one string per child (dict, dataclass, ModelOutput).
std::vector<std::string> keys_of(const Json& node) {
  const std::size_t children = node.at("children_spec").size();
  std::vector<std::string> keys;
  if (!node.at("context").is_string()) return keys;
  Json context = read_json<Json>(node.at("context").get<std::string>(), false);
  // Dataclasses: [[names of fields], [names of fields that are None]].
  if (context.is_array() && !context.empty() && context[0].is_array()) context = Json(context[0]);
  if (!context.is_array() || context.size() != children) return keys;
  for (const Json& key : context)
    if (key.is_string()) keys.push_back(key.get<std::string>());
  if (keys.size() != children) keys.clear();
  return keys;
}

// One name per leaf: the keys and positions that lead to it, "" for leaves without a key.
void leaf_names(const Json& node, const std::string& path, bool keyed, int depth, std::vector<std::string>& names) {
  if (depth > kMaxDepth) throw std::out_of_range("too deep");
  const Json& children = node.at("children_spec");
  if (node.at("type").is_null()) {
    names.push_back(keyed ? path : "");
    return;
  }
  const std::vector<std::string> keys = keys_of(node);
  for (std::size_t i = 0; i < children.size(); ++i)
    leaf_names(children[i], str(path, path.empty() ? "" : ".", keys.empty() ? std::to_string(i) : keys[i]),
               keyed || !keys.empty(), depth + 1, names);
}

// Empty when the spec is unknown or does not have a leaf per output.
std::vector<std::string> names_in_spec(const MethodInfo& method) {
  std::vector<std::string> names;
  const Json spec = read_json<Json>(method.out_spec, false);
  try {
    leaf_names(spec.at(1), "", false, 0, names);
  } catch (const std::exception&) {  // another version of specs: keep the graph's names
    names.clear();
  }
  if (names.size() != method.outputs.size()) names.clear();
  return names;
}

bool is_static(const ValueInfo& info) {
  return info.kind == Value::Kind::tensor &&
         std::all_of(info.dims.begin(), info.dims.end(), [](const DimInfo& dim) { return dim.min == dim.max; });
}

}  // namespace

const MethodInfo& pick_method(const Program& program, const std::string& name) {
  const std::vector<std::string> names = program.method_names();
  if (!name.empty()) return program.method(name);
  if (names.size() == 1) return program.method(names[0]);
  if (std::find(names.begin(), names.end(), "forward") != names.end()) return program.method("forward");
  std::string known;
  for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
  fail("choose one with --method; the program has ", names.empty() ? "none" : printable(known));
}

std::vector<Value> read_inputs(const MethodInfo& method, const std::vector<std::string>& assignments,
                               const std::string& npz, double max_zip_ratio) {
  Inputs inputs(method);
  for (const std::string& assignment : assignments) {
    const auto [key, value] = split(assignment, "NAME_OR_INDEX=FILE.npy or NAME_OR_INDEX=NUMBER");
    const std::size_t index = inputs.claim(key, false);
    if (inputs.info(index).kind == Value::Kind::tensor || value.ends_with(".npy")) {
      set_array(inputs, index, read_npy(value));
    } else {
      inputs.set(index, number_from_text(inputs, index, value));
    }
  }
  if (!npz.empty())
    for (const NamedArray& item : read_npz(npz, max_zip_ratio))
      set_array(inputs, inputs.claim(item.name, true), item.array);
  return inputs.finish("give --input NAME=FILE.npy (numbers: --input NAME=7) or --inputs FILE.npz");
}

std::vector<Value> shaped_inputs(const MethodInfo& method, const std::vector<std::string>& shapes) {
  Inputs inputs(method);
  for (const std::string& assignment : shapes) {
    const auto [key, value] = split(assignment, "NAME_OR_INDEX=SIZES, such as x=1,7");
    const std::size_t index = inputs.claim(key, false);
    const ValueInfo& info = inputs.info(index);
    if (info.kind == Value::Kind::tensor) {
      inputs.set(index, Value::of(TensorView{nullptr, info.dtype, parse_shape(value, inputs.name(index))}));
    } else {
      inputs.set(index, number_from_text(inputs, index, value));
    }
  }
  for (std::size_t i = 0; i < method.inputs.size(); ++i) {
    if (inputs.given(i) || !is_static(method.inputs[i])) continue;
    std::vector<std::int64_t> sizes;
    for (const DimInfo& dim : method.inputs[i].dims) sizes.push_back(dim.min);
    inputs.claim(std::to_string(i), false);
    inputs.set(i, Value::of(TensorView{nullptr, method.inputs[i].dtype, Shape(sizes)}));
  }
  return inputs.finish("give --shape NAME=SIZES, such as --shape x=1,7 (numbers: --shape n=7)");
}

std::vector<Buckets> read_buckets(const std::vector<std::string>& assignments) {
  std::vector<Buckets> out;
  for (const std::string& assignment : assignments) {
    const auto [key, value] = split(assignment, "NAME=SIZES, such as s77=64,128,256");
    Buckets& buckets = out.emplace_back();
    buckets.dimension = key;
    for (std::size_t at = 0; at <= value.size(); at = std::min(value.find(',', at), value.size()) + 1) {
      const Shape size = parse_shape(value.substr(at, value.find(',', at) - at), key);
      buckets.sizes.insert(buckets.sizes.end(), size.sizes().begin(), size.sizes().end());
    }
  }
  return out;
}

bool all_static(const MethodInfo& method) {
  return std::all_of(method.inputs.begin(), method.inputs.end(),
                     [](const ValueInfo& info) { return info.kind == Value::Kind::none || is_static(info); });
}

std::vector<std::string> output_names(const MethodInfo& method) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  const std::vector<std::string> in_spec = names_in_spec(method);
  for (std::size_t i = 0; i < method.outputs.size(); ++i) {
    std::string name = in_spec.empty() || in_spec[i].empty() ? method.outputs[i].name : in_spec[i];
    for (char& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') c = '_';
    if (name.empty() || name[0] == '.') name = str("output_", i);
    while (!taken.insert(name).second) name += str("_", i);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace graft::cli
