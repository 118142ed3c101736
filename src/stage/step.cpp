#include "stage/step.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/json.h"

namespace graft::stage {
namespace {

constexpr std::int64_t kMostTensors = 1024;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 22;  // of a step

void add(std::vector<std::int64_t>& numbers, std::span<const TensorDesc> tensors) {
  numbers.push_back(std::ssize(tensors));
  for (const TensorDesc& tensor : tensors) {
    numbers.push_back(static_cast<std::int64_t>(tensor.dtype));
    numbers.push_back(tensor.rank());
    numbers.insert(numbers.end(), tensor.shape.sizes().begin(), tensor.shape.sizes().end());
  }
}

// Takes numbers from the front; Refused where there are none.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::int64_t);
    GRAFT_CHECK(Refused, bytes.size() % sizeof(std::int64_t) == 0 && misaligned == 0, bytes.size(),
                " bytes are no numbers of 64 bits");
    left_ = {reinterpret_cast<const std::int64_t*>(bytes.data()), bytes.size() / sizeof(std::int64_t)};
  }

  std::int64_t take(std::int64_t least, std::int64_t most) {
    const std::int64_t number = take_all(1)[0];
    GRAFT_CHECK(Refused, number >= least && number <= most, "a number from ", least, " to ", most,
                " was expected, found ", number);
    return number;
  }
  std::span<const std::int64_t> take_all(std::int64_t count) {
    GRAFT_CHECK(Refused, count <= std::ssize(left_), count, " more numbers were expected, found ", left_.size());
    const auto out = left_.first(static_cast<std::size_t>(count));
    left_ = left_.subspan(static_cast<std::size_t>(count));
    return out;
  }
  std::vector<TensorDesc> take_tensors() {
    std::vector<TensorDesc> out;
    for (std::int64_t left = take(0, kMostTensors); left > 0; --left) {
      const auto dtype = static_cast<DType>(take(0, static_cast<std::int64_t>(kDTypeCount) - 1));
      const std::int64_t rank = take(0, kMaxRank);
      try {
        out.emplace_back(dtype, Shape(take_all(rank)));
      } catch (const Refused&) {
        throw;
      } catch (const InvalidArgument& error) {
        throw Refused(error.what());
      }
      GRAFT_CHECK(Refused, out.back().byte_count() <= kProven.payload, "a tensor of at most ", kProven.payload,
                  " bytes was expected, found ", out.back().str());
    }
    return out;
  }
  void end() const { GRAFT_CHECK(Refused, left_.empty(), left_.size(), " numbers too many"); }

 private:
  std::span<const std::int64_t> left_;
};

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename... Errors>
struct Types {};
// Derived classes come before their bases. A new one goes to the end: the numbers are those of the protocol.
using Known = Types<Refused, InvalidArgument, InvalidProgram, Unsupported, NotFound, OutOfMemory, SystemError, Busy,
                    ExecutionError, Cancelled, Unavailable, InternalError>;

template <typename... Errors>
std::uint8_t number_of(const std::exception& error, Types<Errors...>) {
  std::uint8_t number = 0;
  const bool known = ((++number, dynamic_cast<const Errors*>(&error) != nullptr) || ...);
  return known ? number : std::uint8_t{0};
}

template <typename... Errors>
void throw_numbered(std::uint8_t wanted, const std::string& text, Types<Errors...>) {
  std::uint8_t number = 0;
  ((++number == wanted ? throw Errors(text) : static_cast<void>(0)), ...);
}

}  // namespace

std::vector<std::int64_t> Step::numbers() const {
  std::vector<std::int64_t> out{std::ssize(sequences), width, keep};
  for (const auto part : {sequences, ids, positions, cache_positions}) out.insert(out.end(), part.begin(), part.end());
  add(out, tensors);
  return out;
}

Step Step::of(std::span<const std::byte> meta) {
  Numbers numbers(meta);
  Step out;
  const std::int64_t batch = numbers.take(1, kMostPositions);
  out.width = numbers.take(1, kMostPositions / batch);
  out.keep = numbers.take(1, out.width);
  out.sequences = numbers.take_all(batch);
  for (auto* part : {&out.ids, &out.positions, &out.cache_positions}) *part = numbers.take_all(batch * out.width);
  out.tensors = numbers.take_tensors();
  numbers.end();
  return out;
}

std::vector<std::int64_t> Result::numbers() const {
  std::vector<std::int64_t> out{std::ssize(shortest)};
  out.insert(out.end(), shortest.begin(), shortest.end());
  add(out, tensors);
  return out;
}

