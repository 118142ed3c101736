#include "serve/v2/infer.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "serve/v2/tensors.h"

namespace graft::serve {
namespace {

std::string name_of(const std::vector<ValueInfo>& infos, std::size_t index, const char* prefix) {
  const std::string& name = infos[index].name;
  const auto same = std::ranges::count(infos, name, &ValueInfo::name);
  return name.empty() || same > 1 ? str(prefix, index) : name;
}

std::size_t count_of(std::string_view text, std::size_t most) {
  std::size_t count = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), count);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || count > most)
    throw ApiError(400, str("the header Inference-Header-Content-Length must be a number of bytes up to ", most,
                            ", the size of the body, found '", text, "'"));
  return count;
}

// The parts of the body that follow the JSON, in the order of the inputs.
class Binary {
 public:
  explicit Binary(std::string_view bytes) : bytes_(bytes) {}
  std::string_view take(std::int64_t count, const std::string& path) {
    if (static_cast<std::uint64_t>(count) > bytes_.size())
      bad_request(path, "'", path, "' is ", count, ", but only ", bytes_.size(), " bytes of the body are left");
    const std::string_view part = bytes_.substr(0, static_cast<std::size_t>(count));
    bytes_.remove_prefix(part.size());
    return part;
  }
  void end() const {
    if (!bytes_.empty()) throw ApiError(400, str("the body has ", bytes_.size(), " bytes that no input takes"));
  }

 private:
  std::string_view bytes_;
};

Shape shape_of(const Json& json, const std::string& path) {
  if (!json.is_array() || json.size() > kMaxRank)
    bad_request(path, "'", path, "' must be an array of at most ", kMaxRank, " sizes");
  Shape shape;
  for (const Json& size : json) {
    const bool good = size.is_number_integer() && size >= 0 && size <= INT64_MAX;
    if (!good)
      bad_request(path, "'", path, "' must hold sizes from 0 on, found ",
                  size.is_number() ? size.dump() : kind_of(size));
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

// The value of one input; its bytes go to `memory`.
Value read_input(Fields& fields, const ValueInfo& info, Binary& binary, std::vector<std::byte>& memory) {
  const std::string expected(v2_name(info));
  const std::string given = fields.need_text("datatype");
  const std::string path = fields.path("datatype");
  if (given != expected) bad_request(path, "'", path, "' must be ", expected, ", found '", given, "'");
  const auto dtype = v2_dtype(given);
  if (!dtype) bad_request(path, "'", path, "' is ", given, ", which graft does not take from requests");
  const Shape shape = shape_of(fields.need("shape"), fields.path("shape"));
  const std::int64_t count = shape.numel();
  if (static_cast<std::uint64_t>(count) > SIZE_MAX / byte_size(*dtype))
    bad_request(fields.path("shape"), "'", fields.path("shape"), "' is too large");
  std::optional<std::int64_t> binary_bytes;
  if (const Json* parameters = fields.object("parameters")) {
    Fields inner(*parameters, fields.path("parameters."));
    binary_bytes = inner.integer("binary_data_size", 0, INT64_MAX);
    inner.end();
  }
  const Json* data = fields.find("data");
  const std::string data_path = fields.path("data");
  if ((data != nullptr) == binary_bytes.has_value())
    bad_request(data_path, "an input needs 'data', or the parameter 'binary_data_size', and not both: '", data_path,
                "'");
  if (data) {
    memory = bytes_of(*data, *dtype, count, data_path);
  } else {
    const std::string size_path = fields.path("parameters.binary_data_size");
    const auto bytes = static_cast<std::uint64_t>(count) * byte_size(*dtype);
    if (static_cast<std::uint64_t>(*binary_bytes) != bytes)
      bad_request(size_path, "'", size_path, "' is ", *binary_bytes, ", type and shape say ", bytes);
    const std::string_view part = binary.take(*binary_bytes, size_path);
    memory.resize(part.size());
    if (!part.empty()) std::memcpy(memory.data(), part.data(), part.size());
    if (dtype == DType::b8 && std::ranges::any_of(part, [](char c) { return c != 0 && c != 1; }))
      bad_request(data_path, "'", data_path, "' holds a boolean that is neither 0 nor 1");
  }
  if (info.kind == Value::Kind::tensor) return Value::of(TensorView{memory.data(), *dtype, shape});
  if (count != 1) bad_request(fields.path("shape"), "'", fields.path("shape"), "' must be [1]: the input is a number");
  switch (info.kind) {
    case Value::Kind::integer: {
      std::int64_t value = 0;
      std::memcpy(&value, memory.data(), sizeof value);
      return Value::of(value);
    }
    case Value::Kind::real: {
      double value = 0;
      std::memcpy(&value, memory.data(), sizeof value);
      return Value::of(value);
    }
    default:
      return Value::of(memory[0] != std::byte{0});
  }
}

void read_inputs(const Json& list, const MethodInfo& method, Binary& binary, InferRequest& request) {
  request.inputs.resize(method.inputs.size());
  request.memory.resize(method.inputs.size());
  std::vector<bool> given(method.inputs.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = str("inputs[", i, ']');
    Fields fields = Fields::of(list[i], path);
    const std::string name = fields.need_text("name");
    std::size_t index = 0;
    while (index < method.inputs.size() && v2_input_name(method, index) != name) ++index;
    if (index == method.inputs.size()) bad_request(path + ".name", "the model has no input '", name, "'");
    if (given[index]) bad_request(path + ".name", "input '", name, "' is given twice");
    given[index] = true;
    request.inputs[index] = read_input(fields, method.inputs[index], binary, request.memory[index]);
    fields.end();
  }
  for (std::size_t index = 0; index < given.size(); ++index)
    if (!given[index] && method.inputs[index].kind != Value::Kind::none)
      bad_request("inputs", "input '", v2_input_name(method, index), "' is missing");
}

void read_outputs(const Json* list, const MethodInfo& method, bool binary, InferRequest& request) {
  if (!list || list->empty()) {
    for (std::size_t index = 0; index < method.outputs.size(); ++index)
      if (method.outputs[index].kind != Value::Kind::none) request.outputs.push_back({index, binary});
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string path = str("outputs[", i, ']');
    const Json& one = (*list)[i];
    Fields fields = Fields::of(one, path);
    const std::string name = fields.need_text("name");
    InferRequest::Output output{0, binary};
    while (output.index < method.outputs.size() && v2_output_name(method, output.index) != name) ++output.index;
    if (output.index == method.outputs.size()) bad_request(path + ".name", "the model has no output '", name, "'");
    if (std::ranges::count(request.outputs, output.index, &InferRequest::Output::index) > 0)
      bad_request(path + ".name", "output '", name, "' is asked for twice");
    if (const Json* parameters = fields.object("parameters")) {
      Fields inner(*parameters, path + ".parameters.");
      output.binary = inner.boolean("binary_data").value_or(output.binary);
      inner.end();
    }
    fields.end();
    request.outputs.push_back(output);
  }
}

// A number as a tensor of one element.
TensorView tensor_of(const Value& value, std::vector<std::byte>& memory) {
  if (value.kind == Value::Kind::tensor) return value.tensor;
  const auto keep = [&](DType dtype, const void* data) {
    memory.resize(byte_size(dtype));
    std::memcpy(memory.data(), data, memory.size());
    return TensorView{memory.data(), dtype, Shape{1}};
  };
  if (value.kind == Value::Kind::integer) return keep(DType::i64, &value.i);
  if (value.kind == Value::Kind::real) return keep(DType::f64, &value.f);
  const std::uint8_t truth = value.i != 0;
  return keep(DType::b8, &truth);
}

}  // namespace

std::string v2_input_name(const MethodInfo& method, std::size_t index) {
  return name_of(method.inputs, index, "input_");
}
std::string v2_output_name(const MethodInfo& method, std::size_t index) {
  return name_of(method.outputs, index, "output_");
}

InferRequest read_infer(std::string_view body, std::string_view header_bytes, const MethodInfo& method) {
  const std::size_t json_bytes = header_bytes.empty() ? body.size() : count_of(header_bytes, body.size());
  const Json json = parse_object(body.substr(0, json_bytes));
  Binary binary(body.substr(json_bytes));
  Fields fields(json);
  InferRequest request;
  if (const auto id = fields.text("id")) request.id = *id;
  request.model_name = fields.text("model_name");
  bool binary_outputs = false;
  if (const Json* parameters = fields.object("parameters")) {
    Fields inner(*parameters, "parameters.");
    binary_outputs = inner.boolean("binary_data_output").value_or(false);
    inner.end();
  }
  const Json& inputs = fields.need_array("inputs");
  read_inputs(inputs, method, binary, request);
  read_outputs(fields.array("outputs"), method, binary_outputs, request);
  fields.end();
  binary.end();
  return request;
}

Response write_infer(const InferRequest& request, const std::string& model, const MethodInfo& method,
                     const std::vector<Value>& outputs) {
  Json json = {{"model_name", model}, {"model_version", "1"}};
  if (!request.id.is_null()) json["id"] = request.id;
  json["outputs"] = Json::array();
  std::string binary;
  bool any_binary = false;
  for (const InferRequest::Output& wanted : request.outputs) {
    const std::string name = v2_output_name(method, wanted.index);
    const Value& value = outputs.at(wanted.index);
    if (value.kind == Value::Kind::text) {
      json["outputs"].push_back(
          {{"name", name}, {"datatype", "BYTES"}, {"shape", {1}}, {"data", Json::array({value.text})}});
      continue;
    }
    if (value.kind == Value::Kind::none) continue;
    std::vector<std::byte> memory;
    const TensorView tensor = tensor_of(value, memory);
    Json output = {{"name", name}, {"datatype", v2_name(tensor.dtype)}, {"shape", Json::array()}};
    for (const std::int64_t size : tensor.shape.sizes()) output["shape"].push_back(size);
    if (wanted.binary) {
      const std::size_t bytes = TensorDesc(tensor.dtype, tensor.shape).byte_count();
      output["parameters"] = {{"binary_data_size", bytes}};
      if (bytes > 0) binary.append(static_cast<const char*>(tensor.data), bytes);
      any_binary = true;
    } else {
      output["data"] = json_of(tensor, name);
    }
    json["outputs"].push_back(std::move(output));
  }
  Response response;
  response.body = dump(json);
  if (any_binary) {
    response.content_type = "application/octet-stream";
    response.headers.emplace_back("Inference-Header-Content-Length", std::to_string(response.body.size()));
    response.body += binary;
  }
  return response;
}

}  // namespace graft::serve