Result Result::of(std::span<const std::byte> meta) {
  Numbers numbers(meta);
  Result out;
  const auto shortest = numbers.take_all(numbers.take(0, kMostPositions));
  out.shortest.assign(shortest.begin(), shortest.end());
  out.tensors = numbers.take_tensors();
  numbers.end();
  return out;
}

std::vector<std::byte> Opening::bytes() const {
  const Json json = {{"stage", stage},      {"stages", stages},         {"model", model},          {"rows", kv.rows},
                     {"length", kv.length}, {"kv_type", name(kv.type)}, {"slack", kv.window_slack}};
  const std::string text = json.dump();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Opening Opening::of(std::span<const std::byte> meta) {
  Opening out;
  try {
    const Json json = read_json<Json>(meta);
    out.stage = json.at("stage").get<std::int64_t>();
    out.stages = json.at("stages").get<std::int64_t>();
    out.model = json.at("model").get<std::string>();
    out.kv.rows = json.at("rows").get<std::int64_t>();
    out.kv.length = json.at("length").get<std::int64_t>();
    out.kv.type = kv_type_named(json.at("kv_type").get<std::string>());
    out.kv.window_slack = json.at("slack").get<std::int64_t>();
  } catch (const Json::exception& error) {
    throw Refused(str("what a driver asks for cannot be read: ", error.what()));
  }
  return out;
}

std::vector<std::byte> failure_of(const std::exception& error) {
  std::vector<std::byte> out{std::byte{number_of(error, Known{})}};
  const auto text = std::as_bytes(std::span(std::string_view(error.what())));
  out.insert(out.end(), text.begin(), text.end());
  return out;
}

void throw_failure(std::span<const std::byte> meta, const std::string& where) {
  GRAFT_CHECK(Refused, !meta.empty(), where, ": an error without a text");
  const std::string text = where + ": " + std::string(reinterpret_cast<const char*>(meta.data()) + 1, meta.size() - 1);
  throw_numbered(static_cast<std::uint8_t>(meta[0]), text, Known{});
  throw Error(text);
}

std::uint64_t payload_bytes(std::span<const TensorDesc> tensors) {
  std::uint64_t bytes = 0;
  for (const TensorDesc& tensor : tensors) bytes += aligned(tensor.byte_count());
  return bytes;
}

std::vector<Value> in_payload(std::span<const TensorDesc> tensors, std::span<std::byte> payload) {
  const std::uint64_t bytes = payload_bytes(tensors);
  GRAFT_CHECK(Refused, payload.size() == bytes, "tensors of ", bytes, " bytes were expected, found ", payload.size());
  std::vector<Value> out;
  std::uint64_t at = 0;
  for (const TensorDesc& tensor : tensors) {
    out.push_back(Value::of(TensorView{payload.data() + at, tensor.dtype, tensor.shape}));
    at += aligned(tensor.byte_count());
  }
  return out;
}

std::uint64_t place_outgoing(std::span<Value> tensors, Channel& channel) {
  const std::vector<TensorDesc> descs = descs_of(tensors);
  const std::uint64_t bytes = payload_bytes(descs);
  std::byte* at = channel.outgoing(bytes).data();
  for (std::size_t i = 0; i < descs.size(); ++i) {
    tensors[i].tensor.data = at;
    at += aligned(descs[i].byte_count());
  }
  return bytes;
}

std::vector<TensorDesc> descs_of(std::span<const Value> tensors) {
  std::vector<TensorDesc> out;
  for (const Value& value : tensors) {
    GRAFT_CHECK(InvalidArgument, value.kind == Value::Kind::tensor, "a stage gives tensors alone");
    out.emplace_back(value.tensor.dtype, value.tensor.shape);
  }
  return out;
}

std::vector<Value> inputs_of(const Step& step, std::vector<std::int64_t>& kept, std::span<const Value> carried) {
  std::vector<Value> out;
  const Shape shape{std::ssize(step.sequences), step.width};
  for (const auto part : {step.ids, step.positions, step.cache_positions})
    out.push_back(Value::of(TensorView{const_cast<std::int64_t*>(part.data()), DType::i64, shape}));
  kept.clear();
  for (std::int64_t k = step.width - step.keep; k < step.width; ++k) kept.push_back(k);
  out.push_back(Value::of(TensorView{kept.data(), DType::i64, Shape{step.keep}}));
  out.insert(out.end(), carried.begin(), carried.end());
  return out;
}

}  // namespace graft::stage
